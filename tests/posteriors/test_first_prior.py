"""Where the first prior is, how to get back to it, and priors of some experts alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from hvcl.core.errors import InputError
from hvcl.layers import (
    MoVEConv1d,
    MoVEConv2d,
    MoVEConvTranspose2d,
    MoVELayer,
    MoVELinear,
    MoVEStack,
    convert,
    loss_terms,
)
from hvcl.optim import VariationalAdam
from hvcl.posteriors import MeanFieldGaussian

SIGMAS = pytest.mark.parametrize("sigma", ["weight", "unit"])
TRANSFORMS = pytest.mark.parametrize("transform", ["exp", "softplus"])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
INPUTS, UNITS, EXPERTS = 4, 2, 3
HE = math.sqrt(2 / INPUTS)


def build(sigma="weight", transform="exp", dtype=torch.float64, inputs=INPUTS, **options):
    """Three experts with weights [4 inputs, 2 units], at their start."""
    torch.manual_seed(0)
    shape = (inputs, UNITS)
    return MeanFieldGaussian(
        EXPERTS, shape, UNITS, lambda units: units.unsqueeze(1), inputs, sigma=sigma, transform=transform, dtype=dtype, **options
    )


def move(posterior):
    with torch.no_grad():
        posterior.mean.add_(torch.randn_like(posterior.mean))
        posterior.rho.add_(0.3 * torch.randn_like(posterior.rho))


def state(posterior):
    return {name: value.clone() for name, value in posterior.state_dict().items()}


# -- at the start -----------------------------------------------------------------------------------------------------------


@SIGMAS
@TRANSFORMS
@TYPES
@pytest.mark.parametrize("initial_sigma", [0.1, 0.05, 0.33, 1.0])
@pytest.mark.parametrize("inputs", [1, 3, 7, 784])
def test_where_it_starts_a_posterior_costs_exactly_nothing(sigma, transform, dtype, initial_sigma, inputs):
    posterior = build(sigma, transform, dtype, inputs, initial_sigma=initial_sigma, first_prior="start")
    value = posterior.kl()
    assert value.tolist() == [0.0] * EXPERTS
    value.sum().backward()
    for parameter in (posterior.mean, posterior.rho):
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))
    assert posterior.mean.std() > 0  # drawn, not zero
    expected = torch.full_like(posterior.mean, initial_sigma * math.sqrt(2 / inputs))
    torch.testing.assert_close(posterior.sigma, expected, rtol=1e-5, atol=0)


@SIGMAS
@TRANSFORMS
@pytest.mark.parametrize("s", [0.01, 0.2, 1.5])
def test_with_a_sigma_of_its_own_the_prior_is_around_the_start(sigma, transform, s):
    """The means cost nothing: a weight costs log(s / sigma) + sigma^2 / (2 s^2) - 1/2."""
    posterior = build(sigma, transform, first_prior="start", prior_sigma=s, initial_sigma=0.3)
    start = 0.3 * HE
    each = math.log(s / start) + start**2 / (2 * s**2) - 0.5
    expected = torch.full((EXPERTS,), INPUTS * UNITS * each, dtype=torch.float64)
    torch.testing.assert_close(posterior.kl(), expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(posterior.prior_mean, posterior.mean)


@SIGMAS
@TRANSFORMS
@pytest.mark.parametrize("s", [None, 0.2, 1.5])
@pytest.mark.parametrize("options", [{}, {"first_prior": "zero"}], ids=["default", "zero"])
def test_a_prior_at_zero_costs_what_the_means_are_away(sigma, transform, s, options):
    posterior = build(sigma, transform, prior_sigma=s, initial_sigma=0.3, **options)
    wide = HE if s is None else s
    assert not posterior.prior_mean.any()
    expected = kl_divergence(
        Normal(posterior.mean, torch.full_like(posterior.mean, 0.3 * HE)), Normal(torch.zeros_like(posterior.mean), wide)
    )
    torch.testing.assert_close(posterior.kl(), expected.sum((1, 2)), rtol=1e-10, atol=1e-12)


@SIGMAS
@TRANSFORMS
def test_from_the_start_on_it_costs_what_was_learned(sigma, transform):
    posterior = build(sigma, transform, first_prior="start")
    start = Normal(posterior.mean.detach().clone(), posterior.sigma.detach().clone())
    torch.manual_seed(1)
    move(posterior)
    expected = kl_divergence(Normal(posterior.mean, posterior.sigma), start).sum((1, 2))
    assert expected.min() > 1
    torch.testing.assert_close(posterior.kl(), expected, rtol=1e-10, atol=1e-12)


# -- and back to it ---------------------------------------------------------------------------------------------------------


@SIGMAS
@TRANSFORMS
@TYPES
def test_starting_anew_draws_means_and_makes_them_the_prior(sigma, transform, dtype):
    posterior = build(sigma, transform, dtype, first_prior="start")
    before = state(posterior)
    move(posterior)
    posterior.reset_parameters()
    assert posterior.kl().tolist() == [0.0] * EXPERTS
    assert (posterior.mean - before["mean"]).abs().max() > 0.1
    assert torch.equal(posterior.rho, before["rho"])


@SIGMAS
@TRANSFORMS
@TYPES
def test_resetting_a_prior_at_the_start_makes_the_present_the_start(sigma, transform, dtype):
    posterior = build(sigma, transform, dtype, first_prior="start")
    torch.manual_seed(1)
    move(posterior)
    assert posterior.kl().min() > 1
    now = state(posterior)
    posterior.reset_prior()
    assert posterior.kl().tolist() == [0.0] * EXPERTS
    assert torch.equal(posterior.mean, now["mean"])
    assert torch.equal(posterior.rho, now["rho"])
    with torch.no_grad():
        posterior.mean.add_(1.0)  # it was copied
    assert posterior.kl().min() > 1
    assert not posterior.prior_mean.requires_grad


@SIGMAS
@pytest.mark.parametrize("first_prior", ["zero", "start"])
def test_resetting_a_prior_with_a_sigma_of_its_own_keeps_that(sigma, first_prior):
    posterior = build(sigma, prior_sigma=0.7, first_prior=first_prior)
    move(posterior)
    posterior.consolidate()
    posterior.reset_prior()
    expected = torch.zeros_like(posterior.mean) if first_prior == "zero" else posterior.mean
    assert torch.equal(posterior.prior_mean, expected)
    torch.testing.assert_close(posterior.prior_log_sigma, torch.full_like(posterior.prior_log_sigma, math.log(0.7)))


@SIGMAS
def test_resetting_a_prior_at_zero_gives_the_one_of_the_beginning(sigma):
    posterior = build(sigma)
    before = state(posterior)
    move(posterior)
    posterior.consolidate()
    assert not torch.equal(posterior.prior_mean, before["prior_mean"])
    posterior.reset_prior()
    for name in ("prior_mean", "prior_log_sigma"):
        assert torch.equal(getattr(posterior, name), before[name])


# -- of some experts --------------------------------------------------------------------------------------------------------


@SIGMAS
@TRANSFORMS
@pytest.mark.parametrize("experts", [[0], [1], [2], [2, 0], [], [0, 1, 2]], ids=str)
def test_consolidation_of_some_experts_leaves_the_others(sigma, transform, experts):
    posterior = build(sigma, transform)
    torch.manual_seed(1)
    move(posterior)
    before, kl = state(posterior), posterior.kl()
    posterior.consolidate(experts)
    for expert in range(EXPERTS):
        if expert in experts:
            assert posterior.kl()[expert].item() == 0.0
            assert torch.equal(posterior.prior_mean[expert], posterior.mean[expert])
            assert torch.equal(posterior.prior_log_sigma[expert], posterior.log_sigma[expert])
        else:
            assert posterior.kl()[expert].item() == kl[expert].item() > 1
            for name in ("prior_mean", "prior_log_sigma"):
                assert torch.equal(getattr(posterior, name)[expert], before[name][expert])
    for name in ("mean", "rho"):
        assert torch.equal(getattr(posterior, name), before[name])


@SIGMAS
def test_a_layer_consolidates_some_experts_and_its_gate(sigma):
    torch.manual_seed(0)
    layer, x = MoVELinear(4, 5, EXPERTS, sigma=sigma), torch.randn(9, 4)
    before = layer.posterior.kl()
    layer.consolidate([1])
    after = layer.posterior.kl()
    assert after[1].item() == 0.0
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    layer(x)
    assert layer.gate_kl().item() == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(layer.gate.prior_weight, layer.gate.weight)


@SIGMAS
@pytest.mark.parametrize("change", ["consolidate", "reset"])
def test_an_optimiser_sees_the_new_prior(sigma, change):
    """It remembers the experts' KLs from its last step: one whose prior has changed since is measured anew."""
    torch.manual_seed(0)
    layer, x = MoVELinear(4, 5, EXPERTS, sigma=sigma, usage="uniform", first_prior="start"), torch.randn(30, 4)
    adam = VariationalAdam(layer, lr=0.1)
    for _ in range(2):
        loss = layer(x).square().mean() + layer.expert_kl()
        adam.zero_grad()
        loss.backward()
        adam.step()
    before = layer.posterior.kl().detach()
    assert before.min() > 0.01
    if change == "consolidate":
        layer.consolidate([1])
        expected = before[0] + before[2]
    else:
        layer.posterior.reset_prior()
        expected = torch.zeros(())
    layer(x)
    torch.testing.assert_close(layer.expert_kl().detach(), expected, rtol=1e-4, atol=1e-6)


