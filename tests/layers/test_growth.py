"""One expert more: like another, or fresh."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from hvcl.core.errors import InputError
from hvcl.layers import MoVEConv2d, MoVEConvTranspose2d, MoVELinear, loss_terms
from hvcl.ops import MOST_EXPERTS
from hvcl.optim import VariationalAdam

from .agreement import moved

EXPERTS = 3
LR = 0.01
KINDS = pytest.mark.parametrize("kind", ["linear", "copies", "conv", "transpose"])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "plain"])
SIGMAS = pytest.mark.parametrize("sigma", ["weight", "unit"])
TRANSFORMS = pytest.mark.parametrize("transform", ["exp", "softplus"])
LIKES = pytest.mark.parametrize("like", [0, 1, 2])
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-12, "atol": 1e-12}}
POSTERIOR = ("mean", "rho", "prior_mean", "prior_log_sigma")
GATE = ("weight", "bias", "prior_weight", "prior_bias")


def fresh(kind="linear", experts=EXPERTS, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    options = {"experts": experts, "dtype": dtype, **options}
    if kind == "conv":
        return MoVEConv2d(2, 5, 3, padding=1, **options)
    if kind == "transpose":
        return MoVEConvTranspose2d(2, 5, 3, stride=2, **options)
    return MoVELinear(4, 5, copies=2 if kind == "copies" else 1, **options)


def build(*arguments, **options):
    """A layer away from its start, and one that answers without noise. Its gate is sure of some inputs, unsure of others."""
    layer = moved(fresh(*arguments, **options)).eval()
    if layer.gate is not None:
        seen = features(layer)
        with torch.no_grad():
            for weight, bias in ((layer.gate.weight, layer.gate.bias), (layer.gate.prior_weight, layer.gate.prior_bias)):
                weight.mul_(1.5 / math.sqrt(seen.shape[1])).div_(seen.std(0))
                bias.mul_(0.3).sub_(weight @ seen.mean(0))
    return layer


def features(layer):
    """What the gate reads of the batch."""
    dtype = layer.posterior.mean.dtype
    if isinstance(layer, MoVELinear):
        return batch(dtype=dtype)
    x = batch("conv", dtype)
    return torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)


def batch(kind="linear", dtype=torch.float64, rows=40):
    shape = (2, 4, 4) if kind in ("conv", "transpose") else (4,)
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def by_copy(layer, tensor):
    """``[C * M, ...]`` to ``[C, M, ...]``, a copy."""
    return tensor.detach().clone().unflatten(0, (layer.copies, -1))


def tensors(layer):
    """All numbers of a layer, by name, copy and expert."""
    found = {f"posterior.{name}": by_copy(layer, getattr(layer.posterior, name)) for name in POSTERIOR}
    if layer.bias is not None:
        found["bias"] = by_copy(layer, layer.bias)
    if layer.gate is not None:
        found |= {f"gate.{name}": by_copy(layer, getattr(layer.gate, name)) for name in GATE}
    return found


def probabilities(layer, x):
    layer(x)
    return layer.gate_log_probabilities.exp().detach()


# -- like another -----------------------------------------------------------------------------------------------------------


@KINDS
@TYPES
@LIKES
def test_the_gate_divides_the_probability_of_like(kind, dtype, like):
    layer, x = build(kind, dtype=dtype), batch(kind, dtype)
    before = probabilities(layer, x)
    gate_kl = layer.gate_kl().item()
    assert layer.add_expert(like) == EXPERTS
    after = probabilities(layer, x)
    assert after.shape[-1] == layer.experts == EXPERTS + 1
    others = [m for m in range(EXPERTS) if m != like]
    torch.testing.assert_close(after[..., others], before[..., others], **TOLERANCE[dtype])
    torch.testing.assert_close(after[..., like], before[..., like] / 2, **TOLERANCE[dtype])
    torch.testing.assert_close(after[..., -1], before[..., like] / 2, **TOLERANCE[dtype])
    assert gate_kl > 0.1
    assert layer.gate_kl().item() == pytest.approx(gate_kl, rel=1e-5 if dtype is torch.float32 else 1e-12)


@KINDS
@TYPES
@SIGMAS
@LIKES
def test_a_mixture_of_all_experts_answers_as_before(kind, dtype, sigma, like):
    layer, x = build(kind, dtype=dtype, sigma=sigma, top_k=EXPERTS), batch(kind, dtype)
    expected = layer(x)
    layer.add_expert(like)
    layer.top_k = layer.experts  # all of them, as before
    torch.testing.assert_close(layer(x), expected, **TOLERANCE[dtype])


@KINDS
@TYPES
@LIKES
def test_the_chosen_expert_answers_as_before(kind, dtype, like):
    """Straight-through: whoever is chosen answers with weight 1.

    An input changes its expert only where another had more than half of the probability of `like`, which is divided.
    """
    layer, x = build(kind, dtype=dtype, routing="straight-through"), batch(kind, dtype, rows=200)
    with torch.no_grad():  # a gate that is sure of most inputs
        layer.gate.weight.mul_(3.0)
        layer.gate.bias.mul_(3.0)
    expected, before = layer(x), probabilities(layer, x)
    layer.add_expert(like)
    answer, after = layer(x), probabilities(layer, x)
    divided = before.clone()
    divided[..., like] /= 2
    now = after.argmax(-1)
    assert torch.equal(torch.where(now == EXPERTS, like, now), divided.argmax(-1))
    same = before.argmax(-1) == divided.argmax(-1)
    chosen = before.argmax(-1) == like
    assert (same & chosen).any()
    assert (same & ~chosen).any()
    assert same[~chosen].all()
    assert not same.all()
    torch.testing.assert_close(answer[same], expected[same], **TOLERANCE[dtype])


@TYPES
def test_a_network_of_mixtures_answers_as_before(dtype):
    torch.manual_seed(0)
    options = {"experts": EXPERTS, "top_k": EXPERTS, "dtype": dtype}
    network = nn.Sequential(
        MoVEConv2d(2, 5, 3, **options), nn.Tanh(), MoVEConvTranspose2d(5, 2, 3, **options), nn.Tanh(), nn.Flatten(),
        MoVELinear(32, 7, **options), nn.Tanh(), MoVELinear(7, 3, **options),
    )  # fmt: skip
    network, x = moved(network).eval(), batch("conv", dtype)
    expected = network(x)
    for number, layer in enumerate([network[0], network[2], network[5], network[7]]):
        layer.add_expert(like=number % EXPERTS)
        layer.top_k = layer.experts
    torch.testing.assert_close(network(x), expected, **TOLERANCE[dtype])


@KINDS
@SIGMAS
@TRANSFORMS
@LIKES
def test_the_new_expert_is_as_like_and_has_it_as_its_prior(kind, sigma, transform, like):
    layer = build(kind, sigma=sigma, sigma_transform=transform)
    before, kl = tensors(layer), by_copy(layer, layer.posterior.kl())
    log_sigma = by_copy(layer, layer.posterior.log_sigma)[:, like]
    layer.add_expert(like)
    after = tensors(layer)
    for name in ("posterior.mean", "posterior.rho", "bias"):
        assert torch.equal(after[name][:, -1], before[name][:, like]), name
    assert torch.equal(after["posterior.prior_mean"][:, -1], before["posterior.mean"][:, like])
    torch.testing.assert_close(after["posterior.prior_log_sigma"][:, -1], log_sigma, rtol=1e-14, atol=1e-14)
    now = by_copy(layer, layer.posterior.kl())
    assert now[:, -1].abs().max() <= (0.0 if transform == "exp" else 1e-20)  # a logarithm may differ in its last bit
    torch.testing.assert_close(now[:, :-1], kl, rtol=1e-12, atol=0)
    for name, old in before.items():
        if not name.startswith("gate"):
            assert torch.equal(after[name][:, :EXPERTS], old), name


@TYPES
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_twins_are_two_experts_for_the_diversity(kind, dtype):
    """Their kernel is singular but for its jitter: the term and its gradient are finite, and the width is measured anew."""
    layer = build(kind, dtype=dtype).train()
    layer.diversity()
    assert layer.kernel_width.item() > 0
    layer.add_expert(like=1)
    assert layer.kernel_width.item() == 0
    value = layer.diversity()
    value.backward()
    again = fresh(kind, EXPERTS + 1, dtype, seed=1)
    again.load_state_dict(layer.state_dict())
    again.kernel_width.zero_()
    assert value.item() == pytest.approx(again.diversity().item(), rel=1e-5)
    assert layer.posterior.mean.grad.isfinite().all()
    assert layer.posterior.rho.grad.isfinite().all()


def test_a_kernel_width_of_ones_own_stays():
    layer = build(kernel_width=0.7)
    layer.add_expert(like=0)
    assert layer.kernel_width.tolist() == [0.7]


# -- afresh -----------------------------------------------------------------------------------------------------------------


@KINDS
@SIGMAS
@TRANSFORMS
def test_a_fresh_expert_is_that_of_a_new_layer(kind, sigma, transform):
    layer = build(kind, sigma=sigma, sigma_transform=transform, initial_sigma=0.2)
    before = tensors(layer)
    torch.manual_seed(5)
    assert layer.add_expert() == EXPERTS
    after = tensors(layer)
    he = layer.posterior.he_std
    for name, old in before.items():
        assert torch.equal(after[name][:, :EXPERTS], old), name
    mean = after["posterior.mean"]
    assert (mean[:, -1:] - mean[:, :-1]).abs().flatten(2).amax(2).min() > 0.1 * he
    sigmas = by_copy(layer, layer.posterior.sigma)[:, -1]
    torch.testing.assert_close(sigmas, torch.full_like(sigmas, 0.2 * he), rtol=1e-12, atol=0)
    assert not after["posterior.prior_mean"][:, -1].any()
    log_s = after["posterior.prior_log_sigma"][:, -1]
    torch.testing.assert_close(log_s, torch.full_like(log_s, math.log(he)), rtol=1e-12, atol=0)
    assert not after["bias"][:, -1].any()
    formula = math.log(1 / 0.2) + (0.2**2 + (mean[:, -1] / he) ** 2) / 2 - 0.5
    kl = by_copy(layer, layer.posterior.kl())[:, -1]
    torch.testing.assert_close(kl, formula.flatten(1).sum(1), rtol=1e-10, atol=0)
    assert after["gate.weight"][:, -1].any()
    assert not any(after[f"gate.{name}"][:, -1].any() for name in ("bias", "prior_weight", "prior_bias"))


def test_fresh_experts_of_copies_are_draws_of_their_own():
    layer = build("copies")
    layer.add_expert()
    first, second = by_copy(layer, layer.posterior.mean)[:, -1]
    assert (first - second).abs().max() > 0.1


def test_fresh_draws_follow_the_seed():
    layers = [build() for _ in range(3)]
    for layer, seed in zip(layers, (1, 1, 2), strict=True):
        torch.manual_seed(seed)
        layer.add_expert()
    first, again, other = (layer.posterior.mean for layer in layers)
    assert torch.equal(first, again)
    assert not torch.equal(first[-1], other[-1])


@pytest.mark.parametrize(
    ("make", "variance"),
    [
        (lambda: MoVELinear(200, 60), 2 / 200),
        (lambda: MoVEConv2d(40, 60, 3), 2 / 360),
        (lambda: MoVEConvTranspose2d(40, 60, 3, stride=2), 2 / 90),
    ],
    ids=["linear", "conv", "transpose"],
)
def test_fresh_means_are_he_draws(make, variance):
    """At least 12,000 draws: the error of their variance is 1.3 %, allowed are 6 %."""
    layer = make()
    torch.manual_seed(3)
    layer.add_expert()
    assert layer.posterior.mean[-1].var().item() == pytest.approx(variance, rel=0.06)


@SIGMAS
def test_a_fresh_expert_has_the_layers_own_first_prior(sigma):
    layer = build(prior_sigma=0.7, initial_sigma=0.3, sigma=sigma)
    layer.add_expert()
    posterior = layer.posterior
    q = Normal(posterior.mean[-1], posterior.sigma[-1])
    expected = kl_divergence(q, Normal(torch.zeros_like(q.mean), 0.7)).sum()
    torch.testing.assert_close(posterior.kl()[-1], expected, rtol=1e-10, atol=0)


@SIGMAS
@TRANSFORMS
@pytest.mark.parametrize("inputs", [3, 21, 28, 784])
def test_a_fresh_expert_whose_prior_is_its_start_costs_nothing(sigma, transform, inputs):
    """But for the last bit of a logarithm. A prior at zero would cost a nat a weight."""
    torch.manual_seed(0)
    layer = moved(MoVELinear(inputs, 5, 2, sigma=sigma, sigma_transform=transform, first_prior="start", dtype=torch.float64))
    kl = layer.posterior.kl()
    layer.add_expert()
    now = layer.posterior.kl()
    assert abs(now[-1].item()) < 1e-20
    assert torch.equal(layer.posterior.prior_mean[-1], layer.posterior.mean[-1])
    torch.testing.assert_close(now[:-1], kl, rtol=1e-12, atol=0)


@KINDS
@TYPES
def test_a_fresh_expert_leaves_the_odds_among_the_others(kind, dtype):
    layer, x = build(kind, dtype=dtype), batch(kind, dtype)
    before = probabilities(layer, x)
    layer.add_expert()
    after = probabilities(layer, x)
    assert after[..., -1].min() > 0
    remaining = after[..., :-1] / after[..., :-1].sum(-1, keepdim=True)
    torch.testing.assert_close(remaining, before, rtol=1e-4, atol=1e-5)


# -- from one expert to two -------------------------------------------------------------------------------------------------


@KINDS
@TYPES
@SIGMAS
def test_the_second_expert_shares_half_and_half(kind, dtype, sigma):
    layer = build(kind, experts=1, dtype=dtype, sigma=sigma, routing="straight-through")
    x = batch(kind, dtype)
    expected, mean = layer(x), by_copy(layer, layer.posterior.mean)
    assert layer.add_expert(like=0) == 1
    torch.testing.assert_close(layer(x), expected, **TOLERANCE[dtype])
    torch.testing.assert_close(probabilities(layer, x), torch.full_like(probabilities(layer, x), 0.5))
    assert layer.gate_kl().item() == pytest.approx(0.0, abs=1e-6)
    assert layer.conditional_entropy().item() == pytest.approx(layer.copies * math.log(2), rel=1e-5)
    assert torch.equal(by_copy(layer, layer.posterior.mean), mean.expand(-1, 2, *mean.shape[2:]))
    layer.top_k = 2
    assert set(layer.terms()) == {"expert_kl", "gate_kl", "conditional_entropy", "marginal_entropy", "diversity"}


@KINDS
@TYPES
def test_two_halves_mixed_are_the_one_before(kind, dtype):
    layer, x = build(kind, experts=1, dtype=dtype), batch(kind, dtype)
    expected = layer(x)
    layer.add_expert(like=0)
    layer.top_k = 2
    torch.testing.assert_close(layer(x), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["linear", "copies"])
def test_a_fresh_second_expert_gets_some_of_the_inputs(kind):
    layer, x = build(kind, experts=1), batch(kind)
    torch.manual_seed(0)
    layer.add_expert()
    assert layer.gate.weight.dtype == torch.float64
    chosen = probabilities(layer, x).argmax(-1)
    assert set(chosen.flatten().tolist()) == {0, 1}
    assert layer.gate_kl().item() > 0  # its prior is uniform


def test_growing_again_and_again():
    layer, x = build(experts=1), batch()
    expected = layer(x)
    for number in range(1, 6):
        assert layer.add_expert(like=number // 2) == number
    layer.top_k = layer.experts
    assert (layer.experts, layer.posterior.experts, len(layer.bias), len(layer.gate.weight)) == (6, 6, 6, 6)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert "experts=6" in repr(layer)


def test_more_experts_than_compiled_gates_take():
    layer, x = build(experts=MOST_EXPERTS, dtype=torch.float32, top_k=3), batch(dtype=torch.float32)
    layer(x)
    layer.add_expert(like=0)
    plain = copy.deepcopy(layer).double()
    torch.testing.assert_close(layer(x).double(), plain(x.double()), rtol=1e-4, atol=1e-4)


# -- what a layer is ----------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("like", [None, 1])
def test_a_layer_without_biases_has_none(kind, like):
    layer, x = build(kind, bias=False, top_k=EXPERTS), batch(kind)
    expected = layer(x)
    layer.add_expert(like)
    assert layer.bias is None
    if like is not None:
        layer.top_k = layer.experts
        torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize("like", [None, 0])
@KINDS
def test_the_type_stays(kind, like, experts, dtype):
    layer = build(kind, experts=experts, dtype=dtype)
    layer.add_expert(like)
    assert {tensor.dtype for tensor in layer.state_dict().values()} == {dtype}
    assert layer(batch(kind, dtype)).dtype == dtype


@pytest.mark.parametrize("like", [None, 0])
@pytest.mark.parametrize("part", ["posterior.mean", "posterior.rho", "bias"])
def test_what_is_frozen_stays_frozen(part, like):
    layer = build()
    layer.get_parameter(part).requires_grad_(False)
    layer.add_expert(like)
    assert [name for name, parameter in layer.named_parameters() if not parameter.requires_grad] == [part]
    assert not any(buffer.requires_grad for buffer in layer.buffers())


@pytest.mark.parametrize("like", [None, 0])
def test_a_frozen_gate_stays_frozen(like):
    layer = build()
    layer.gate.requires_grad_(False)
    layer.add_expert(like)
    assert not any(parameter.requires_grad for parameter in layer.gate.parameters())


@KINDS
@TYPES
@pytest.mark.parametrize("like", [None, 2])
def test_its_state_is_that_of_a_layer_built_with_as_many(kind, dtype, like):
    layer, x = build(kind, dtype=dtype), batch(kind, dtype)
    layer.add_expert(like)
    other = fresh(kind, EXPERTS + 1, dtype, seed=7).eval()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    theirs = {term.name: term.evaluate().item() for term in loss_terms(other)}
    assert {term.name: term.evaluate().item() for term in loss_terms(layer)} == theirs
    layer.load_state_dict(fresh(kind, EXPERTS + 1, dtype, seed=8).state_dict())
    assert not torch.equal(other(x), layer(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        fresh(kind, EXPERTS, dtype).load_state_dict(layer.state_dict())


@KINDS
@TYPES
def test_a_copy_grows_alone(kind, dtype):
    layer, x = build(kind, dtype=dtype), batch(kind, dtype)
    expected = layer(x)
    grown = copy.deepcopy(layer)
    grown.add_expert(like=1)
    assert layer.experts == EXPERTS
    assert torch.equal(layer(x), expected)
    again = copy.deepcopy(grown)
    assert torch.equal(again(x), grown(x))
    with torch.no_grad():
        again.posterior.mean.add_(1.0)
    assert not torch.equal(again(x), grown(x))


def test_terms_of_the_last_pass_are_forgotten():
    layer = build()
    layer(batch())
    layer.add_expert(like=0)
    assert layer.gate_log_probabilities is None
    with pytest.raises(InputError, match="has not seen a batch"):
        layer.gate_kl()


@pytest.mark.parametrize("like", [-1, EXPERTS, -EXPERTS, 100])
@KINDS
def test_a_like_that_there_is_not_is_refused(kind, like):
    layer, x = build(kind), batch(kind)
    before, expected = copy.deepcopy(layer.state_dict()), layer(x)
    with pytest.raises(InputError, match=f"from 0 to {EXPERTS - 1}, got {like}"):
        layer.add_expert(like)
    assert layer.experts == EXPERTS
    assert all(torch.equal(a, b) for a, b in zip(layer.state_dict().values(), before.values(), strict=True))
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("like", [1.0, 0.5, True, "0"])
def test_a_like_that_is_no_number_of_an_expert_is_refused(like):
    with pytest.raises(InputError):
        build().add_expert(like)


# -- learning on --------------------------------------------------------------------------------------------------------------


def steps(layer, optimiser, kind, dtype, count=3, kl=0.01):
    """Some steps on a loss of which the experts' KL is a part; the numbers of the experts that had examples."""
    used, x = set(), batch(kind, dtype)
    offset = layer.experts * torch.arange(layer.copies).view(-1, 1) if layer.copies > 1 else 0
    layer.train()
    for step in range(count):
        torch.manual_seed(step)
        loss = layer(x).square().mean()
        used |= set((layer.gate_log_probabilities.argmax(-1) + offset).flatten().tolist())
        optimiser.zero_grad()
        (loss + kl * layer.expert_kl()).backward()
        optimiser.step()
    return used


