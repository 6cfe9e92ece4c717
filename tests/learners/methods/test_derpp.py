"""What is special about dark experience replay ++; the contract is tested with all the others'."""

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create


def filled(problem, task=None, **settings):
    """A learner that has seen three examples, has kept them all, and what its network said of them before the step."""
    learner = create("derpp", problem, seed=1, hidden=(4,), memory=3, learning_rate=0.1, **settings)
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 0])
    with torch.no_grad():
        before = learner.network(x)
    learner.observe(x, y, task)
    return learner, x, y, before


def test_the_loss_by_hand():
    learner, x, y, before = filled(Problem((2,), 2), alpha=0.3, beta=0.7)
    new_x, new_y = -x, 1 - y
    with torch.no_grad():  # a memory of three, replayed three at a time: all of it, whatever the order
        now = learner.network(x)
        distance = ((now - before) ** 2).sum() / 6
        replay = F.cross_entropy(now, y)
        expected = F.cross_entropy(learner.network(new_x), new_y) + 0.3 * distance + 0.7 * replay
    assert distance > 1e-4
    terms = learner.observe(new_x, new_y)
    assert terms["logit_distance"] == pytest.approx(distance.item(), abs=1e-6)
    assert terms["replay"] == pytest.approx(replay.item(), abs=1e-6)
    assert terms["loss"] == pytest.approx(expected.item(), abs=1e-6)


def test_in_task_il_the_distance_is_that_in_the_head_of_each_example():
    problem = Problem((2,), 4, ((0, 1), (2, 3)))
    learner, x, y, before = filled(problem, torch.zeros(3, dtype=torch.long))
    with torch.no_grad():
        now = learner.network(x)
        distance = ((now - before)[:, :2] ** 2).mean()
        replay = F.cross_entropy(now[:, :2], y)
    terms = learner.observe(x, y + 2, torch.ones(3, dtype=torch.long))
    assert terms["logit_distance"] == pytest.approx(distance.item(), abs=1e-6)
    assert terms["replay"] == pytest.approx(replay.item(), abs=1e-6)
    assert all(w.isfinite().all() for w in learner.network.parameters())


def test_the_logits_of_old_are_those_from_before_the_step():
    learner, x, _, before = filled(Problem((2,), 2))
    kept = learner.reservoir.kept
    assert torch.equal(kept.x, x)
    torch.testing.assert_close(kept.logits, before)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("derpp", scenario, memory=100) < forgotten("naive", scenario) - 0.4


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("derpp", memory=0)


def test_without_weights_it_is_naive_training(taught):
    # without dropout: the memory's passes through the network draw random numbers
    (learner, _), (naive, _) = taught("derpp", alpha=0.0, beta=0.0), taught("naive")
    weights = learner.network.state_dict()
    assert all(torch.equal(w, weights[name]) for name, w in naive.network.state_dict().items())


@pytest.mark.parametrize("settings", [{"alpha": -0.1}, {"beta": -1.0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("derpp", Problem((2,), 2), **settings)
