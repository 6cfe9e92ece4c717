from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from hvcl.core.errors import InputError
from hvcl.posteriors import MeanFieldGaussian

SIGMAS = pytest.mark.parametrize("sigma", ["weight", "unit"])
TRANSFORMS = pytest.mark.parametrize("transform", ["exp", "softplus"])


def build(sigma="weight", transform="exp", dtype=torch.float64, **options):
    """Three experts with weights [4 inputs, 2 units], away from their start."""
    torch.manual_seed(0)
    posterior = MeanFieldGaussian(
        3, (4, 2), 2, lambda units: units.unsqueeze(1), 4, sigma=sigma, transform=transform, dtype=dtype, **options
    )
    with torch.no_grad():
        posterior.rho.normal_(-1.0, 0.5)
        posterior.prior_mean.normal_()
        posterior.prior_log_sigma.normal_(-0.5, 0.5)
    return posterior


def expanded(values):
    """[M, units] or [M, 4, units] to [M, 4, units]."""
    return values if values.dim() == 3 else torch.stack([values] * 4, 1)


def sigma_of(rho, transform):
    return rho.exp() if transform == "exp" else (1 + rho.exp()).log()


@SIGMAS
@TRANSFORMS
def test_kl_and_its_gradient_agree_with_torch_distributions(sigma, transform):
    posterior = build(sigma, transform)
    mean, rho = (p.detach().clone().requires_grad_() for p in (posterior.mean, posterior.rho))
    q = Normal(mean, expanded(sigma_of(rho, transform)))
    p = Normal(posterior.prior_mean, expanded(posterior.prior_log_sigma.exp()))
    expected = kl_divergence(q, p).sum((1, 2))
    value = posterior.kl()
    assert value.shape == (3,)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    cotangent = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    mine = torch.autograd.grad(value, [posterior.mean, posterior.rho], cotangent)
    theirs = torch.autograd.grad(expected, [mean, rho], cotangent)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_kl_agrees_with_a_monte_carlo_estimate():
    """E_q[log q - log p] from 20,000 draws, |z| < 4: independent of any closed form."""
    posterior = build()
    torch.manual_seed(1)
    q = Normal(posterior.mean.detach(), posterior.sigma.detach())
    p = Normal(posterior.prior_mean, posterior.prior_log_sigma.exp())
    theta = q.sample((20_000,))
    ratio = (q.log_prob(theta) - p.log_prob(theta)).sum((2, 3))
    z = (ratio.mean(0) - posterior.kl().detach()) / (ratio.std(0) / math.sqrt(20_000))
    assert z.abs().max() < 4


@SIGMAS
@TRANSFORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_consolidated_kl_and_its_gradient_are_exactly_zero(sigma, transform, dtype):
    posterior = build(sigma, transform, dtype)
    posterior.consolidate()
    value = posterior.kl()
    assert value.tolist() == [0.0, 0.0, 0.0]
    value.sum().backward()
    for parameter in (posterior.mean, posterior.rho):
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


@SIGMAS
def test_a_small_move_is_resolved_in_float32(sigma):
    """KL of a relative change d of sigma is d^2 for small d; computed as log + ratio - 1/2 it would drown in rounding."""
    posterior = build(sigma, dtype=torch.float32)
    posterior.consolidate()
    with torch.no_grad():
        posterior.mean.copy_(posterior.prior_mean)
        posterior.rho.copy_(posterior.prior_log_sigma + 1e-2)
    step = (posterior.rho - posterior.prior_log_sigma).double()
    expected = expanded(torch.expm1(2 * step) / 2 - step).sum((1, 2))
    torch.testing.assert_close(posterior.kl().double(), expected, rtol=1e-3, atol=0)


def test_consolidate_copies():
    posterior = build()
    posterior.consolidate()
    before = posterior.prior_mean.clone()
    with torch.no_grad():
        posterior.mean.add_(1.0)
        posterior.rho.add_(1.0)
    assert torch.equal(posterior.prior_mean, before)
    assert (posterior.kl() > 0).all()
    assert not posterior.prior_mean.requires_grad


@SIGMAS
@TRANSFORMS
def test_sigma_is_positive_and_invertible(sigma, transform):
    posterior = build(sigma, transform)
    assert posterior.sigma.shape == posterior.mean.shape
    torch.testing.assert_close(posterior.sigma, expanded(sigma_of(posterior.rho, transform)))
    torch.testing.assert_close(expanded(posterior.log_sigma), posterior.sigma.log())
    assert posterior.rho.shape == ((3, 4, 2) if sigma == "weight" else (3, 2))
    assert posterior.experts == 3


@TRANSFORMS
def test_starts_as_documented(transform):
    posterior = build(transform=transform, initial_sigma=0.2, prior_sigma=1.3)
    posterior.reset_parameters()
    torch.testing.assert_close(posterior.sigma, torch.full_like(posterior.mean, 0.2 * math.sqrt(2 / 4)))
    torch.testing.assert_close(posterior.prior_log_sigma, torch.full_like(posterior.mean, math.log(1.3)))
    assert torch.equal(posterior.prior_mean, torch.zeros_like(posterior.mean))


@pytest.mark.parametrize("name", ["initial_sigma", "prior_sigma"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_bad_sigma_is_named(name, value):
    with pytest.raises(InputError, match=name):
        build(**{name: value})


@pytest.mark.parametrize(
    "transform",
    ["exp", "softplus"],
)
def test_a_vanishing_sigma_has_a_finite_kl(transform):
    """softplus(-110) is 0 in float32, but its logarithm is -110."""
    posterior = build(transform=transform, dtype=torch.float32)
    with torch.no_grad():
        posterior.rho.fill_(-110.0)
    value = posterior.kl()
    assert value.isfinite().all()
    value.sum().backward()
    assert posterior.rho.grad.isfinite().all()
