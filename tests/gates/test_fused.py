"""The compiled gate against the plain path in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from hvcl.gates import SoftmaxGate
from hvcl.gates.fused import fused_gate
from hvcl.kernels.library import _load
from hvcl.layers import MoVELinear, loss_terms
from hvcl.layers.dispatch import route

TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}
"""Float32 against float64: sums of up to 256 terms."""
EXPERTS = pytest.mark.parametrize("experts", [2, 5, 64])
BATCHES = pytest.mark.parametrize("batch", [1, 7, 256])
FEATURES = 19


@pytest.fixture(autouse=True)
def kernels():
    found = _load()
    if found is None:
        pytest.skip("no compiled kernels: there is no C compiler, or HVCL_NO_KERNELS is set")
    return found


def build(experts: int, scale: float = 1.0, seed: int = 0) -> SoftmaxGate:
    torch.manual_seed(seed)
    gate = SoftmaxGate(FEATURES, experts)
    with torch.no_grad():
        gate.weight.mul_(scale)
        gate.bias.normal_(0, 0.3)
        gate.prior_weight.normal_(0, 0.2)
        gate.prior_bias.normal_(0, 0.3)
    return gate


def inputs(batch: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, FEATURES, generator=torch.Generator().manual_seed(seed))


def plain(gate: SoftmaxGate, features: Tensor) -> dict[str, Tensor]:
    """Weights in slot order, usage and statistics by the definitions, with the gate's own float type."""
    log_p, prior = gate(features), gate.prior(features)
    p, usage = log_p.exp(), log_p.exp().mean(0)
    statistics = [(p * (log_p - prior)).sum(1).mean(), -(p * log_p).sum(1).mean(), torch.special.entr(usage).sum()]
    return {"weights": route(log_p, 1, "argmax", True).weights, "usage": usage, "statistics": torch.stack(statistics)}


def part(batch, name):
    """A part of a GateBatch as one tensor."""
    value = getattr(batch, name)
    return torch.stack(value) if isinstance(value, tuple) else value


@EXPERTS
@BATCHES
@pytest.mark.parametrize("scale", [0.3, 1.0, 6.0])
def test_agrees_with_the_plain_path(kernels, experts, batch, scale):
    gate, features = build(experts, scale), inputs(batch)
    double = copy.deepcopy(gate).double()
    log_p = double(features.double())
    margins = log_p.topk(2, 1).values
    assert (margins[:, 0] - margins[:, 1]).min() > 1e-5  # or float32 might choose another expert

    mine = fused_gate(gate, features, kernels)
    theirs = plain(double, features.double())
    torch.testing.assert_close(mine.log_probabilities.double(), log_p.detach(), rtol=1e-5, atol=1e-5)
    for name, value in theirs.items():
        torch.testing.assert_close(part(mine, name).double(), value, **TOLERANCE, msg=lambda m, name=name: f"{name}: {m}")
    chosen = log_p.argmax(1)
    assert mine.counts == torch.bincount(chosen, minlength=experts).tolist()
    assert torch.equal(mine.rows, chosen.argsort(stable=True))
    assert torch.equal(mine.slots[mine.rows], torch.arange(batch))
    plan = route(log_p, 1, "argmax", True)
    if plan.rows is not None:
        assert torch.equal(mine.rows, plan.rows)
        assert torch.equal(mine.slots, plan.slots)


@EXPERTS
@BATCHES
@pytest.mark.parametrize("of", [("weights", "usage", "statistics"), ("weights",), ("usage",), ("statistics",)], ids="+".join)
def test_gradients_agree_with_the_plain_path(kernels, experts, batch, of):
    """Every gradient to 1e-4 of its largest entry."""
    gate = build(experts)
    double = copy.deepcopy(gate).double()
    x, x_double = inputs(batch).requires_grad_(), inputs(batch).double().requires_grad_()
    mine, theirs = fused_gate(gate, x, kernels), plain(double, x_double)
    loss, expected = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    for seed, name in enumerate(of):
        cotangent = torch.randn(theirs[name].shape, generator=torch.Generator().manual_seed(seed))
        loss = loss + (part(mine, name) * cotangent).sum()
        expected = expected + (theirs[name] * cotangent).sum()
    loss.backward()
    expected.backward()
    for name, a, b in (
        ("features", x, x_double),
        ("weight", gate.weight, double.weight),
        ("bias", gate.bias, double.bias),
    ):
        bound = 1e-4 * b.grad.abs().max().item() + 1e-7
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=0, atol=bound, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("index", [0, 1, 2])
def test_each_statistic_has_its_own_gradient(kernels, index):
    gate = build(5)
    double = copy.deepcopy(gate).double()
    x, x_double = inputs(7).requires_grad_(), inputs(7).double().requires_grad_()
    fused_gate(gate, x, kernels).statistics[index].backward()
    plain(double, x_double)["statistics"][index].backward()
    for a, b in ((x, x_double), (gate.weight, double.weight), (gate.bias, double.bias)):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-6)


