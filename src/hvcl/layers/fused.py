"""The dense experts' forward and backward pass, written out, and other passes that autograd would make many of.

Plain autograd records some thirty operations for what is four matrix products per expert; on layers of a few hundred units the
recording costs as much as the products. These functions do the same arithmetic on preallocated memory and hand the experts'
gradients to the optimiser that waits for them (`hvcl.posteriors.deferral`). The plain path in `MoVELayer` is their reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.kernels import Kernels
from hvcl.layers.dispatch import Segment
from hvcl.layers.noise import Signs, random_seed, standard_normal
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.deferral import Kind

Pending = list[tuple[int, Kind, Tensor, Tensor | None]]
"""Gradients of a backward pass that may yet turn out not to have been asked for."""


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
