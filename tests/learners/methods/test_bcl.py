"""What is special about balanced continual learning; the contract is tested with all the others'."""

import math

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.memory.examples import Stored

X = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
"""The past; in the tests the present is its opposite."""
Y = torch.tensor([0, 1])


def second_task(problem=None, **settings):
    """A linear learner that has seen two examples in its first task, and is at the second."""
    learner = create("bcl", problem or Problem((2,), 2), seed=1, hidden=(), learning_rate=0.1, memory=4, **settings)
    learner.observe(X, Y)
    learner.end_task()
    return learner


def by_hand(weight, bias, x, y):
    """The loss of a linear softmax classifier and its slopes: in the weights, the biases and the inputs."""
    p = (x @ weight.T + bias).softmax(1)
    error = (p - F.one_hot(y, 2)) / len(y)
    loss = -p[torch.arange(len(y)), y].log().mean()
    return loss, error.T @ x, error.sum(0), error @ weight


def test_both_moves_the_value_and_its_slope_by_hand():
    running, shift, move = 0.7, 0.3, 0.2
    learner = second_task(running=running, shift=shift, move=move)
    head = learner.network.head
    weight, bias = head.weight.detach(), head.bias.detach()
    x, y = torch.cat([-X, X]), torch.cat([1 - Y, Y])

    now, in_weight, in_bias, in_x = by_hand(weight, bias, x, y)
    shifted = x + shift * math.sqrt(2) * in_x / in_x.norm(dim=1, keepdim=True)  # player 1 climbs
    at_shifted = by_hand(weight, bias, shifted, y)
    at_moved = by_hand(weight - move * in_weight, bias - move * in_bias, x, y)  # player 2 descends
    assert at_shifted[0] > now + 0.01
    assert at_moved[0] < now - 0.01

    learner.network.zero_grad()
    terms = learner.loss(-X, 1 - Y, None)
    assert terms["generalisation"].item() == pytest.approx((at_shifted[0] - now).item(), abs=1e-6)
    assert terms["forgetting"].item() == pytest.approx((at_moved[0] - now).item(), abs=1e-6)
    expected = running * now + now + (at_shifted[0] - now) + (at_moved[0] - now)
    assert terms["loss"].item() == pytest.approx(expected.item(), abs=1e-6)

    terms["loss"].backward()  # the moves are held: nothing but the three losses has a slope
    for number, parameter in ((1, head.weight), (2, head.bias)):
        slope = (running - 1) * (in_weight, in_bias)[number - 1] + at_shifted[number] + at_moved[number]
        torch.testing.assert_close(parameter.grad, slope, atol=1e-6, rtol=1e-5)


def test_the_numbers_of_every_input_change_by_the_shift_in_the_root_mean_square():
    learner = create("bcl", Problem((3, 8, 8), 2), seed=1, hidden=(4,), channels=(4,), shift=0.25)
    random = torch.Generator().manual_seed(0)
    both = Stored(torch.randn(5, 3, 8, 8, generator=random).requires_grad_(), torch.tensor([0, 1, 0, 1, 1]))
    shifted, _ = learner.moves(both, learner.cost(both, both.x))
    change = (shifted - both.x).detach()
    torch.testing.assert_close(change.square().flatten(1).mean(1).sqrt(), torch.full((5,), 0.25))
    assert not shifted.requires_grad


def test_without_moves_it_is_replay():
    learner = second_task(running=0.5, shift=0.0, move=0.0)
    terms = learner.loss(-X, 1 - Y, None)
    expected = 1.5 * F.cross_entropy(learner.network(torch.cat([-X, X])), torch.cat([1 - Y, Y]))
    torch.testing.assert_close(terms["loss"], expected)
    assert terms["generalisation"] == 0
    assert terms["forgetting"] == 0


def test_the_first_task_is_learned_by_cross_entropy_alone():
    learner = create("bcl", Problem((2,), 2), seed=1, hidden=(4,))
    for _ in range(3):
        expected = F.cross_entropy(learner.network(X), Y).item()
        assert learner.observe(X, Y) == {"loss": pytest.approx(expected, abs=1e-6)}


def test_in_task_il_every_example_counts_in_the_head_of_its_task():
    learner = create("bcl", Problem((2,), 4, ((0, 1), (2, 3))), seed=1, hidden=(), memory=4, shift=0.0, move=0.0, running=0.0)
    learner.observe(X, Y, torch.tensor([0, 0]))
    learner.end_task()
    with torch.no_grad():
        outputs = learner.network(torch.cat([-X, X]))
        expected = F.cross_entropy(torch.cat([outputs[:2, 2:], outputs[2:, :2]]), torch.cat([Y, Y]))
    terms = learner.observe(-X, Y + 2, torch.tensor([1, 1]))
    assert terms["loss"] == pytest.approx(expected.item(), abs=1e-6)


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("bcl", memory=0)
    assert not is_naive("bcl", memory=4)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("bcl", scenario, memory=100) < forgotten("naive", scenario) - 0.4


def test_segments_take_the_place_of_tasks_where_boundaries_are_not_known(forgotten):
    free = {"task_free": True, "memory": 100, "segment_steps": 40}  # the task ends after 40 batches
    assert forgotten("bcl", **free) < forgotten("naive", task_free=True) - 0.4


def test_states_its_memory():
    assert create("bcl", Problem((1,), 2)).memory == "500 examples"
    assert create("bcl", Problem((1,), 2), memory=0).memory == "none"


@pytest.mark.parametrize("name", ["running", "shift", "move", "memory", "segment_steps"])
def test_bad_settings_are_named(name):
    with pytest.raises(InputError, match=name):
        create("bcl", Problem((2,), 2), **{name: -1})
