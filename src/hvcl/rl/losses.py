"""The losses of critics and actor, each as one node of the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def weighted_squares(error: Tensor, weight: Tensor) -> Tensor:
    """1/2 of the sum over critics of the mean over rows of weight * error^2; errors ``[B, critics]``, weights ``[B]``."""
    loss: Tensor = _WeightedSquares.apply(error, weight)  # type: ignore[no-untyped-call]
    return loss


class _WeightedSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, error: Tensor, weight: Tensor) -> Tensor:
        slope = error * (weight / len(error)).unsqueeze(1)
        ctx.save_for_backward(slope)
        return 0.5 * torch.dot(slope.flatten(), error.flatten())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * grad, None


def soft_value_loss(log_pi: Tensor, q: Tensor, alpha: float) -> Tensor:
    """Mean over rows of alpha * log pi - min_i Q_i; log-probabilities ``[B]``, critics ``[B, critics]``."""
    loss: Tensor = _SoftValueLoss.apply(log_pi, q, alpha)  # type: ignore[no-untyped-call]
    return loss


class _SoftValueLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_pi: Tensor, q: Tensor, alpha: float) -> Tensor:
        least, which = q.min(1, keepdim=True)
        ctx.slope, ctx.alpha = torch.zeros_like(q).scatter_(1, which, -1 / len(q)), alpha
        return torch.sub(log_pi.mean() * alpha, least.mean())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return (grad * (ctx.alpha / len(ctx.slope))).expand(len(ctx.slope)), ctx.slope * grad, None
