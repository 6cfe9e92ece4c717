"""Natural continual learning."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.methods.ncl import add_products, together


def batch(seed=0, n=20):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=random), torch.arange(n) % 2


def consolidated(**settings):
    learner = create("ncl", Problem((3,), 2, task_examples=(20, 20)), seed=1, hidden=(), momentum=0.0, damping=0.0, **settings)
    learner.observe(*batch())
    learner.end_task()
    return learner


def test_step_is_that_of_the_explicit_inverse_of_the_kronecker_product():
    learner = consolidated(learning_rate=0.5, strength=0.7)
    layer, precision = learner.network.head, learner.precisions["head"]
    for _ in range(2):  # the second step starts away from the mean
        x, y = batch(1)
        gradients = torch.autograd.grad(learner.loss(x, y, None)["loss"], [layer.weight, layer.bias])
        weights = together(layer.weight, layer.bias).detach().clone()
        full = torch.kron(precision.outputs, precision.inputs).double()
        total = together(*gradients).double().flatten() + 0.7 * full @ (weights - precision.mean).double().flatten()
        expected = weights - 0.5 / 20 * torch.linalg.solve(full, total).view_as(weights)
        learner.observe(x, y)
        torch.testing.assert_close(together(layer.weight, layer.bias), expected.float(), rtol=1e-4, atol=1e-5)


def test_kronecker_factors_are_moments_of_inputs_and_of_output_gradients():
    learner = create("ncl", Problem((3,), 2, task_examples=(20, 20)), seed=1, hidden=())
    x, y = batch()
    learner.data.add(x, y, None)
    inputs, outputs = learner.kronecker_factors(learner.data.finish())["head"]
    extended = torch.cat([x, torch.ones(20, 1)], 1)
    torch.testing.assert_close(inputs, extended.T @ extended / 20)
    p = learner.predict(x)  # the outputs' Fisher of a softmax: diag(p) - p p^T
    torch.testing.assert_close(outputs, (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)).mean(0))


def test_fisher_of_one_example_is_exactly_a_kronecker_product():
    """With a single example there is nothing that the factorisation leaves out, convolutions at one place included."""
    learner = create("ncl", Problem((1, 2, 2), 2, task_examples=(1,)), seed=1, channels=(2,), hidden=())
    x = torch.randn(1, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    learner.data.add(x, torch.tensor([0]), None)
    factors = learner.kronecker_factors(learner.data.finish())
    log_p = learner.logits(x, None).log_softmax(1)[0]
    for name, layer in learner.layers().items():
        fisher = 0.0
        for label in range(2):
            gradient = together(*torch.autograd.grad(log_p[label], [layer.weight, layer.bias], retain_graph=True)).flatten()
            fisher = fisher + log_p[label].exp().detach() * torch.outer(gradient, gradient)
        torch.testing.assert_close(torch.kron(factors[name][1], factors[name][0]), fisher, rtol=1e-4, atol=1e-6)


def test_directions_of_the_first_task_are_protected_and_others_free():
    """The first task's inputs lie along the first axis only: weights from the other axes may move as in the first task."""
    problem = Problem((3,), 2, task_examples=(200, 200))
    learner = create("ncl", problem, seed=1, hidden=(), learning_rate=0.1, strength=0.0)
    x = torch.zeros(200, 3)
    y = torch.arange(200) % 2
    x[:, 0] = 2.0 * y - 1
    learner.observe(x, y)
    learner.end_task()
    before = learner.network.head.weight.detach().clone()
    everywhere = torch.ones(200, 3) * (2.0 * y - 1).unsqueeze(1)
    learner.observe(everywhere, y)
    moved = (learner.network.head.weight - before).abs().mean(0)
    assert moved[0] < 0.15 * moved[1]
    assert moved[0] < 0.15 * moved[2]


def test_first_task_is_learned_by_sgd_with_a_small_weight_decay():
    learner = create("ncl", Problem((3,), 2, task_examples=(20, 20)), seed=1, hidden=(4,), damping=0.0)
    plain = create("naive", Problem((3,), 2), seed=1, hidden=(4,))
    plain.network.load_state_dict(learner.network.state_dict())
    plain.optimizer = torch.optim.SGD(plain.network.parameters(), lr=0.02, momentum=0.9, weight_decay=1 / 20)
    for seed in range(5):
        learner.observe(*batch(seed))
        plain.observe(*batch(seed))
    for mine, theirs in zip(learner.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_sum_of_products_matches_traces_and_ignores_nothing():
    eye = torch.eye(2)
    inputs, outputs = add_products((2 * eye, 3 * eye), (4 * eye, 6 * eye))
    # of multiples of the identity the sum is sqrt(6) + sqrt(24), squared
    torch.testing.assert_close(torch.kron(inputs, outputs), (6**0.5 + 24**0.5) ** 2 * torch.eye(4))
    unchanged = add_products((eye, eye), (0 * eye, eye))
    assert torch.equal(unchanged[0], eye)


def test_boundary_moves_the_mean_drops_the_examples_and_the_momentum():
    learner = consolidated()
    assert torch.equal(learner.precisions["head"].mean, together(learner.network.head.weight, learner.network.head.bias))
    assert learner.state_dict()["data"]["parts"] == []
    assert not learner.optimizer.state
    assert learner.memory == "none"


@pytest.mark.parametrize("settings", [{"momentum": 1.0}, {"strength": -1.0}, {"prior_examples": 0}, {"damping": -1.0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("ncl", Problem((3,), 2), **settings)
