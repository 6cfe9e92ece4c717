"""What every learner with experts of its own tells after predicting: p(m|x)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hvcl.learners import create
from hvcl.learners.base import Learner
from hvcl.streams import StreamConfig, from_arrays
from hvcl.streams.events import Batch
from hvcl.streams.stream import Stream

SMALL: dict[str, dict[str, Any]] = {
    "exact": {"random_features": 50, "warmup": 64},
    "hvcl-growing": {"hidden": (8,), "warmup": 64},
}


def stream_of(scenario: str, task_free: bool = False) -> Stream:
    """Three tasks of two classes each, far from each other."""
    random = np.random.default_rng(0)
    y = random.integers(0, 6, 1200)
    x = (random.normal(size=(1200, 8)) + 8 * np.eye(6, 8)[y]).astype(np.float32)
    config = StreamConfig(scenario=scenario, task_free=task_free, batch_size=32)  # type: ignore[arg-type]
    return from_arrays(x[:900], y[:900], x[900:], y[900:], classes_per_task=2, config=config)


def taught(stream: Stream, method: str, **settings: Any) -> Learner:
    learner = create(method, stream.problem, seed=1, **(SMALL[method] | settings))
    for event in stream:
        if isinstance(event, Batch):
            learner.observe(event.x, event.y, event.task)
        elif event.announced:
            learner.end_task()
    return learner


def examples_of(stream: Stream) -> tuple[Tensor, Tensor, Tensor | None]:
    batches = [batch for test in stream.tests for batch in test.batches()]
    tasks = [task for _, _, task in batches if task is not None]
    return torch.cat([x for x, _, _ in batches]), torch.cat([y for _, y, _ in batches]), torch.cat(tasks) if tasks else None


@pytest.mark.parametrize("method", ["naive", "hvcl", "joint"])
def test_learners_without_experts_of_their_own_have_none(method: str) -> None:
    stream = stream_of("domain")
    learner = create(method, stream.problem, seed=1, hidden=(4,))
    learner.predict(examples_of(stream)[0])
    assert learner.expert_probabilities is None


@pytest.mark.parametrize("scenario", ["domain", "class"])
@pytest.mark.parametrize(
    ("method", "settings"), [("exact", {}), ("exact", {"separate": True}), ("hvcl-growing", {"covariance": "diagonal"})]
)
def test_the_expert_of_a_task_answers_for_it(method: str, settings: dict[str, Any], scenario: str) -> None:
    stream = stream_of(scenario)
    learner = taught(stream, method, **settings)
    for task, test in enumerate(stream.tests):
        x = torch.cat([x for x, _, _ in test.batches()])
        learner.predict(x)
        p = learner.expert_probabilities
        assert p is not None
        assert p.shape == (len(x), 3)
        torch.testing.assert_close(p.sum(1), torch.ones(len(x)))
        assert float((p.argmax(1) == task).double().mean()) > 0.95


def test_a_shared_head_gives_an_expert_the_mass_of_its_labels() -> None:
    # in Class-IL every label belongs to one expert: p(m|x) must be the sum of p(y|x) over its labels
    stream = stream_of("class")
    learner = taught(stream, "exact")
    p = learner.predict(examples_of(stream)[0])
    assert learner.expert_probabilities is not None
    torch.testing.assert_close(learner.expert_probabilities, p.view(-1, 3, 2).sum(2), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("method", "settings"), [("exact", {}), ("exact", {"separate": True}), ("hvcl-growing", {})])
def test_a_given_task_is_answered_by_its_expert_alone(method: str, settings: dict[str, Any]) -> None:
    stream = stream_of("task")
    learner = taught(stream, method, **settings)
    x, _, task = examples_of(stream)
    learner.predict(x, task)
    assert learner.expert_probabilities is not None
    assert task is not None
    assert torch.equal(learner.expert_probabilities, torch.eye(3)[task])


def test_before_learning_and_while_the_first_examples_wait() -> None:
    stream = stream_of("class", task_free=True)
    learner = create("exact", stream.problem, seed=1, **SMALL["exact"])
    x, _, _ = examples_of(stream)
    learner.predict(x)
    assert learner.expert_probabilities is None
    batch = next(event for event in stream if isinstance(event, Batch))
    learner.observe(batch.x, batch.y)  # 32 examples of 64 that are waited for
    learner.predict(x)
    assert learner.expert_probabilities is not None
    assert learner.expert_probabilities.shape == (len(x), 1)


def test_probabilities_sum_to_one_for_a_task_that_is_unknown() -> None:
    stream = stream_of("task")
    learner = create("hvcl-growing", stream.problem, seed=1, **SMALL["hvcl-growing"])
    x, _, task = examples_of(stream)
    assert task is not None
    for event in list(stream)[:15]:  # one of the three tasks, and the beginning of the second
        if isinstance(event, Batch):
            learner.observe(event.x, event.y, event.task)
    learner.predict(x, task)
    assert learner.expert_probabilities is not None
    assert torch.equal(learner.expert_probabilities, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])[task])