def test_features_that_need_no_gradient(kernels):
    gate = build(5)
    mine = fused_gate(gate, inputs(7), kernels)
    (mine.weights.sum() + sum(mine.statistics)).backward()
    double = copy.deepcopy(gate).double()
    double.zero_grad()
    theirs = plain(double, inputs(7).double())
    (theirs["weights"].sum() + theirs["statistics"].sum()).backward()
    torch.testing.assert_close(gate.weight.grad.double(), double.weight.grad, rtol=1e-4, atol=1e-6)


@EXPERTS
@BATCHES
def test_a_gate_equal_to_its_prior_has_no_kl_at_all(kernels, experts, batch):
    gate = build(experts, scale=2.0)
    gate.consolidate()
    x = inputs(batch).requires_grad_()
    statistics = fused_gate(gate, x, kernels).statistics
    assert statistics[0].item() == 0
    statistics[0].backward()
    for gradient in (x.grad, gate.weight.grad, gate.bias.grad):
        assert (gradient == 0).all()


@EXPERTS
def test_probabilities_that_underflow(kernels, experts):
    """Logits hundreds apart: everything finite and as in float64."""
    gate = build(experts, scale=300.0)
    double = copy.deepcopy(gate).double()
    x, x_double = inputs(7).requires_grad_(), inputs(7).double().requires_grad_()
    mine, theirs = fused_gate(gate, x, kernels), plain(double, x_double)
    assert (mine.log_probabilities.exp() == 0).any()
    for name in ("weights", "usage", "statistics"):
        torch.testing.assert_close(part(mine, name).double(), theirs[name], rtol=1e-3, atol=1e-5)
    (mine.weights.sum() + sum(mine.statistics)).backward()
    for gradient in (x.grad, gate.weight.grad, gate.bias.grad):
        assert gradient.isfinite().all()


@EXPERTS
@BATCHES
def test_the_layer_uses_it_and_has_the_same_terms(experts, batch):
    """A float32 layer against itself in float64: output, terms and the gradient of their weighted sum to 1e-4 of the largest."""
    torch.manual_seed(0)
    layer = MoVELinear(FEATURES, 6, experts=experts, estimator="mean", kernel_width=2.0)
    with torch.no_grad():
        layer.gate.prior_weight.normal_(0, 0.2)
        layer.bias.normal_()
    double = copy.deepcopy(layer).double()
    x, x_double = inputs(batch).requires_grad_(), inputs(batch).double().requires_grad_()
    totals = []
    for module, batch_of in ((layer, x), (double, x_double)):
        answer = module(batch_of)
        terms = {term.name: term.evaluate() for term in loss_terms(module)}
        totals.append((answer, terms))
        (answer.square().mean() + sum(w * terms[n] for w, n in zip((1e-3, 1.0, 0.3, -0.5, 0.1), terms, strict=True))).backward()
    assert layer._trace.statistics is not None
    assert double._trace.statistics is None
    (answer, terms), (answer_double, terms_double) = totals
    torch.testing.assert_close(answer.double(), answer_double, rtol=1e-4, atol=1e-5)
    for name, value in terms.items():
        torch.testing.assert_close(value.double(), terms_double[name], rtol=1e-4, atol=1e-4, msg=name)
    pairs = {"x": (x, x_double)} | {
        n: (p, q) for (n, p), q in zip(layer.named_parameters(), double.parameters(), strict=True) if n != "posterior.rho"
    }
    for name, (a, b) in pairs.items():
        bound = 1e-4 * b.grad.abs().max().item() + 1e-7
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=0, atol=bound, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "plain"])
def test_an_expert_without_any_mass_leaves_the_gates_gradient_finite(dtype):
    layer = MoVELinear(FEATURES, 3, experts=2, dtype=dtype)
    with torch.no_grad():
        layer.gate.bias[1] = -1e4
    layer(inputs(7).to(dtype))
    layer.marginal_entropy().backward()
    assert layer.gate.weight.grad.isfinite().all()
