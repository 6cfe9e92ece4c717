"""Detecting the task boundaries of task-free streams."""

import pytest
import torch

from hvcl.core.storage import load_state, save_state
from hvcl.learners import create
from hvcl.learners.boundaries import BoundaryDetector
from hvcl.runs import run
from hvcl.streams import StreamConfig, from_arrays


def stream(task_free=True, batch_size=64, scenario="domain"):
    """Three tasks of two classes in six dimensions, at different places."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(1920) % 6
    centres = 2 * torch.randn(6, 6, generator=random)
    x = centres[y] + 0.5 * torch.randn(len(y), 6, generator=random)
    config = StreamConfig(scenario=scenario, task_free=task_free, epochs=1, batch_size=batch_size)
    return from_arrays(x, y, x[:300], y[:300], classes_per_task=2, config=config)


def places(detector, data, scenario="domain"):
    batches = [event for event in data if hasattr(event, "x")]
    crossed = [number for number, b in enumerate(batches) if detector.crossed(b.x, b.y, b.task)]
    changes = [n for n in range(1, len(batches)) if batches[n].segment != batches[n - 1].segment]
    return crossed, changes


@pytest.mark.parametrize("batch_size", [128, 160])
def test_boundaries_are_detected_where_they_are(batch_size):
    data = stream(batch_size=batch_size)
    crossed, changes = places(BoundaryDetector((6,), seed=1), data)
    assert crossed == changes
    assert len(changes) == 2


def test_in_task_il_a_boundary_is_where_the_task_changes():
    crossed, changes = places(BoundaryDetector((6,), seed=1), stream(scenario="task", batch_size=30))
    assert crossed == changes


def test_a_detector_goes_on_where_it_was_saved(tmp_path):
    batches = [event for event in stream(batch_size=100) if hasattr(event, "x")]
    for stop in (1, 2, 5, 9):
        whole, first, second = (BoundaryDetector((6,), seed) for seed in (1, 1, 7))
        expected = [whole.crossed(b.x, b.y) for b in batches]
        before = [first.crossed(b.x, b.y) for b in batches[:stop]]
        save_state(tmp_path / "state.json", first.state_dict())
        second.load_state_dict(load_state(tmp_path / "state.json"))
        assert before + [second.crossed(b.x, b.y) for b in batches[stop:]] == expected
        assert any(expected)


def test_a_task_free_learner_replays_as_one_with_known_boundaries_does():
    learners = []
    for task_free in (False, True):
        data = stream(task_free, batch_size=128)
        learner = create("dgr-distill", data.problem, seed=1, hidden=(16,), latent=3, likelihood="gaussian")
        run(data, learner)
        learners.append(learner)
    known, free = learners
    assert known.finished == 3
    assert free.finished == 2, "the end of the last task is not announced"
    assert free.teacher is not None