# -- layers -----------------------------------------------------------------------------------------------------------------

MAKE = {
    "linear": lambda **options: MoVELinear(6, 5, **options),
    "copies": lambda **options: MoVELinear(6, 5, copies=2, **options),
    "conv1d": lambda **options: MoVEConv1d(2, 5, 3, **options),
    "conv2d": lambda **options: MoVEConv2d(2, 5, 3, **options),
    "transpose": lambda **options: MoVEConvTranspose2d(2, 5, 3, stride=2, **options),
    "groups": lambda **options: MoVEConvTranspose2d(2, 4, 3, groups=2, **options),
}
SHAPES = {"linear": (6,), "copies": (6,), "conv1d": (2, 8)}


@pytest.mark.parametrize("kind", list(MAKE))
@SIGMAS
@TRANSFORMS
@TYPES
@pytest.mark.parametrize("usage", ["gate", "uniform"])
@pytest.mark.parametrize("optimised", [True, False], ids=["collected", "autograd"])
def test_a_layers_first_pass_costs_exactly_nothing(kind, sigma, transform, dtype, usage, optimised):
    torch.manual_seed(0)
    layer = MAKE[kind](experts=3, sigma=sigma, sigma_transform=transform, dtype=dtype, usage=usage, first_prior="start")
    adam = VariationalAdam(layer) if optimised else None
    assert (layer.posterior.collector.owner is not None) == (adam is not None and (sigma, transform) != ("weight", "softplus"))
    layer(torch.randn(7, *SHAPES.get(kind, (2, 6, 6)), dtype=dtype))
    # compiled passes have a logarithm of their own
    assert layer.expert_kl().item() == (pytest.approx(0.0, abs=1e-9) if optimised and transform == "softplus" else 0.0)


