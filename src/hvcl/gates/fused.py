"""The softmax gate with everything that a layer needs of it, in one compiled pass forward and one backward.

Top-1 routing by argmax on float32 CPU tensors: the common case. `hvcl.layers.dispatch.route` and the terms of `MoVELayer` are the
plain path and the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.gates.softmax import SoftmaxGate
from hvcl.kernels import Kernels


@dataclass(frozen=True)
class GateBatch:
    """One batch through the gate: the experts' work laid out, and the statistics of the batch."""

    log_probabilities: Tensor
    """log p(m|x), ``[B, M]``, without a gradient."""
    weights: Tensor
    """p of the chosen expert, in slot order."""
    usage: Tensor
    """Mean gate mass on each expert, ``[M]``."""
    statistics: tuple[Tensor, Tensor, Tensor]
    """Mean KL to the prior gate, H(M|X), H(M)."""
    rows: Tensor
    slots: Tensor
    counts: list[int]


class _FusedGate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, gate: SoftmaxGate, kernels: Kernels
    ) -> tuple[Tensor, ...]:
        batch, experts = len(features), len(weight)
        log_p, ratio = features.new_empty(2, batch, experts)
        rows, slots, choice = torch.empty(3, batch, dtype=torch.int64)
        counts = torch.empty(experts, dtype=torch.int64)
        weights, usage, statistics = features.new_empty(batch), features.new_empty(experts), features.new_empty(3)
        gates = (weight, bias, gate.prior_weight, gate.prior_bias)
        kernels.gate_forward(features, *gates, log_p, ratio, rows, slots, counts, choice, weights, usage, statistics)
        ctx.save_for_backward(features, weight, gate.prior_weight, log_p, ratio, slots, choice, usage)
        ctx.kernels = kernels
        ctx.mark_non_differentiable(log_p, rows, slots, counts)
        return weights, usage, *statistics.unbind(), log_p, rows, slots, counts

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_weights: Tensor, g_usage: Tensor, g_kl: Tensor, g_conditional: Tensor, g_marginal: Tensor, *_: Any
    ) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        features, weight, prior_weight, log_p, ratio, slots, choice, usage = ctx.saved_tensors
        g_features = torch.zeros_like(features) if ctx.needs_input_grad[0] else None
        g_weight, g_bias = torch.empty_like(weight), torch.empty_like(usage)
        kept = (features, weight, prior_weight, log_p, ratio, slots, choice, usage)
        g_statistics = torch.stack([g_kl, g_conditional, g_marginal])
        upstream = (g_weights.contiguous(), g_usage.contiguous(), g_statistics)
        ctx.kernels.gate_backward(*kept, *upstream, log_p.new_empty(2, *log_p.shape), g_weight, g_bias, g_features)
        return g_features, g_weight, g_bias, None, None


def fused_gate(gate: SoftmaxGate, features: Tensor, kernels: Kernels) -> GateBatch:
    """Evaluate the gate and its prior on `features` and lay out the work for the most probable experts."""
    out = _FusedGate.apply(features, gate.weight, gate.bias, gate, kernels)  # type: ignore[no-untyped-call]
    weights, usage, kl, conditional, marginal, log_p, rows, slots, counts = out
    return GateBatch(log_p, weights, usage, (kl, conditional, marginal), rows, slots, counts.tolist())
