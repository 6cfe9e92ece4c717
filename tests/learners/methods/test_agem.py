"""What is special about averaged gradient episodic memory; the contract is tested with all the others'."""

import pytest
import torch

from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.methods.agem import project
from hvcl.learners.projection import gradient_of, held_gradient, hold_gradient


def test_a_gradient_that_agrees_is_left_alone():
    gradient = torch.tensor([1.0, 2.0])
    assert project(gradient, torch.tensor([3.0, -1.0])) is gradient
    assert project(gradient, torch.tensor([2.0, -1.0])) is gradient  # at a right angle
    assert project(gradient, torch.zeros(2)) is gradient


def test_a_gradient_that_disagrees_loses_just_that_part():
    # g = (1, 2), reference (0, -1): g . r = -2, r . r = 1, g + 2 r = (1, 0)
    assert project(torch.tensor([1.0, 2.0]), torch.tensor([0.0, -1.0])).tolist() == [1.0, 0.0]
    # reference (-2, 0): g . r = -2, r . r = 4, g + r / 2 = (0, 2)
    assert project(torch.tensor([1.0, 2.0]), torch.tensor([-2.0, 0.0])).tolist() == [0.0, 2.0]
    random = torch.Generator().manual_seed(0)
    gradient, reference = torch.randn(2, 50, dtype=torch.float64, generator=random)
    reference = -reference * (gradient @ reference).sign()
    projected = project(gradient, reference)
    assert abs(projected @ reference) < 1e-12
    closest = gradient - reference * (gradient @ reference) / reference.norm() ** 2
    torch.testing.assert_close(projected, closest)


def test_the_gradient_as_a_vector():
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    x = torch.randn(5, 3)
    loss = network(x).square().mean()
    expected = gradient_of(loss, network)
    assert all(parameter.grad is None for parameter in network.parameters())
    network(x).square().mean().backward()
    torch.testing.assert_close(held_gradient(network), expected)
    hold_gradient(network, torch.arange(11.0))
    assert network[0].weight.grad.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert network[1].bias.grad.tolist() == [10]


def gradient_on(learner, x, y):
    return gradient_of(torch.nn.functional.cross_entropy(learner.network(x), y), learner.network)


def test_the_step_takes_the_projected_gradient():
    learner = create("agem", Problem((2,), 2), seed=1, hidden=(4,), memory=4)
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 0, 1])
    learner.observe(x, y)
    learner.end_task()
    own, reference = gradient_on(learner, x, 1 - y), gradient_on(learner, x, y)
    assert own @ reference < 0  # the opposite of what the memory says
    learner.observe(x, 1 - y)
    expected = own - (own @ reference) / (reference @ reference) * reference
    torch.testing.assert_close(held_gradient(learner.network), expected, atol=1e-6, rtol=1e-4)


def test_with_boundaries_only_finished_tasks_are_past(two_tasks, taught):
    first = two_tasks().problem.task_steps[0]
    (learner, _), (naive, _) = (taught(method, steps=first) for method in ("agem", "naive"))
    weights = naive.network.state_dict()
    assert all(torch.equal(w, weights[name]) for name, w in learner.network.state_dict().items())
    assert len(learner.reservoir) > 0
    assert learner.past == 0
    learner.end_task()
    assert learner.past == learner.reservoir.seen == 40 * first


def test_without_boundaries_all_of_the_memory_is_past():
    learner = create("agem", Problem((2,), 2), seed=1, hidden=(4,), memory=4)
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 0, 1])
    learner.observe(x, y)
    reference = gradient_on(learner, x, y)
    assert gradient_on(learner, x, 1 - y) @ reference < -1e-3
    learner.observe(x, 1 - y)
    assert abs(held_gradient(learner.network) @ reference) < 1e-6


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("agem", scenario, memory=100) < forgotten("naive", scenario) - 0.4


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("agem", memory=0)
