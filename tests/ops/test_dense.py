"""The compiled dense pass against the plain one in float64, with the same random numbers: answers, terms and all gradients."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from hvcl.layers import MoVELinear, MoVEStack, loss_terms
from hvcl.ops.dense import KEPT
from hvcl.optim import VariationalAdam
from tests.ops.same_noise import SameNoise

IN, OUT, ROWS = 7, 5, 70
KINDS = [("flipout", "weight"), ("flipout", "unit"), ("local", "weight"), ("local", "unit"), ("mean", "weight")]
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
"""Float32 against float64, sums of some hundred numbers of size one."""


def build(estimator: str, sigma: str, **options) -> MoVELinear:
    torch.manual_seed(0)
    layer = MoVELinear(IN, OUT, estimator=estimator, sigma=sigma, **options)
    with torch.no_grad():
        layer.posterior.rho.normal_(-1.0, 0.4)
        layer.posterior.prior_mean.normal_(0.0, 0.3)
        if layer.bias is not None:
            layer.bias.normal_()
        if layer.gate is not None:
            layer.gate.weight.normal_()
            layer.gate.bias.normal_()
            layer.gate.prior_weight.normal_(0.0, 0.5)
    return layer


def compare(layer: MoVELinear, noise: SameNoise, rows: int = ROWS, needs_x: bool = True) -> None:
    plain = copy.deepcopy(layer).double()
    shape = (rows, IN) if layer.copies == 1 else (layer.copies, rows, IN)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_(needs_x)
    theirs = x.detach().double().requires_grad_(needs_x)
    found = layer(x)
    noise.for_plain(plain, rows)
    wanted = plain(theirs)
    torch.testing.assert_close(found.double(), wanted, **TOLERANCE)
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    weights = {"expert_kl": 0.1, "gate_kl": 0.7, "conditional_entropy": -0.4, "marginal_entropy": 0.6, "diversity": 0.0}
    for module, answer in ((layer, found), (plain, wanted)):
        loss = (answer * towards.to(answer.dtype)).mean()
        for term in loss_terms(module):
            loss = loss + weights[term.name] * term.evaluate()
        loss.backward()
    for mine, its in zip(loss_terms(layer), loss_terms(plain), strict=True):
        torch.testing.assert_close(mine.evaluate().double(), its.evaluate(), **TOLERANCE)
    if needs_x:
        torch.testing.assert_close(x.grad.double(), theirs.grad, **TOLERANCE)
    for (name, mine), its in zip(layer.named_parameters(), plain.parameters(), strict=True):
        if its.grad is None:
            assert mine.grad is None or not mine.grad.any(), name
        else:
            assert mine.grad is not None, name
            torch.testing.assert_close(mine.grad.double(), its.grad, **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("estimator", "sigma"), KINDS)
@pytest.mark.parametrize("routing", ["argmax", "straight-through", "sample"])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (2, 1), (4, 1), (4, 2), (3, 3)])
def test_every_kind(library, monkeypatch, estimator, sigma, routing, experts, top_k):
    layer = build(estimator, sigma, experts=experts, top_k=top_k, routing=routing)
    compare(layer, SameNoise(monkeypatch))


@pytest.mark.parametrize(("estimator", "sigma"), KINDS)
@pytest.mark.parametrize("options", [{"bias": False}, {"sigma_transform": "softplus"}, {"usage": "uniform"}], ids=str)
def test_options(library, monkeypatch, estimator, sigma, options):
    compare(build(estimator, sigma, experts=3, **options), SameNoise(monkeypatch))


@pytest.mark.parametrize(("estimator", "sigma"), [("local", "weight"), ("local", "unit"), ("mean", "unit")])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (3, 1), (3, 2)])
def test_copies(library, monkeypatch, estimator, sigma, experts, top_k):
    compare(build(estimator, sigma, experts=experts, top_k=top_k, copies=3), SameNoise(monkeypatch))


@pytest.mark.parametrize(("estimator", "sigma"), KINDS)
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 200])
def test_any_number_of_rows(library, monkeypatch, estimator, sigma, rows):
    compare(build(estimator, sigma, experts=3), SameNoise(monkeypatch), rows)


@pytest.mark.parametrize(("estimator", "sigma"), KINDS)
def test_inputs_that_need_no_gradient(library, monkeypatch, estimator, sigma):
    compare(build(estimator, sigma, experts=3), SameNoise(monkeypatch), needs_x=False)


@pytest.mark.parametrize(("estimator", "sigma"), KINDS)
def test_one_expert_has_everything(library, monkeypatch, estimator, sigma):
    layer = build(estimator, sigma, experts=3)
    with torch.no_grad():
        layer.gate.bias.copy_(torch.tensor([0.0, 30.0, 0.0]))
    compare(layer, SameNoise(monkeypatch))


@pytest.mark.parametrize(("estimator", "sigma"), KINDS)
@pytest.mark.parametrize("experts", [1, 3])
def test_frozen_experts_still_give_the_gradient_of_the_input(library, monkeypatch, estimator, sigma, experts):
    """As a critic does that an actor climbs."""
    layer = build(estimator, sigma, experts=experts)
    noise = SameNoise(monkeypatch)
    x = torch.randn(ROWS, IN, requires_grad=True)
    layer(x).square().sum().backward()
    wanted, x.grad = x.grad.clone(), None
    layer.requires_grad_(False)
    layer(x).square().sum().backward()
    torch.testing.assert_close(x.grad, wanted, rtol=1e-5, atol=1e-6)
    assert noise.seed


@pytest.mark.parametrize(("estimator", "sigma"), KINDS)
def test_evaluation_without_gradients_gives_the_means(library, estimator, sigma):
    layer = build(estimator, sigma, experts=3).eval()
    x = torch.randn(ROWS, IN)
    with torch.no_grad():
        torch.testing.assert_close(layer(x).double(), copy.deepcopy(layer).double()(x.double()), **TOLERANCE)


class TestMemory:
    @pytest.mark.parametrize(("estimator", "sigma"), KINDS)
    def test_passes_may_overlap(self, library, monkeypatch, estimator, sigma):
        """Several forward passes before any backward pass, then the backward passes in another order."""
        layer = build(estimator, sigma, experts=3)
        SameNoise(monkeypatch)
        batches = [torch.randn(ROWS, IN) for _ in range(2 * KEPT)]

        def gradient(losses) -> torch.Tensor:
            layer.zero_grad()
            for loss in losses:
                loss.backward()
            return layer.posterior.mean.grad.clone()

        together = gradient(reversed([layer(x).square().mean() for x in batches]))
        apart = gradient(layer(x).square().mean() for x in batches)
        torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("collected", [False, True])
    def test_twice_through_one_graph(self, library, collected):
        layer = build("flipout", "weight", experts=3)
        optimizer = VariationalAdam(layer) if collected else None
        loss = layer(torch.randn(ROWS, IN)).square().mean()
        loss.backward(retain_graph=True)
        once = layer.posterior.mean.grad.clone() if not collected else None
        loss.backward()
        twice = layer.posterior.mean.grad
        if once is None:
            layer2 = copy.deepcopy(layer)
            assert twice.any()
            assert layer2 is not layer
        else:
            torch.testing.assert_close(twice, 2 * once)
        assert optimizer is None or optimizer.posteriors

    def test_collected_gradients_of_two_passes_through_one_graph_add_up(self, library):
        layer = build("local", "weight", experts=3)
        optimizer = VariationalAdam(layer)
        loss = layer(torch.randn(ROWS, IN)).square().mean()
        loss.backward(retain_graph=True)
        (3 * loss).backward()
        found = layer.posterior.mean.grad.clone()
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss = layer(torch.randn(ROWS, IN)).square().mean()
        loss.backward(retain_graph=True)
        once = layer.posterior.mean.grad.clone()
        (3 * loss).backward()
        torch.testing.assert_close(layer.posterior.mean.grad, 4 * once)
        assert found.any()

    def test_changing_the_weights_before_the_backward_pass_is_noticed(self, library):
        layer = build("flipout", "weight", experts=2)
        loss = layer(torch.randn(ROWS, IN)).sum()
        with torch.no_grad():
            layer.bias.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_writing_to_the_input_before_the_step_does_no_harm(self, library):
        """The input is one of the factors of the gradient that the step multiplies out."""
        results = []
        for spoil in (False, True):
            layer = build("mean", "weight", experts=1)
            optimizer = VariationalAdam(layer, lr=0.1)
            x = torch.randn(ROWS, IN, generator=torch.Generator().manual_seed(3))
            layer(x).square().mean().backward()
            if spoil:
                x.zero_()
            optimizer.step()
            results.append(layer.posterior.mean.detach().clone())
        assert torch.equal(*results)


class TestStack:
    @pytest.mark.parametrize(("estimator", "sigma"), KINDS)
    @pytest.mark.parametrize("experts", [1, 3])
    @pytest.mark.parametrize("copies", [1, 2])
    def test_is_its_layers_one_after_another(self, library, monkeypatch, estimator, sigma, experts, copies):
        """Without noise: answers, terms and gradients of the compiled stack against plain operations in float64."""
        torch.manual_seed(0)
        stack = MoVEStack((IN, 6, 4, OUT), experts, copies=copies, estimator=estimator, sigma=sigma)
        stack.eval()
        plain = copy.deepcopy(stack).double()
        x = torch.randn(ROWS, IN, requires_grad=True)
        theirs = x.detach().double().requires_grad_()
        losses = []
        for module, batch in ((stack, x), (plain, theirs)):
            answer = module(batch)
            assert answer.shape == (copies, ROWS, OUT)
            loss = answer.square().mean() + sum(term.evaluate() for term in loss_terms(module))
            loss.backward()
            losses.append(loss.detach().double())
        torch.testing.assert_close(*losses, **TOLERANCE)
        torch.testing.assert_close(x.grad.double(), theirs.grad, **TOLERANCE)
        for (name, mine), its in zip(stack.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.double(), its.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: n + m)

    def test_copies_have_inputs_of_their_own_or_share_them(self, library):
        stack = MoVEStack((IN, 6, OUT), 3, copies=2).eval()
        x = torch.randn(ROWS, IN)
        assert torch.equal(stack(x), stack(x.expand(2, ROWS, IN).contiguous()))

    def test_terms_are_counted_once(self, library):
        stack = MoVEStack((IN, 6, OUT), 3)
        stack(torch.randn(ROWS, IN))
        names = [term.name for term in loss_terms(torch.nn.Sequential(stack))]
        assert sorted(names) == sorted(set(names))


def test_kinds_are_all_there():
    kinds = set(itertools.product(("flipout", "local"), ("weight", "unit")))
    assert kinds <= set(KINDS)
