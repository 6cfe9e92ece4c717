"""The written-out dense passes against the plain path of MoVELinear, with the same noise."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor

import hvcl.layers.noise as noise_module
from hvcl.kernels.library import _load
from hvcl.layers import MoVEConv2d, MoVELinear
from hvcl.layers.dispatch import Segment
from hvcl.layers.fused import dense_flipout, dense_local_unit
from hvcl.optim.adam import _to_rho
from hvcl.posteriors import MeanFieldGaussian

IN, OUT = 5, 4
WAYS = pytest.mark.parametrize(("estimator", "sigma"), [("flipout", "weight"), ("local", "unit")])
DENSE = {"flipout": dense_flipout, "local": dense_local_unit}


class Owner:
    """Stands for the optimiser that gradients are collected for."""


@pytest.fixture
def compiled():
    if _load() is None:
        pytest.skip("no compiled kernels: there is no C compiler, or HVCL_NO_KERNELS is set")


@pytest.fixture
def torch_noise(monkeypatch):
    """Both paths take their random numbers from torch, in the same order."""
    monkeypatch.setattr(noise_module, "load_kernels", lambda tensor: None)
    monkeypatch.setattr(MoVELinear, "_one_norm", False)  # what asks for the compiled local noise


def build(estimator: str, sigma: str, experts: int = 3, dtype: torch.dtype = torch.float64, **options) -> MoVELinear:
    torch.manual_seed(0)
    layer = MoVELinear(IN, OUT, experts=experts, estimator=estimator, sigma=sigma, dtype=dtype, **options)
    with torch.no_grad():
        layer.posterior.rho.normal_(-1.0, 0.4)
        if layer.bias is not None:
            layer.bias.normal_()
        if layer.gate is not None:
            layer.gate.weight.normal_()
    return layer


def inputs(rows: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(rows, IN, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def collected(posterior: MeanFieldGaussian) -> dict[str, Tensor]:
    """What was collected, as dense gradients."""
    mean, rho = torch.zeros_like(posterior.mean), torch.zeros_like(posterior.rho)
    for expert, items in posterior.deferral.gradients.items():
        for item in items:
            if item.kind == "mean":
                mean[expert] += item.gradient
            else:
                rho[expert] += _to_rho(item, posterior.rho[expert].detach())
    if posterior.sigma_kind == "unit":
        assert (rho == 0).all()
        rho = posterior.rho.grad
    return {"mean": mean, "rho": rho}


def agree(layer: MoVELinear, x: Tensor, needs_x: bool = True, **tolerance) -> None:
    plain, owner = copy.deepcopy(layer), Owner()
    layer.posterior.deferral.begin(owner)
    mine, theirs = x.clone().requires_grad_(needs_x), x.clone().requires_grad_(needs_x)
    answers = []
    for module, batch in ((layer, mine), (plain, theirs)):
        torch.manual_seed(5)
        answers.append(module(batch))
    torch.testing.assert_close(*answers, **tolerance)
    cotangent = torch.randn(answers[0].shape, dtype=x.dtype)
    for answer in answers:
        (answer * cotangent).sum().backward()
    assert layer.posterior.mean.grad is None
    gradients = collected(layer.posterior)
    torch.testing.assert_close(gradients["mean"], plain.posterior.mean.grad, **tolerance)
    torch.testing.assert_close(gradients["rho"], plain.posterior.rho.grad, **tolerance)
    if needs_x:
        torch.testing.assert_close(mine.grad, theirs.grad, **tolerance)
    for name in ("bias", "gate.weight", "gate.bias"):
        parameters = dict(layer.named_parameters()), dict(plain.named_parameters())
        if name in parameters[0]:
            torch.testing.assert_close(parameters[0][name].grad, parameters[1][name].grad, **tolerance)


@WAYS
@pytest.mark.parametrize("experts", [1, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("needs_x", [True, False])
def test_agrees_with_the_plain_path_in_float64(estimator, sigma, experts, rows, needs_x):
    agree(build(estimator, sigma, experts), inputs(rows), needs_x, rtol=1e-9, atol=1e-9)


@WAYS
@pytest.mark.parametrize("options", [{"bias": False}, {"top_k": 2}, {"routing": "sample"}], ids=str)
def test_agrees_with_options(estimator, sigma, options):
    agree(build(estimator, sigma, **options), inputs(17), rtol=1e-9, atol=1e-9)


@WAYS
def test_agrees_on_more_dimensions_and_other_strides(estimator, sigma):
    agree(build(estimator, sigma), inputs(12).view(3, 4, IN), rtol=1e-9, atol=1e-9)
    transposed = torch.randn(IN, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64).T
    agree(build(estimator, sigma), transposed, rtol=1e-9, atol=1e-9)


@WAYS
def test_an_all_zero_row(estimator, sigma):
    """No noise; the gradient is finite and goes along the means only."""
    x = inputs(6)
    x[2] = 0
    layer = build(estimator, sigma, experts=1)
    if estimator == "flipout":
        agree(layer, x, rtol=1e-9, atol=1e-9)
        return
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    x.requires_grad_()
    answer = layer(x)
    torch.testing.assert_close(answer[2], layer.bias[0])
    answer.sum().backward()
    torch.testing.assert_close(x.grad[2], layer.posterior.mean[0].sum(1))
    assert x.grad.isfinite().all()


@WAYS
@pytest.mark.parametrize("rows", [1, 33])
def test_agrees_in_float32_with_torchs_noise(torch_noise, estimator, sigma, rows):
    """Gates, dispatch and sigmas compiled where they can be; to 1e-4."""
    agree(build(estimator, sigma, dtype=torch.float32), inputs(rows, torch.float32), rtol=1e-4, atol=1e-4)


@WAYS
def test_only_while_someone_collects(estimator, sigma):
    layer = build(estimator, sigma)
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    with torch.no_grad():
        layer(inputs(4))
    assert layer.posterior.deferral.gradients == {}
    layer(inputs(4)).sum().backward()
    assert layer.posterior.deferral.gradients
    del owner
    layer(inputs(4)).sum().backward()
    assert layer.posterior.mean.grad is not None


@WAYS
def test_an_empty_batch(estimator, sigma):
    layer = build(estimator, sigma, dtype=torch.float32)
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    assert layer(inputs(0, torch.float32)).shape == (0, OUT)


def test_a_convolution_of_an_empty_batch_in_float32():
    assert MoVEConv2d(2, 3, 3, experts=2)(torch.zeros(0, 2, 5, 5)).shape == (0, 3, 3, 3)


@WAYS
def test_weights_that_changed_before_the_backward_pass_are_an_error(estimator, sigma):
    """As in plain autograd, which refuses instead of mixing old and new weights."""
    layer = build(estimator, sigma, experts=1)
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    loss = layer(inputs(4).requires_grad_()).square().sum()
    with torch.no_grad():
        layer.posterior.mean.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@WAYS
def test_asking_for_the_inputs_gradient_alone_collects_nothing(estimator, sigma):
    """torch.autograd.grad leaves `.grad` alone, and so it must leave what is collected."""
    layer = build(estimator, sigma)
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    x = inputs(4).requires_grad_()
    torch.autograd.grad(layer(x).square().sum(), x)
    assert layer.posterior.deferral.gradients == {}


@WAYS
def test_noise_has_the_analytic_moments(compiled, estimator, sigma):
    """Compiled random numbers, 3000 passes over four rows, two of them the same: means, variances x^2 sigma^2 and, between rows,
    no covariance, all |z| < 5 (some hundred numbers; kurtosis at most 3)."""
    passes = 3000
    layer = build(estimator, sigma, experts=1, dtype=torch.float32)
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    x = inputs(4, torch.float32)
    x[3] = x[2]
    torch.manual_seed(3)
    samples = torch.stack([layer(x).detach() for _ in range(passes)]).double()
    x = x.double()
    sigmas = layer.posterior.sigma.detach()[0].double()
    mean = x @ layer.posterior.mean.detach()[0].double() + layer.bias.detach()[0].double()
    variance = x.square() @ sigmas.square()
    noise = (samples - mean) / variance.sqrt()
    assert (noise.mean(0).abs() * math.sqrt(passes)).max() < 5
    assert ((noise.square().mean(0) - 1).abs() * math.sqrt(passes / 2)).max() < 5
    assert noise.square().mean().item() == pytest.approx(1, abs=0.03)
    for a, b in itertools.combinations(range(4), 2):
        products = noise[:, a] * noise[:, b]
        assert (products.mean(0).abs() / products.std(0) * math.sqrt(passes)).max() < 5


@WAYS
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_by_finite_differences_with_compiled_noise(compiled, monkeypatch, estimator, sigma, bias):
    """The seeds held fixed, three experts of which two have rows; central differences to 1 % of the derivative's scale."""
    rows = 37
    layer = build(estimator, sigma, dtype=torch.float32, bias=bias)
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    posterior, segments = layer.posterior, [Segment(0, 0, 12), Segment(2, 12, rows)]
    x = inputs(rows, torch.float32).requires_grad_()
    cotangent = torch.randn(rows, OUT, generator=torch.Generator().manual_seed(4))

    def answer() -> Tensor:
        seeds = itertools.count(1000)
        monkeypatch.setattr(noise_module, "random_seed", lambda: next(seeds))
        return DENSE[estimator](x, layer.bias, posterior, segments)

    first, second = answer(), answer()
    assert torch.equal(first, second)
    (first * cotangent).sum().backward()
    gradients = {**collected(posterior), "x": x.grad}
    parts = {"mean": posterior.mean, "rho": posterior.rho, "x": x}
    if layer.bias is not None:
        gradients["bias"], parts["bias"] = layer.bias.grad, layer.bias
    assert (gradients["mean"][1] == 0).all()
    assert (gradients["rho"][1] == 0).all()
    for name, part in parts.items():
        for seed in range(3):
            direction = torch.randn(part.shape, generator=torch.Generator().manual_seed(seed))
            step = 0.02
            values = []
            start = part.detach().clone()
            for sign in (1, -1):
                with torch.no_grad():
                    part.copy_(start + sign * step * direction)
                values.append((answer().detach().double() * cotangent).sum().item())
            with torch.no_grad():
                part.copy_(start)
            slope = (values[0] - values[1]) / (2 * step)
            scale = gradients[name].norm().item()
            assert slope == pytest.approx((gradients[name] * direction).sum().item(), abs=0.01 * scale + 1e-3), name
