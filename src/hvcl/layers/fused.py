"""The dense experts' forward and backward pass, written out, and other passes that autograd would make many of.

Plain autograd records some thirty operations for what is four matrix products per expert; on layers of a few hundred units the
recording costs as much as the products. These functions do the same arithmetic on preallocated memory and hand the experts'
gradients to the optimiser that waits for them (`hvcl.posteriors.deferral`). The plain path in `MoVELayer` is their reference.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.gates import SoftmaxGate
from hvcl.kernels import Conv, Dense, Kernels, scratch
from hvcl.layers.dispatch import Plan, Segment
from hvcl.layers.noise import Signs, random_seed, standard_normal
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.deferral import Factors, Kind

Pending = list[tuple[int, Kind, Tensor, Tensor | None]]
"""Gradients of a backward pass that may yet turn out not to have been asked for."""
PendingFactors = list[tuple[bool, Factors]]
"""The same as factors, and whether nobody else can write to them."""


class _Dense(torch.autograd.Function):
    """x W_m + b_m for every segment, and the gradients that do not depend on the noise."""

    @staticmethod
    def means(x: Tensor, bias: Tensor | None, posterior: MeanFieldGaussian, segments: list[Segment]) -> Tensor:
        mean = posterior.mean
        y = x.new_empty(len(x), mean.shape[2])
        for m, a, b in segments:
            if bias is None:
                torch.mm(x[a:b], mean[m], out=y[a:b])
            else:
                torch.addmm(bias[m], x[a:b], mean[m], out=y[a:b])
        return y

    @staticmethod
    def collect_means(ctx: Any, x: Tensor, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the means to the optimiser; returns those of the input and the biases."""
        posterior: MeanFieldGaussian = ctx.posterior
        needs_x, needs_bias, *_ = ctx.needs_input_grad
        ctx.pending.clear()  # left by a torch.autograd.grad that kept the graph
        grad_x = torch.empty_like(x) if needs_x else None
        grad_bias = grad.new_zeros(posterior.experts, grad.shape[1]) if needs_bias else None
        for m, a, b in ctx.segments:
            part = grad[a:b]
            ctx.pending.append((m, "mean", x[a:b].T @ part, None))
            if grad_bias is not None:
                torch.sum(part, 0, out=grad_bias[m])
            if grad_x is not None:
                torch.mm(part, posterior.mean[m].T, out=grad_x[a:b])
        return grad_x, grad_bias


class _DenseFlipout(_Dense):
    """Flipout with a sigma per weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        anchor: Tensor,
        pending: Pending,
        posterior: MeanFieldGaussian,
        segments: list[Segment],
    ) -> Tensor:
        ctx.pending = pending
        y = _Dense.means(x, bias, posterior, segments)
        shared = standard_normal(posterior.mean[0])
        signs_in, signs_out = Signs(len(x), x.shape[1], x), Signs(len(y), y.shape[1], y)
        flipped = signs_in(x)
        noises = []
        z = torch.empty_like(y)
        for m, a, b in segments:
            noise = posterior.scaled_noise(m, shared)
            torch.mm(flipped[a:b], noise, out=z[a:b])
            noises.append(noise if ctx.needs_input_grad[0] else None)
        signs_out.add_to(y, z)
        ctx.save_for_backward(x, flipped, posterior.mean)
        ctx.posterior, ctx.segments, ctx.shared, ctx.noises = posterior, segments, shared, noises
        ctx.signs_in, ctx.signs_out = signs_in, signs_out
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None, None, None]:
        x, flipped, _ = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x, grad_bias = _Dense.collect_means(ctx, x, grad)
        turned = ctx.signs_out(grad)
        back = None if grad_x is None else torch.empty_like(grad_x)
        for (m, a, b), noise in zip(ctx.segments, ctx.noises, strict=True):
            ctx.pending.append((m, "noise", flipped[a:b].T @ turned[a:b], ctx.shared))
            if back is not None:
                torch.mm(turned[a:b], noise.T, out=back[a:b])
        if grad_x is not None:
            ctx.signs_in.add_to(grad_x, back)
        return grad_x, grad_bias, grad.new_zeros(()), None, None, None


class _DenseLocalUnit(_Dense):
    """Local reparameterisation with a sigma per unit: one product, and noise of size |x| sigma_o on the outputs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        rho: Tensor,
        anchor: Tensor,
        pending: Pending,
        posterior: MeanFieldGaussian,
        segments: list[Segment],
    ) -> Tensor:
        ctx.pending = pending
        y = _Dense.means(x, bias, posterior, segments)
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        noise = standard_normal(y).mul_(norm)
        sigma = rho.exp()
        for m, a, b in segments:
            y[a:b].addcmul_(noise[a:b], sigma[m])
        ctx.save_for_backward(x, norm, noise, sigma, posterior.mean)
        ctx.posterior, ctx.segments = posterior, segments
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor, None, None, None]:
        x, norm, noise, sigma, _ = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x, grad_bias = _Dense.collect_means(ctx, x, grad)
        spread = grad * noise
        grad_rho = torch.zeros_like(sigma)
        for m, a, b in ctx.segments:
            torch.sum(spread[a:b], 0, out=grad_rho[m])
            if grad_x is not None:
                # d(|x| sigma eps) / dx = x / |x| * sigma eps, and noise holds |x| eps; an all-zero input has no noise to follow
                along = (spread[a:b] @ sigma[m]).unsqueeze(1).div_(norm[a:b].square().clamp_min_(1e-20))
                grad_x[a:b].addcmul_(x[a:b], along)
        return grad_x, grad_bias, grad_rho.mul_(sigma), grad.new_zeros(()), None, None, None


