"""The softmax gate with everything that a layer needs of it, in one compiled pass each way.

`hvcl.gates.SoftmaxGate` and `hvcl.layers.dispatch.route` are the plain operations and the reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops.border import address, optional, random_seed, scratch
from hvcl.ops.library import Library


class Routed(NamedTuple):
    """One batch through a gate: the experts' work laid out in slots, sorted by expert, and the statistics of the batch."""

    weights: Tensor
    """Of the slots."""
    usage: Tensor
    """Mean gate mass on each expert, ``[M]``."""
    terms: Tensor
    """The first three of `hvcl.ops.dense.TERMS`."""
    log_p: Tensor
    """log p(m|x), ``[B, M]``, without a gradient."""
    rows: Tensor
    """The row of every slot."""
    slots: Tensor
    """The slot of every row's choices, ``[B * k]``."""
    starts: Tensor
    """The first slot of every expert, and the end, ``[M + 1]``."""


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        prior_weight: Tensor,
        prior_bias: Tensor,
        options: tuple[int, bool, bool],
        library: Library,
    ) -> tuple[Tensor, ...]:
        (batch, inputs), experts = features.shape, len(weight)
        top_k, sampled, _ = options
        log_p, ratio = torch.empty(2, batch, experts, dtype=torch.float32)
        rows, slots, choice = torch.empty(3, batch * top_k, dtype=torch.int64)
        starts = torch.zeros(experts + 1, dtype=torch.int64)
        counts = starts[1:]
        weights = torch.empty(batch * top_k, dtype=torch.float32)
        usage, statistics = torch.empty(experts, dtype=torch.float32), torch.empty(3, dtype=torch.float32)
        library.functions.gate_forward(
            batch,
            inputs,
            experts,
            *options,
            random_seed() if sampled else 0,
            address(features, batch, inputs),
            address(weight, experts, inputs),
            address(bias, experts),
            address(prior_weight, experts, inputs),
            address(prior_bias, experts),
            *[address(values, batch, experts) for values in (log_p, ratio)],
            *[address(values, batch * top_k, dtype=torch.int64) for values in (rows, slots)],
            address(counts, experts, dtype=torch.int64),
            address(choice, batch * top_k, dtype=torch.int64),
            address(weights, batch * top_k),
            address(usage, experts),
            address(statistics, 3),
        )
        torch.cumsum(counts, 0, out=counts)
        ctx.save_for_backward(features, weight, prior_weight, log_p, ratio, slots, choice, weights, usage)
        ctx.options, ctx.library = options, library
        ctx.mark_non_differentiable(log_p, rows, slots, starts)
        return weights, usage, statistics, log_p, rows, slots, starts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_weights: Tensor, g_usage: Tensor, g_statistics: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        features, weight, prior_weight, log_p, ratio, slots, choice, weights, usage = ctx.saved_tensors
        (batch, inputs), experts = features.shape, len(weight)
        top_k, _, through = ctx.options
        g_features = torch.zeros_like(features) if ctx.needs_input_grad[0] else None
        g_weight, g_bias = torch.empty_like(weight), torch.empty_like(usage)
        g_weights, g_usage, g_statistics = g_weights.contiguous(), g_usage.contiguous(), g_statistics.contiguous()
        ctx.library.functions.gate_backward(
            batch,
            inputs,
            experts,
            top_k,
            through,
            address(features, batch, inputs),
            address(weight, experts, inputs),
            address(prior_weight, experts, inputs),
            *[address(values, batch, experts) for values in (log_p, ratio)],
            *[address(values, batch * top_k, dtype=torch.int64) for values in (slots, choice)],
            address(weights, batch * top_k),
            address(usage, experts),
            address(g_weights, batch * top_k),
            address(g_usage, experts),
            address(g_statistics, 3),
            None,
            scratch(2 * batch * experts).data_ptr(),
            address(g_weight, experts, inputs),
            address(g_bias, experts),
            optional(g_features, batch, inputs),
        )
        return g_features, g_weight, g_bias, None, None, None, None


def gate(
    library: Library,
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    prior_weight: Tensor,
    prior_bias: Tensor,
    *,
    top_k: int,
    sampled: bool,
    through: bool,
) -> Routed:
    """Features ``[B, n]`` (not empty) through a gate ``[M, n]`` and its prior; options as in `hvcl.ops.dense.Mixture`."""
    parts = (features, weight, bias, prior_weight, prior_bias)
    return Routed(*_Gate.apply(*parts, (top_k, sampled, through), library))  # type: ignore[no-untyped-call]
