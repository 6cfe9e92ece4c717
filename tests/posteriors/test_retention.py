"""What was learned is held more firmly than Bayes' rule has it: lambda of generalised VCL."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from hvcl.core.errors import InputError
from hvcl.layers import MoVELinear
from hvcl.posteriors import MeanFieldGaussian

SIGMAS = pytest.mark.parametrize("sigma", ["weight", "unit"])


def build(sigma: str = "weight", dtype: torch.dtype = torch.float64, **options) -> MeanFieldGaussian:
    """Two experts with weights [3 inputs, 2 units] that have moved."""
    torch.manual_seed(0)
    made = MeanFieldGaussian(2, (3, 2), 2, lambda units: units.unsqueeze(1), 3, sigma=sigma, dtype=dtype, **options)
    with torch.no_grad():
        made.mean.add_(torch.randn_like(made.mean))
        made.rho.add_(0.3 * torch.randn_like(made.rho))
    return made


def exact(posterior: MeanFieldGaussian) -> torch.Tensor:
    prior_sigma = posterior.prior_log_sigma.exp()
    if posterior.sigma_kind == "unit":
        prior_sigma = posterior.expand_units(prior_sigma).expand_as(posterior.mean)
    both = Normal(posterior.mean, posterior.sigma), Normal(posterior.prior_mean, prior_sigma)
    return kl_divergence(*both).flatten(1).sum(1)


def test_one_weight_by_hand():
    """First prior N(0, 1), prior N(0, 1/4) now: 3 of its precision of 4 were gained, and count ten times; 1 + 30 = 31."""
    made = MeanFieldGaussian(
        1, (1, 1), 1, lambda units: units.unsqueeze(1), 1, prior_sigma=1.0, retention=10.0, dtype=torch.float64
    )
    with torch.no_grad():
        made.prior_log_sigma.fill_(math.log(0.5))
        made.rho.fill_(math.log(0.5))
        made.mean.fill_(0.2)
    assert made.pull().item() == pytest.approx(31.0, rel=1e-4)
    assert made.kl().item() == pytest.approx(31 * 0.2**2 / 2, rel=1e-4)


@SIGMAS
def test_one_is_the_kl(sigma):
    made = build(sigma, retention=1.0)
    made.consolidate()
    with torch.no_grad():
        made.mean.add_(0.1)
    torch.testing.assert_close(made.kl(), exact(made))


@SIGMAS
@pytest.mark.parametrize("first_prior", ["zero", "start"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_prior_holds_nothing_that_was_learned(sigma, first_prior, dtype):
    """Whatever the factor, also where float32 rounds: the first task is learned as ever."""
    made, plain = (build(sigma, dtype, first_prior=first_prior, retention=factor) for factor in (1e7, 1.0))
    torch.testing.assert_close(made.kl(), plain.kl(), rtol=1e-6, atol=0)


def test_priors_wider_than_the_first_hold_as_they_are():
    made = build(retention=100.0)
    with torch.no_grad():
        made.prior_log_sigma.fill_(math.log(3 * made.first_prior_sigma))
    torch.testing.assert_close(made.kl(), exact(made))


@SIGMAS
def test_zero_forgets_what_was_learned_of_the_means(sigma):
    """With lambda 0 the means are held as by the first prior, wherever they are now."""
    made = build(sigma, initial_sigma=0.1, retention=0.0)
    made.consolidate()
    assert torch.exp(-2 * made.prior_log_sigma).min() > made.first_precision
    torch.testing.assert_close(made.pull(), torch.full_like(made.rho, made.first_precision))


@SIGMAS
def test_the_gradient_in_closed_form_is_that_of_autograd(sigma):
    made = build(sigma, retention=50.0)
    made.consolidate()
    with torch.no_grad():
        made.mean.add_(torch.randn_like(made.mean))
        made.rho.add_(0.1)
    weights = torch.tensor([0.7, 2.0], dtype=torch.float64)
    (weights * made.kl()).sum().backward()
    of_mean, of_rho = made.kl_gradient(weights)
    torch.testing.assert_close(made.mean.grad, of_mean)
    if of_rho is not None:
        torch.testing.assert_close(made.rho.grad, of_rho)


def test_experts_that_are_added_are_held_alike():
    layer = MoVELinear(3, 2, experts=2, retention=7.0)
    layer.add_expert(like=0)
    assert layer.posterior.retention == 7.0
    layer.consolidate()
    with torch.no_grad():
        layer.posterior.mean.add_(0.1)
    gained = torch.exp(-2 * layer.posterior.prior_log_sigma) - layer.posterior.first_precision
    expected = (0.1**2 / 2) * (torch.exp(-2 * layer.posterior.prior_log_sigma) + 6 * gained)
    torch.testing.assert_close(layer.posterior.kl(), expected.flatten(1).sum(1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("retention", [-1.0, math.inf, math.nan])
def test_what_is_no_factor_is_refused(retention):
    with pytest.raises(InputError, match="retention must be at least 0"):
        MoVELinear(3, 2, retention=retention)