class _DenseLayer(torch.autograd.Function):
    """A whole dense layer, gate and mixing included, as one compiled call each way and one node of the graph.

    Gives the layer's answer, the mean gate mass on each expert, and the three statistics of `GateBatch`. The composed path (gate,
    plan, `_DenseFlipout` or `_DenseLocalUnit`, mixing) is its reference: the same seeds give the same numbers.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        rho: Tensor | None,
        gate_weight: Tensor | None,
        gate_bias: Tensor | None,
        anchor: Tensor,
        pending: PendingFactors,
        posterior: MeanFieldGaussian,
        gate: SoftmaxGate | None,
        kernels: Kernels,
    ) -> tuple[Tensor | None, ...]:
        mean, flipout = posterior.mean, posterior.sigma_kind == "weight"
        experts, inputs, outputs = mean.shape
        rows = len(x)
        needs_x = ctx.needs_input_grad[0]
        seeds = [random_seed() for _ in range(3 if flipout else 1)]
        whole = torch.empty(4 * rows + 2 * experts + 1, dtype=torch.int64)
        out = x.new_empty(rows, outputs)
        dense = Dense(rows, inputs, outputs, experts, 0, flipout, *seeds)
        dense.x, dense.mean, dense.rho, dense.out = x.data_ptr(), mean.data_ptr(), posterior.rho.data_ptr(), out.data_ptr()
        dense.bias = None if bias is None else bias.data_ptr()
        room = {"room": max(rows * max(inputs, outputs), 2 * rows * experts)}
        if flipout:
            sizes = {"flipped": rows * inputs, "shared": inputs * outputs}
            (sizes if needs_x else room)["scaled"] = inputs * outputs * (experts if needs_x else 1)
        else:
            sizes = {"norm": rows, "noise": rows * outputs, "sigma": experts * outputs}
        log_p = usage = statistics = None
        address = whole.data_ptr()
        dense.rows_of, dense.slot_of, dense.choice, dense.counts = (address + 8 * rows * i for i in range(4))
        starts = whole[-experts - 1 :]
        dense.starts = starts.data_ptr()
        if gate is not None:
            assert gate_weight is not None
            assert gate_bias is not None
            log_p, usage, statistics = x.new_empty(rows, experts), x.new_empty(experts), x.new_empty(3)
            dense.log_p, dense.usage, dense.statistics = log_p.data_ptr(), usage.data_ptr(), statistics.data_ptr()
            dense.gate_weight, dense.gate_bias = gate_weight.data_ptr(), gate_bias.data_ptr()
            dense.prior_weight, dense.prior_bias = gate.prior_weight.data_ptr(), gate.prior_bias.data_ptr()
            sizes |= {"ratio": rows * experts, "weights": rows, "sorted": rows * inputs, "answers": rows * outputs}
        memory, kept = _lay_out(dense, sizes)
        _lay_out(dense, room, keep=False)
        if gate is None:
            dense.answers = dense.out
        dense.keep_scaled = needs_x
        kernels.dense_forward(dense)
        prior = None if gate is None else gate.prior_weight
        ctx.save_for_backward(x, mean, memory, posterior.rho, gate_weight, prior, whole, log_p, usage)
        ctx.dense, ctx.kernels, ctx.posterior, ctx.pending = dense, kernels, posterior, pending
        ctx.starts, ctx.kept, ctx.shapes = starts, kept, (bias is not None, gate is not None)
        if statistics is None:
            return out, None, None, None, None, None
        assert log_p is not None
        ctx.mark_non_differentiable(log_p)
        return out, usage, *statistics.unbind(), log_p

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_out: Tensor, g_usage: Tensor, g_kl: Tensor, g_conditional: Tensor, g_marginal: Tensor, _: Any
    ) -> Any:
        x, mean, memory, *_ = ctx.saved_tensors
        dense, kernels = ctx.dense, ctx.kernels
        has_bias, has_gate = ctx.shapes
        experts, inputs, outputs = mean.shape
        rows, flipout = len(x), bool(dense.flipout)
        g_out = g_out.contiguous()
        dense.g_out = g_out.data_ptr()
        sizes = {"room": max(rows * max(inputs, outputs), 2 * rows * experts)}
        g_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dense.g_x = None if g_x is None else g_x.data_ptr()
        g_bias = x.new_empty(experts, outputs) if has_bias else None
        g_rho = None if flipout else x.new_empty(experts, outputs)
        g_gate_weight, g_gate_bias = (x.new_empty(experts, inputs), x.new_empty(experts)) if has_gate else (None, None)
        dense.g_bias, dense.g_rho, dense.g_gate_weight, dense.g_gate_bias = map(
            _address, (g_bias, g_rho, g_gate_weight, g_gate_bias)
        )
        g_answers = g_out
        if has_gate:
            g_usage, g_statistics = g_usage.contiguous(), torch.stack([g_kl, g_conditional, g_marginal])
            dense.g_usage, dense.g_statistics = g_usage.data_ptr(), g_statistics.data_ptr()
            sizes |= {"g_weights": rows}
            if g_x is not None:
                sizes |= {"g_sorted": rows * inputs}
            g_answers = torch.empty_like(g_out)
        dense.g_answers = g_answers.data_ptr()
        turned = torch.empty_like(g_out) if flipout else None
        dense.turned = _address(turned)
        _lay_out(dense, sizes, keep=False)
        kernels.dense_backward(dense)
        left = memory[slice(*ctx.kept["sorted"])].view(rows, inputs) if dense.moved else x
        flipped = memory[slice(*ctx.kept["flipped"])].view(rows, inputs) if flipout else None
        shared = memory[slice(*ctx.kept["shared"])].view(inputs, outputs) if flipout else None
        ctx.pending[:] = [(bool(dense.moved), Factors(ctx.starts, left, g_answers, flipped, turned, shared))]
        return g_x, g_bias, g_rho, g_gate_weight, g_gate_bias, g_out.new_zeros(()), None, None, None, None


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _lay_out(dense: Dense | Conv, sizes: dict[str, int], keep: bool = True) -> tuple[Tensor, dict[str, tuple[int, int]]]:
    """One piece of memory for many arrays, whose addresses go to `dense`; where each begins and ends in it.

    What is not to be kept may be overwritten after the next call.
    """
    places, end = {}, 0
    for name, size in sizes.items():
        places[name] = (end, end + size)
        end += -(-size // 16) * 16  # whole cache lines
    memory = torch.empty(end, dtype=torch.float32, device="cpu") if keep else scratch(end)
    address = memory.data_ptr()
    for name, (begin, _) in places.items():
        setattr(dense, name, address + 4 * begin)
    return memory, places


_PATCHES = 200_000
"""Numbers in the patches of a chunk of examples: they stay in the second-level cache."""


class Geometry(NamedTuple):
    """What a convolution of images is given by, each a pair (height, width)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def places(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Height and width of the answer to images of a height and width."""
        spans = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        parts = zip(size, self.padding, spans, self.stride, strict=True)
        return tuple((n + 2 * p - span) // step + 1 for n, p, span, step in parts)


class _ConvLayer(torch.autograd.Function):
    """The experts of a convolutional layer, with noise and mixing, as one compiled call each way.

    The plain path is its reference.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor | None,
        bias: Tensor | None,
        rho: Tensor | None,
        anchor: Tensor,
        pending: Pending,
        posterior: MeanFieldGaussian,
        plan: Plan | None,
        geometry: Geometry,
        kernels: Kernels,
    ) -> Tensor:
        mean, flipout = posterior.mean, posterior.sigma_kind == "weight"
        experts, units, channels = mean.shape[:3]
        rows, size = len(x), tuple(x.shape[2:])
        places = geometry.places(size)
        inputs, area = mean[0, 0].numel(), math.prod(places)
        chunk = max(1, min(rows, _PATCHES // (inputs * area)))
        sides = [(1, *pair)[-2:] for pair in (geometry.kernel, geometry.stride)]
        more = ((0, *geometry.padding)[-2:], (1, *geometry.dilation)[-2:])
        shape = (rows, channels, *(1, *size)[-2:], units, *(1, *places)[-2:], experts)
        seeds = [random_seed() for _ in range(3 if flipout else 1)]
        conv = Conv(*shape, *sides[0], *sides[1], *more[0], *more[1], flipout, chunk, *seeds)
        segments = [Segment(0, 0, rows)] if plan is None else plan.segments
        counts = torch.zeros(experts + 1, dtype=torch.int64)
        for m, a, b in segments:
            counts[m + 1] = b - a
        starts = counts.cumsum(0)
        order = None if plan is None else plan.rows
        out = x.new_empty(rows, units, *places)
        conv.x, conv.mean, conv.rho, conv.out = x.data_ptr(), mean.data_ptr(), posterior.rho.data_ptr(), out.data_ptr()
        conv.bias, conv.weights, conv.rows_of, conv.starts = map(_address, (bias, weights, order, starts))
        sizes = {"answers": rows * units * area}
        if flipout:
            sizes |= {"shared": units * inputs, "scaled": mean.numel(), "signs_in": rows * channels, "signs_out": rows * units}
        else:
            sizes |= {"noise": rows * units * area, "norm": rows * area, "sigma": experts * units}
        memory, kept = _lay_out(conv, sizes)
        _lay_out(conv, _ConvLayer.room(conv, inputs, area), keep=False)
        kernels.conv_forward(conv)
        ctx.save_for_backward(x, mean, memory, posterior.rho, weights, order, starts)
        ctx.conv, ctx.kernels, ctx.posterior, ctx.pending, ctx.kept = conv, kernels, posterior, pending, kept
        ctx.segments, ctx.has_bias = segments, bias is not None
        return out

    @staticmethod
    def room(conv: Conv, inputs: int, area: int) -> dict[str, int]:
        """Memory that a call needs for a chunk."""
        patches = conv.chunk * inputs * area
        images = conv.chunk * conv.channels * conv.height * conv.width
        return {
            "images": images,
            "patches": patches,
            "more": patches if conv.flipout else 0,
            "room": conv.chunk * (conv.units + 1) * area,
        }

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_out: Tensor) -> Any:
        x, mean, memory, _, weights, *_ = ctx.saved_tensors
        conv, flipout = ctx.conv, bool(ctx.conv.flipout)
        experts, units = mean.shape[:2]
        inputs, area = mean[0, 0].numel(), conv.out_height * conv.out_width
        g_out = g_out.contiguous()
        g_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        g_weights = None if weights is None else torch.empty_like(weights)
        g_bias = x.new_empty(experts, units) if ctx.has_bias else None
        g_rho = None if flipout else x.new_empty(experts, units)
        g_mean, g_noise = torch.empty_like(mean), torch.empty_like(mean) if flipout else None
        of = {"g_out": g_out, "g_x": g_x, "g_weights": g_weights, "g_bias": g_bias, "g_rho": g_rho}
        for name, tensor in (of | {"g_mean": g_mean, "g_noise": g_noise}).items():
            setattr(conv, name, _address(tensor))
        sizes = _ConvLayer.room(conv, inputs, area) | {"g_answers": conv.chunk * units * area}
        _lay_out(conv, sizes, keep=False)
        ctx.kernels.conv_backward(conv)
        ctx.pending.clear()
        for m, _, _ in ctx.segments:
            ctx.pending.append((m, "mean", g_mean[m], None))
            if g_noise is not None:
                shared = memory[slice(*ctx.kept["shared"])].view_as(mean[0])
                ctx.pending.append((m, "noise", g_noise[m], shared))
        return g_x, g_weights, g_bias, g_rho, g_out.new_zeros(()), None, None, None, None, None


def conv_layer(
    x: Tensor, bias: Tensor | None, posterior: MeanFieldGaussian, plan: Plan | None, geometry: Geometry, kernels: Kernels
) -> Tensor:
    """A batch of images (not empty, contiguous, float32) through the experts of `plan` (None: through the only one), mixed.

    Flipout for a sigma per weight, local reparameterisation for a sigma per unit. Gradients go to the posterior's optimiser.
    """
    anchor, pending = _anchor(x, posterior)
    rho = posterior.rho if posterior.sigma_kind == "unit" else None
    weights = None if plan is None else plan.weights.contiguous()
    y: Tensor = _ConvLayer.apply(x, weights, bias, rho, anchor, pending, posterior, plan, geometry, kernels)  # type: ignore[no-untyped-call]
    return y


class DenseBatch(NamedTuple):
    """One batch through a whole dense layer; all but the answer is None without a gate. See `GateBatch`."""

    answer: Tensor
    usage: Tensor | None
    kl: Tensor | None
    conditional: Tensor | None
    marginal: Tensor | None
    log_probabilities: Tensor | None


def dense_layer(
    x: Tensor, bias: Tensor | None, posterior: MeanFieldGaussian, gate: SoftmaxGate | None, kernels: Kernels
) -> DenseBatch:
    """A batch ``[B, in]`` (not empty, contiguous, float32) through gate and experts, each row through its most probable one.

    Flipout for a sigma per weight, local reparameterisation for a sigma per unit. Gradients go to the posterior's optimiser.
    """
    anchor = posterior.deferral.anchor(x)
    pending: PendingFactors = []

    def hand_over(leaf: Tensor) -> None:
        leaf.grad = None
        for owned, factors in pending:
            if owned:
                posterior.deferral.collect_factors(factors)
            else:  # the input belongs to someone who may write to it before the step
                for expert, item in factors.multiplied():
                    posterior.deferral.collect(expert, *item)
        pending.clear()

    anchor.register_post_accumulate_grad_hook(hand_over)
    rho = posterior.rho if posterior.sigma_kind == "unit" else None
    of_gate = (None, None) if gate is None else (gate.weight, gate.bias)
    return DenseBatch(*_DenseLayer.apply(x, bias, rho, *of_gate, anchor, pending, posterior, gate, kernels))  # type: ignore[no-untyped-call]


class _LocalUnitNoise(torch.autograd.Function):
    """Local reparameterisation with a sigma per channel, added in place; the noise is made again for the backward pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, norm: Tensor, sigma: Tensor, experts: Tensor, kernels: Kernels) -> Tensor:
        ctx.seed, ctx.kernels = random_seed(), kernels
        kernels.local_noise(ctx.seed, experts, norm, sigma, y)
        ctx.save_for_backward(norm, sigma, experts)
        ctx.mark_dirty(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        norm, sigma, experts = ctx.saved_tensors
        return grad, *ctx.kernels.local_noise_backward(ctx.seed, experts, norm, sigma, grad.contiguous()), None, None


def local_unit_noise(y: Tensor, norm: Tensor, sigma: Tensor, segments: list[Segment], kernels: Kernels) -> Tensor:
    """`y` ``[B, C, ...]`` with noise of size norm ``[B, 1, ...]`` times sigma ``[M, C]`` of every row's expert."""
    counts = torch.tensor([b - a for _, a, b in segments])
    experts = torch.tensor([m for m, _, _ in segments]).repeat_interleave(counts)
    noisy: Tensor = _LocalUnitNoise.apply(y, norm.contiguous(), sigma.contiguous(), experts, kernels)  # type: ignore[no-untyped-call]
    return noisy


def dense_flipout(x: Tensor, bias: Tensor | None, posterior: MeanFieldGaussian, segments: list[Segment]) -> Tensor:
    """Every segment's rows through its expert, with flipout noise."""
    anchor, pending = _anchor(x, posterior)  # the experts' weights are no inputs: something must ask for the backward pass
    y: Tensor = _DenseFlipout.apply(x, bias, anchor, pending, posterior, segments)  # type: ignore[no-untyped-call]
    return y


def dense_local_unit(x: Tensor, bias: Tensor | None, posterior: MeanFieldGaussian, segments: list[Segment]) -> Tensor:
    """Every segment's rows through its expert, with local noise and a sigma per unit."""
    anchor, pending = _anchor(x, posterior)
    y: Tensor = _DenseLocalUnit.apply(x, bias, posterior.rho, anchor, pending, posterior, segments)  # type: ignore[no-untyped-call]
    return y


def _anchor(x: Tensor, posterior: MeanFieldGaussian) -> tuple[Tensor, Pending]:
    """A leaf whose hook hands the experts' gradients over.

    It runs only in a backward pass that is asked for the leaves: torch.autograd.grad of the input alone collects nothing.
    """
    anchor = posterior.deferral.anchor(x)
    pending: Pending = []

    def hand_over(leaf: Tensor) -> None:
        leaf.grad = None
        for item in pending:
            posterior.deferral.collect(*item)
        pending.clear()

    anchor.register_post_accumulate_grad_hook(hand_over)
    return anchor, pending
