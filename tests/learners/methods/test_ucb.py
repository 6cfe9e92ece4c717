"""Uncertainty-guided continual learning with Bayesian neural networks."""

import math

import pytest
import torch
from torch import distributions as D

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create

PROBLEM = Problem((3,), 2, task_examples=(20, 20))


def batch(seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(20, 3, generator=random), torch.arange(20) % 2


def test_means_move_at_rates_of_their_own_after_the_first_task():
    learner = create("ucb", PROBLEM, seed=1, hidden=(4,), learning_rate=0.5)
    layer = learner.posteriors()["head.layer"]
    with torch.no_grad():
        layer.rho.copy_(torch.linspace(-3, 0, layer.rho.numel()).view_as(layer.rho))
    for rate in (1.0, layer.sigma.detach().clone()):
        mean, rho = layer.mean.detach().clone(), layer.rho.detach().clone()
        with learner.random.active(keep=False):  # the same draws as in the step
            loss = learner.loss(*batch(), None)["loss"]
            of_mean, of_rho = torch.autograd.grad(loss, [layer.mean, layer.rho])
        learner.observe(*batch())
        torch.testing.assert_close(layer.mean, mean - 0.5 * rate * of_mean, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(layer.rho, rho - 0.5 * of_rho, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            layer.rho.copy_(rho)
        learner.end_task()
    assert set(learner.rates) == {"dense0.layer", "dense0.bias", "head.layer", "head.bias"}


def test_rates_are_those_of_the_boundary():
    learner = create("ucb", PROBLEM, seed=1, hidden=(4,))
    learner.end_task()
    before = {name: rate.clone() for name, rate in learner.rates.items()}
    for _ in range(5):
        learner.observe(*batch())
    assert all(torch.equal(learner.rates[name], rate) for name, rate in before.items())
    learner.end_task()
    assert not all(torch.equal(learner.rates[name], rate) for name, rate in before.items())


def test_divergence_from_the_mixture_is_right_on_average():
    learner = create("ucb", PROBLEM, seed=1, hidden=(4,), prior_narrow=0.2)
    posterior = learner.posteriors()["head.bias"]
    with torch.no_grad():
        posterior.mean.copy_(torch.tensor([[[0.5, -0.1]]]))
        posterior.rho.fill_(math.log(0.3))
    with learner.random.active(keep=False):
        estimate = torch.stack([learner.divergence(posterior) for _ in range(4000)]).mean().item()
    w = torch.linspace(-4, 4, 20001, dtype=torch.float64)
    prior = 0.25 * D.Normal(0.0, 1.0).log_prob(w).exp() + 0.75 * D.Normal(0.0, 0.2).log_prob(w).exp()
    exact = 0.0
    for mean in (0.5, -0.1):
        log_q = D.Normal(mean, 0.3).log_prob(w)
        exact += torch.trapezoid(log_q.exp() * (log_q - prior.log()), w).item()
    assert estimate == pytest.approx(exact, rel=0.1)


def test_predicts_with_the_means():
    learner = create("ucb", PROBLEM, seed=1, hidden=(4,))
    x = batch()[0]
    assert torch.equal(learner.predict(x), learner.predict(x))


@pytest.mark.parametrize("settings", [{"prior_mixture": 1.0}, {"prior_narrow": 0.0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("ucb", PROBLEM, **settings)
