"""Mean and maximum over all places, ``[B, C, ...]`` to ``[B, 2 C]``: what the gate of a convolutional layer reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops.border import address, usable
from hvcl.ops.library import Library


class _MeanAndMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, library: Library) -> Tensor:
        rows, channels = x.shape[:2]
        out = torch.empty(rows, 2 * channels, dtype=torch.float32)
        where = torch.empty(rows, channels, dtype=torch.int64)
        places = x[0, 0].numel()
        at = address(x, *x.shape), address(out, rows, 2 * channels), address(where, rows, channels, dtype=torch.int64)
        library.functions.pool_forward(rows, channels, places, *at)
        ctx.save_for_backward(where)
        ctx.shape, ctx.library = x.shape, library
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (where,) = ctx.saved_tensors
        rows, channels = where.shape
        grad, g_x = grad.contiguous(), torch.empty(ctx.shape, dtype=torch.float32)
        places = g_x[0, 0].numel()
        at = address(grad, rows, 2 * channels), address(where, rows, channels, dtype=torch.int64), address(g_x, *ctx.shape)
        ctx.library.functions.pool_backward(rows, channels, places, *at)
        return g_x, None


def mean_and_max(x: Tensor) -> Tensor:
    """Of every channel the mean over all places, then of every channel the maximum; compiled where that is possible."""
    library = usable(x) if x.numel() else None
    if library is not None:
        pooled: Tensor = _MeanAndMax.apply(x, library)  # type: ignore[no-untyped-call]
        return pooled
    places = x.flatten(2)
    # of equal maxima the first has the gradient, as above: amax would divide it
    return torch.cat([places.mean(2), places.max(2).values], 1)
