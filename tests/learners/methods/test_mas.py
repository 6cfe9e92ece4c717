"""Memory-aware synapses."""

import pytest
import torch

from hvcl.core.problem import Problem
from hvcl.learners import create


def by_hand(learner, x, outputs):
    """Mean over examples of |d ||f||^2 / dw|, an example at a time."""
    parameters = dict(learner.network.named_parameters())
    total = {name: torch.zeros_like(w) for name, w in parameters.items()}
    for row in x.split(1):
        norm = learner.network(row)[:, outputs].square().sum()
        for name, gradient in zip(parameters, torch.autograd.grad(norm, list(parameters.values())), strict=True):
            total[name] += gradient.abs() / len(x)
    return total


@pytest.mark.parametrize("settings", [{"hidden": (5,)}, {"hidden": (4,), "channels": (2,)}])
def test_importance_is_the_mean_magnitude_of_each_example_s_gradient(settings):
    shape = (1, 4, 4) if "channels" in settings else (3,)
    learner = create("mas", Problem(shape, 3, task_examples=(6, 6)), seed=1, **settings)
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, *shape, generator=random), torch.randint(0, 3, (6,), generator=random)
    learner.observe(x, y)
    first = by_hand(learner, x, [0, 1, 2])
    learner.end_task()
    torch.testing.assert_close(learner.penalty.importance, first, rtol=1e-4, atol=1e-6)
    learner.observe(x + 1, y)
    second = by_hand(learner, x + 1, [0, 1, 2])
    learner.end_task()
    both = {name: first[name] + second[name] for name in first}
    torch.testing.assert_close(learner.penalty.importance, both, rtol=1e-4, atol=1e-6)


def test_needs_no_labels():
    found = []
    for label in (0, 1):
        learner = create("mas", Problem((3,), 2, task_examples=(6,)), seed=1, hidden=(5,))
        learner.data.add(torch.ones(6, 3), torch.full((6,), label), None)
        learner.end_task()
        found.append(learner.penalty.importance)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_task_il_looks_at_the_head_of_the_task():
    learner = create("mas", Problem((3,), 4, ((0, 1), (2, 3)), task_examples=(6, 6)), seed=1, hidden=(5,))
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    learner.observe(x, torch.tensor([0, 1] * 3), torch.zeros(6, dtype=torch.long))
    expected = by_hand(learner, x, [0, 1])
    learner.end_task()
    torch.testing.assert_close(learner.penalty.importance, expected, rtol=1e-4, atol=1e-6)
    assert (learner.penalty.importance["head.weight"][2:] == 0).all()
