"""What learners say about stored examples is what their states hold."""

import pytest
import torch

from hvcl.core.problem import Problem
from hvcl.core.state import split_tensors
from hvcl.features import FrozenModule, RandomFeatures
from hvcl.learners import Exact, ExactConfig, create

PICTURE, ROW = (1, 16, 16), (6,)


def stream(shape, count=80, seed=0):
    """Smooth random pictures, or rows, with labels that their mean decides."""
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    if len(shape) == 3:
        x = x.cumsum(2).cumsum(3) / 8
    return x, (x.flatten(1).mean(1) > 0).long()


def holds(state, x):
    """How many examples are in a state, number by number."""
    tensors = [value.double().flatten() for value in split_tensors(state)[1].values() if value.is_floating_point()]
    numbers = torch.cat([value for value in tensors if value.numel()])
    return sum(bool(torch.isin(example.double().flatten(), numbers).all()) for example in x)


CASES = [
    ("exact", ROW, {"random_features": 20}, "32 examples, then pieces"),
    ("exact", PICTURE, {"filters": 8, "random_features": 20}, "32 examples, then pieces"),
    ("hvcl-growing", ROW, {"hidden": (8,)}, "32 examples, then none"),
    ("hvcl-growing", PICTURE, {"hidden": (8,), "filters": 8, "features": "patches"}, "32 examples, then pieces"),
    ("hvcl-growing", PICTURE, {"hidden": (8,), "features": "inputs"}, "32 examples, then none"),
]


@pytest.mark.parametrize(("name", "shape", "settings", "words"), CASES)
def test_first_examples_are_kept_and_said_to_be_and_then_they_are_gone(name, shape, settings, words):
    x, y = stream(shape)
    learner = create(name, Problem(shape, 2), warmup=32, **settings)
    assert learner.memory == words
    learner.observe(x[:20], y[:20])
    assert holds(learner.state_dict(), x) == 20
    assert learner.memory == words
    learner.observe(x[20:], y[20:])
    assert holds(learner.state_dict(), x) == 0
    assert learner.memory == words


def test_a_fitted_map_that_is_given_needs_no_examples_and_one_to_be_fitted_does():
    x, y = stream(ROW)
    random = RandomFeatures(ROW, 20)
    random.fit(torch.randn(50, *ROW))
    learner = Exact(Problem(ROW, 2), ExactConfig(), 0, random)
    assert learner.memory == "none"
    learner.observe(x[:1], y[:1])
    assert holds(learner.state_dict(), x) == 0
    frozen = FrozenModule(torch.nn.Linear(6, 4), ROW)
    assert Exact(Problem(ROW, 2), ExactConfig(warmup=64), 0, frozen).memory == "64 examples, then none"


def test_no_examples_features_stay_as_the_centre_of_the_sums():
    x, y = stream(ROW)
    random = RandomFeatures(ROW, 20)
    random.fit(torch.randn(50, *ROW))
    learner = Exact(Problem(ROW, 2), ExactConfig(), 0, random)
    for row in range(len(x)):
        learner.observe(x[row : row + 1], y[row : row + 1])
    assert holds(learner.state_dict(), random(x)) == 0


def test_a_task_id_needs_no_gate_and_a_boundary_no_detector():
    heads = Problem(ROW, 4, task_outputs=((0, 1), (2, 3)))
    assert create("hvcl-growing", heads, hidden=(8,)).memory == "none"
    assert create("hvcl-growing", heads, hidden=(8,), front=True).memory == "256 examples, then none"
    assert create("dgr", Problem(ROW, 2), hidden=(8,)).memory == "256 examples, then none"
    assert create("dgr", Problem(ROW, 2, task_examples=(10, 10), task_steps=(1, 1)), hidden=(8,)).memory == "none"
    told = Problem(ROW, 2, task_examples=(10, 10), task_steps=(1, 1))
    assert create("hvcl-replay", told, hidden=(8,), labels="exact").memory == "256 examples, then pieces"