@KINDS
@TYPES
@pytest.mark.parametrize("like", [None, 1])
def test_a_new_optimiser_moves_only_experts_that_saw_examples(kind, dtype, like):
    """The new expert and the first have all examples, in every copy."""
    layer = build(kind, dtype=dtype)
    old = VariationalAdam(layer, lr=LR)
    steps(layer, old, kind, dtype, count=2)
    layer.add_expert(like)
    with torch.no_grad():
        weight, bias = (tensor.unflatten(0, (layer.copies, -1)) for tensor in (layer.gate.weight, layer.gate.bias))
        weight[:, 3] = -weight[:, 0]
        bias[:, 0] = -weight[:, 0] @ features(layer).mean(0)
        bias[:, 3] = -bias[:, 0]
        bias[:, 1:3] = -300.0
    start = copy.deepcopy(layer)
    used = steps(layer, VariationalAdam(layer, lr=LR), kind, dtype)
    assert {number % 4 for number in used} == {0, 3}
    for name in ("mean", "rho"):
        now, before = getattr(layer.posterior, name), getattr(start.posterior, name)
        for expert in range(4 * layer.copies):
            if expert in used:
                assert (now[expert] - before[expert]).abs().mean() > LR, (name, expert)
            else:
                assert torch.equal(now[expert], before[expert]), (name, expert)