@SIGMAS
def test_a_stack_starts_at_its_priors(sigma):
    torch.manual_seed(0)
    stack = MoVEStack((4, 6, 2), 3, copies=2, sigma=sigma, first_prior="start")
    stack(torch.randn(9, 4))
    assert stack.expert_kl().item() == 0.0
    with torch.no_grad():
        stack.layers[0].posterior.mean[0].add_(1.0)
    stack(torch.randn(9, 4))
    assert stack.expert_kl().item() > 1


@pytest.mark.parametrize("kind", list(MAKE))
@pytest.mark.parametrize("first_prior", ["mean", "", None, "Zero"])
def test_an_unknown_first_prior_is_named(kind, first_prior):
    with pytest.raises(InputError, match="first_prior must be one of 'zero', 'start'"):
        MAKE[kind](first_prior=first_prior)


def test_a_layer_that_starts_anew_is_at_its_prior():
    torch.manual_seed(0)
    layer = MoVEConv2d(2, 5, 3, experts=2, first_prior="start")
    move(layer.posterior)
    layer.reset_parameters()
    assert layer.posterior.kl().tolist() == [0.0, 0.0]


# -- converted networks -----------------------------------------------------------------------------------------------------


def networks():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.Tanh(), nn.ConvTranspose2d(5, 3, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(243, 4)
    )


@SIGMAS
@TRANSFORMS
def test_a_converted_network_starts_at_its_priors(sigma, transform):
    """They are around its weights, and not around those that new layers would draw."""
    network, x = networks(), torch.randn(7, 2, 6, 6)
    ours = convert(network, 3, first_prior="start", sigma=sigma, sigma_transform=transform)
    torch.testing.assert_close(ours.eval()(x), network(x), rtol=1e-4, atol=1e-5)
    assert [term.evaluate().item() for term in loss_terms(ours) if term.name == "expert_kl"] == [0.0, 0.0, 0.0]
    for number, turned in ((0, False), (2, False), (5, True)):
        weight = network[number].weight
        expected = (weight.T if turned else weight).expand_as(ours[number].posterior.prior_mean)
        assert torch.equal(ours[number].posterior.prior_mean, expected)


@SIGMAS
def test_a_converted_network_with_a_prior_of_some_width_pays_for_its_sigmas_alone(sigma):
    ours = convert(networks().double(), 2, first_prior="start", prior_sigma=0.5, initial_sigma=0.2, sigma=sigma)
    for layer in ours:
        if isinstance(layer, MoVELayer):
            start = 0.2 * layer.posterior.he_std
            each = math.log(0.5 / start) + start**2 / (2 * 0.5**2) - 0.5
            expected = torch.full((2,), each * layer.posterior.mean[0].numel(), dtype=torch.float64)
            torch.testing.assert_close(layer.posterior.kl(), expected, rtol=1e-10, atol=1e-10)


def test_a_converted_network_has_its_prior_at_zero_unless_told():
    network = networks()
    ours = convert(network, 2)
    for number in (0, 2, 5):
        assert not ours[number].posterior.prior_mean.any()
        assert ours[number].posterior.kl().min() > 1
