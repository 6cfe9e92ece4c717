"""Two tasks that a network without any defence forgets the first of."""

import pytest
import torch

from hvcl.learners import create
from hvcl.runs import run
from hvcl.streams import StreamConfig, from_arrays


@pytest.fixture
def two_tasks():
    """Makes the stream: two classes a task, six dimensions; a shared head has to turn around for the second task."""

    def make(scenario="domain", task_free=False):
        random = torch.Generator().manual_seed(0)
        y = torch.arange(400) % 4
        centres = torch.tensor([[2.0, 0, 1, 0, 0, 0], [-2, 0, 1, 0, 0, 0], [-2, 1, -1, 0, 0, 0], [2, 1, -1, 0, 0, 0]])
        x = centres[y] + 0.5 * torch.randn(len(y), 6, generator=random)
        config = StreamConfig(scenario=scenario, task_free=task_free, epochs=8, batch_size=40)
        return from_arrays(x, y, x, y, classes_per_task=2, config=config)

    return make


@pytest.fixture
def forgotten(two_tasks):
    """What a method loses of the first task's accuracy while it learns the second (seed 1)."""

    def measure(method, scenario="domain", task_free=False, **settings):
        stream = two_tasks(scenario, task_free)
        learner = create(method, stream.problem, seed=1, hidden=(16,), learning_rate=0.02, **settings)
        matrix = run(stream, learner)
        assert matrix.rows[1][1] > 0.85, "the second task was not learned"
        return matrix.rows[0][0] - matrix.rows[1][0]

    return measure


@pytest.fixture
def taught(two_tasks):
    """A learner that has seen the whole stream, with the terms of every step."""

    def teach(method, scenario="domain", task_free=False, steps=None, **settings):
        stream = two_tasks(scenario, task_free)
        learner = create(method, stream.problem, seed=1, **({"hidden": (16,), "learning_rate": 0.01} | settings))
        terms = []
        for event in list(stream)[:steps]:
            if hasattr(event, "x"):
                terms.append(learner.observe(event.x, event.y, event.task))
            elif event.announced:
                learner.end_task()
        return learner, terms

    return teach


@pytest.fixture
def is_naive(taught):
    """Whether a method with these settings does bit for bit what naive training does."""

    def compare(method, **settings):
        (learner, terms), (naive, expected) = (
            taught(name, dropout=0.2, **more) for name, more in ((method, settings), ("naive", {}))
        )
        weights, plain = learner.network.state_dict(), naive.network.state_dict()
        return terms == expected and all(torch.equal(weights[name], plain[name]) for name in plain)

    return compare
