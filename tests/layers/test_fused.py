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
from hvcl.layers.dispatch import Plan, Segment
from hvcl.layers.fused import conv_layer, dense_flipout, dense_local_unit
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
    monkeypatch.setattr(MoVELinear, "_compiled_layer", lambda layer, x: None)


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


# -- whole layers in one call ---------------------------------------------------------------------------------------------------


def composed(monkeypatch, layer):
    """The layer without its one call."""
    twin = copy.deepcopy(layer)
    monkeypatch.setattr(twin, "_compiled_layer", lambda x: None)
    return twin


@pytest.fixture
def gemm(compiled):
    if not _load().has_gemm:
        pytest.skip("torch's matrix product was not found")


@WAYS
@pytest.mark.parametrize("experts", [1, 2, 8, 16])
@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("needs_x", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_whole_dense_layer_agrees_with_its_parts(gemm, monkeypatch, estimator, sigma, experts, rows, needs_x, bias):
    """The same seeds, so the same noise: answer, terms and all gradients to 1e-4."""
    layer = build(estimator, sigma, experts, torch.float32, bias=bias)
    twin = composed(monkeypatch, layer)
    x = inputs(rows, torch.float32)
    seen = []
    for module in (layer, twin):
        owner = Owner()
        module.posterior.deferral.begin(owner)
        batch = x.clone().requires_grad_(needs_x)
        assert (module._compiled_layer(batch) is not None) == (module is layer)
        torch.manual_seed(7)
        answer = module(batch)
        cotangent = torch.randn(answer.shape, generator=torch.Generator().manual_seed(8))
        terms = torch.stack([term() for name, term in module.terms().items() if name != "diversity"])
        ((answer * cotangent).sum() + (terms * torch.tensor([1e-3, 0.5, 0.3, -0.2])[: len(terms)]).sum()).backward()
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        gradients |= {f"collected {name}": g for name, g in collected(module.posterior).items() if g is not None}
        if needs_x:
            gradients["x"] = batch.grad
        seen.append((answer, terms, gradients))
    for mine, theirs in zip(*(s[:2] for s in seen), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert seen[0][2].keys() == seen[1][2].keys()
    for name, gradient in seen[0][2].items():
        torch.testing.assert_close(gradient, seen[1][2][name], rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@WAYS
def test_an_input_that_is_overwritten_before_the_step(gemm, estimator, sigma):
    """Its gradients are multiplied out late, but not from memory that is not ours."""
    for experts in (1, 3):
        seen = []
        for overwrite in (False, True):
            layer = build(estimator, sigma, experts, torch.float32)
            owner = Owner()
            layer.posterior.deferral.begin(owner)
            x = inputs(20, torch.float32)
            torch.manual_seed(7)
            layer(x).square().sum().backward()
            if overwrite:
                x.zero_()
            seen.append(collected(layer.posterior)["mean"])
        assert torch.equal(*seen)
        assert (seen[0] != 0).any()


@WAYS
def test_two_passes_add_up(gemm, monkeypatch, estimator, sigma):
    layer = build(estimator, sigma, 3, torch.float32)
    seen = []
    for module in (layer, composed(monkeypatch, layer)):
        owner = Owner()
        module.posterior.deferral.begin(owner)
        torch.manual_seed(7)
        for seed in (1, 2):
            module(inputs(20, torch.float32, seed)).square().sum().backward()
        seen.append(collected(module.posterior))
    for name in seen[0]:
        torch.testing.assert_close(seen[0][name], seen[1][name], rtol=1e-4, atol=1e-4)


GEOMETRIES = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (1, 3), "padding": (2, 0), "dilation": (1, 2)},
    {"kernel_size": 1},
    {"kernel_size": 5, "padding": 4, "bias": False},
]


def build_conv(estimator: str, sigma: str, experts: int, **geometry) -> MoVEConv2d:
    torch.manual_seed(0)
    layer = MoVEConv2d(3, 4, experts=experts, estimator=estimator, sigma=sigma, **geometry)
    with torch.no_grad():
        layer.posterior.rho.normal_(-1.0, 0.4)
        if layer.bias is not None:
            layer.bias.normal_()
        if layer.gate is not None:
            layer.gate.weight.normal_()
    return layer


@WAYS
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("chunk", [1, 200_000])
def test_a_convolution_without_noise_agrees_with_the_plain_path(gemm, monkeypatch, estimator, sigma, geometry, experts, chunk):
    """Sigmas of e-60: what is left is the means. Chunks of one example, and of as many as there are."""
    monkeypatch.setattr("hvcl.layers.fused._PATCHES", chunk)
    layer = build_conv(estimator, sigma, experts, **geometry)
    with torch.no_grad():
        layer.posterior.rho.fill_(-60.0)
    plain, owner = copy.deepcopy(layer), Owner()
    layer.posterior.deferral.begin(owner)
    seen = []
    for module in (layer, plain):
        x = torch.randn(11, 3, 7, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
        assert (module._compiled_layer(x) is not None) == (module is layer)
        answer = module(x)
        cotangent = torch.randn(answer.shape, generator=torch.Generator().manual_seed(2))
        (answer * cotangent).sum().backward()
        gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None and not n.startswith("posterior")}
        of_mean = collected(module.posterior)["mean"] if module is layer else module.posterior.mean.grad
        seen.append({"answer": answer, "x": x.grad, "mean": of_mean, **gradients})
    assert seen[0].keys() == seen[1].keys()
    for name, value in seen[0].items():
        torch.testing.assert_close(value, seen[1][name], rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@WAYS
@pytest.mark.parametrize("moved", [True, False])
def test_a_convolutions_gradients_by_finite_differences(gemm, monkeypatch, estimator, sigma, moved):
    """The seeds held fixed; three experts of which two have rows, in any order; to 1 % of the derivative's scale."""
    monkeypatch.setattr("hvcl.layers.fused._PATCHES", 5000)  # several chunks
    layer = build_conv(estimator, sigma, 3, **GEOMETRIES[0])
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    posterior, rows = layer.posterior, 37
    x = torch.randn(rows, 3, 7, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(2)).requires_grad_()
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(3))
    slots = torch.empty_like(order)
    slots[order] = torch.arange(rows)
    segments = [Segment(0, 0, 12), Segment(2, 12, rows)] if moved else [Segment(1, 0, rows)]
    plan = Plan(segments, weights, order if moved else None, slots if moved else None, 1)
    geometry, kernels = layer._compiled_layer(x)
    cotangent = torch.randn(rows, 4, 4, 3, generator=torch.Generator().manual_seed(4))

    def answer() -> Tensor:
        seeds = itertools.count(1000)
        monkeypatch.setattr("hvcl.layers.fused.random_seed", lambda: next(seeds))
        return conv_layer(x, layer.bias, posterior, plan, geometry, kernels)

    first, second = answer(), answer()
    assert torch.equal(first, second)
    (first * cotangent).sum().backward()
    gradients = {**collected(posterior), "x": x.grad, "weights": weights.grad, "bias": layer.bias.grad}
    parts = {"mean": posterior.mean, "rho": posterior.rho, "x": x, "weights": weights, "bias": layer.bias}
    idle = [1] if moved else [0, 2]
    assert (gradients["mean"][idle] == 0).all()
    assert (gradients["rho"][idle] == 0).all()
    assert (gradients["rho"] != 0).any()
    for name, part in parts.items():
        for seed in range(3):
            direction = torch.randn(part.shape, generator=torch.Generator().manual_seed(seed))
            step, values, start = 0.01, [], part.detach().clone()
            for sign in (1, -1):
                with torch.no_grad():
                    part.copy_(start + sign * step * direction)
                values.append((answer().detach().double() * cotangent).sum().item())
            with torch.no_grad():
                part.copy_(start)
            slope = (values[0] - values[1]) / (2 * step)
            scale = gradients[name].norm().item()
            assert slope == pytest.approx((gradients[name] * direction).sum().item(), abs=0.01 * scale + 5e-3), name


@WAYS
def test_a_convolutions_noise_has_the_analytic_moments(gemm, estimator, sigma):
    """3000 passes over three rows, two of them the same: means, variances, and no covariance between rows; all |z| < 5."""
    passes = 3000
    layer = build_conv(estimator, sigma, 1, kernel_size=3, stride=2, padding=1)
    owner = Owner()
    layer.posterior.deferral.begin(owner)
    x = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    x[2] = x[1]
    torch.manual_seed(3)
    samples = torch.stack([layer(x).detach() for _ in range(passes)]).double()
    weight, spread = layer.posterior.mean.detach()[0].double(), layer.posterior.sigma.detach()[0].double()
    mean = torch.nn.functional.conv2d(x.double(), weight, layer.bias.detach()[0].double(), 2, 1)
    variance = torch.nn.functional.conv2d(x.double().square(), spread.square(), None, 2, 1)
    noise = (samples - mean) / variance.sqrt()
    assert (noise.mean(0).abs() * math.sqrt(passes)).max() < 5
    assert ((noise.square().mean(0) - 1).abs() * math.sqrt(passes / 2)).max() < 5
    for a, b in itertools.combinations(range(3), 2):
        products = noise[:, a] * noise[:, b]
        assert (products.mean(0).abs() / products.std(0) * math.sqrt(passes)).max() < 5


def test_what_the_compiled_convolution_does_not_know_goes_the_plain_way(gemm):
    x = torch.randn(2, 4, 6, 6)
    owner = Owner()
    for options in ({"groups": 2}, {"padding": "same"}, {"padding_mode": "circular", "padding": 1}, {"experts": 3, "top_k": 2}):
        layer = MoVEConv2d(4, 4, 3, **options)
        layer.posterior.deferral.begin(owner)
        assert layer._compiled_layer(x) is None
        layer(x).sum().backward()
    layer = MoVEConv2d(4, 4, 3)
    layer.posterior.deferral.begin(owner)
    assert layer._compiled_layer(x) is not None
    assert layer._compiled_layer(x.to(memory_format=torch.channels_last)) is None
    assert layer.eval()._compiled_layer(x) is None