@pytest.mark.parametrize("transform", ["exp", "softplus"])
@SIGMAS
@pytest.mark.parametrize("kind", ["linear", "copies", "conv"])
@pytest.mark.parametrize("experts", [1, EXPERTS])
def test_a_new_optimiser_steps_as_torchs(kind, sigma, transform, experts):
    """After some steps with one of before; every parameter to a fiftieth of a step (Adam divides gradients by their size)."""
    layer = build(kind, experts, torch.float32, sigma=sigma, sigma_transform=transform, initial_sigma=0.5)
    if experts > 1:
        steps(layer, VariationalAdam(layer, lr=LR), kind, torch.float32, count=2)
    layer.add_expert(like=0)
    moved(layer)  # an expert at its prior has gradients of zero, and rounding makes steps of them
    other, start = copy.deepcopy(layer), copy.deepcopy(layer)
    steps(layer, VariationalAdam(layer, lr=LR, lazy=False), kind, torch.float32)
    steps(other, torch.optim.Adam(other.parameters(), lr=LR), kind, torch.float32)
    for (name, mine), its, before in zip(layer.named_parameters(), other.parameters(), start.parameters(), strict=True):
        assert (its - before).abs().max() > LR / 2, name
        assert (mine - its).abs().max() < 0.02 * LR, name


@pytest.mark.parametrize(
    ("sigma", "transform"),
    [
        ("weight", "exp"),
        ("unit", "exp"),
        ("unit", "softplus"),
        ("weight", "softplus"),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
@KINDS
def test_an_optimiser_of_before_refuses_to_step(kind, before, sigma, transform):
    layer = build(kind, dtype=torch.float32, sigma=sigma, sigma_transform=transform)
    old = VariationalAdam(layer, lr=LR)
    steps(layer, old, kind, torch.float32, count=before)
    layer.add_expert(like=0)
    with pytest.raises(InputError, match="has grown since this optimiser was made"):
        steps(layer, old, kind, torch.float32)


def test_gradients_are_collected_for_the_new_optimiser_alone():
    layer = build(dtype=torch.float32)
    old = VariationalAdam(layer, lr=LR)
    assert "gradients=collected" in repr(layer)
    layer.add_expert(like=0)
    assert "gradients=collected" not in repr(layer)
    new = VariationalAdam(layer, lr=LR)
    assert layer.posterior.collector.owner is new
    del old
    assert layer.posterior.collector.owner is new
