"""What is special about experience replay; the contract is tested with all the others'."""

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create


def seen_by(learner):
    """The inputs that the network is given, step by step."""
    inputs = []
    learner.network.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    return inputs


def test_a_step_takes_the_batch_and_as_many_examples_of_the_memory():
    learner = create("er", Problem((1,), 2), seed=1, hidden=(4,), memory=6)
    inputs = seen_by(learner)
    for first in (0, 4, 8, 12):
        learner.observe(torch.arange(first, first + 4).float()[:, None], torch.tensor([0, 1, 0, 1]))
    assert [len(x) for x in inputs] == [4, 8, 8, 8]
    assert sorted(inputs[1].flatten().tolist()) == list(range(8))  # the memory held just the first batch
    for step, x in enumerate(inputs):
        assert x[:4].flatten().tolist() == [4 * step, 4 * step + 1, 4 * step + 2, 4 * step + 3]
        assert (x[4:] < 4 * step).all()  # what is replayed had come before
        assert x.unique().numel() == len(x)


def test_the_replayed_batch_has_the_size_that_is_set():
    learner = create("er", Problem((1,), 2), seed=1, hidden=(4,), memory=6, replay_batch=3)
    inputs = seen_by(learner)
    for _ in range(3):
        learner.observe(torch.randn(4, 1), torch.tensor([0, 1, 0, 1]))
    assert [len(x) for x in inputs] == [4, 7, 7]


def test_the_loss_is_the_mean_over_batch_and_memory_each_in_the_head_of_its_task():
    learner = create("er", Problem((2,), 4, ((0, 1), (2, 3))), seed=1, hidden=(4,), memory=8)
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    learner.observe(x[:2], torch.tensor([0, 1]), torch.tensor([0, 0]))
    y, task = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1])
    with torch.no_grad():
        heads = torch.stack([learner.network(x)[row, 2 * t : 2 * t + 2] for row, t in enumerate(task.tolist())])
        expected = F.cross_entropy(heads, y % 2)
    terms = learner.observe(x[2:], y[2:], task[2:])
    assert terms["loss"] == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("er", scenario, memory=100) < forgotten("naive", scenario) - 0.4


def test_needs_no_boundaries(taught):
    (told, _), (free, _) = (taught("er", task_free=free, memory=50) for free in (False, True))
    weights = free.network.state_dict()
    assert all(torch.equal(w, weights[name]) for name, w in told.network.state_dict().items())


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("er", memory=0)
    assert not is_naive("er", memory=1)


def test_states_its_memory():
    assert create("er", Problem((1,), 2), memory=200).memory == "200 examples"
    assert create("er", Problem((1,), 2), memory=0).memory == "none"


@pytest.mark.parametrize("settings", [{"memory": -1}, {"replay_batch": 0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("er", Problem((1,), 2), **settings)
