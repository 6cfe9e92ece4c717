"""A draw from the squashed Gaussian over masked actions, as one compiled call each way; see `hvcl.rl.squashed`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops.border import address, of_rows
from hvcl.ops.library import Library

Range = tuple[float, float]


def _squash(outputs: Tensor, mask: Tensor, limits: Range, library: Library) -> tuple[Tensor, Tensor, Tensor]:
    """Actions, log-probabilities, and what the way back needs."""
    rows, actions = mask.shape
    noise, action = torch.randn(rows, actions, dtype=torch.float32), torch.empty(rows, actions, dtype=torch.float32)
    density, kept = torch.empty(rows, dtype=torch.float32), torch.empty(2, rows, actions, dtype=torch.float32)
    library.functions.squash_forward(
        rows,
        actions,
        *limits,
        address(outputs, rows, 2 * actions),
        address(noise, rows, actions),
        *of_rows(mask, rows, actions),
        address(action, rows, actions),
        address(density, rows),
        address(kept, 2, rows, actions),
    )
    return action, density, kept


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, mask: Tensor, limits: Range, library: Library) -> tuple[Tensor, Tensor]:
        action, density, kept = _squash(outputs, mask, limits, library)
        ctx.save_for_backward(outputs, mask)
        ctx.limits, ctx.library, ctx.kept = limits, library, kept
        return action, density

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_action: Tensor, of_density: Tensor) -> tuple[Tensor | None, ...]:
        outputs, mask = ctx.saved_tensors
        rows, actions = mask.shape
        if of_action.stride(1) != 1:
            of_action = of_action.contiguous()
        of_density, found = of_density.contiguous(), torch.empty_like(outputs)
        ctx.library.functions.squash_backward(
            rows,
            actions,
            *ctx.limits,
            address(outputs, rows, 2 * actions),
            *of_rows(mask, rows, actions),
            address(ctx.kept, 2, rows, actions),
            *of_rows(of_action, rows, actions),
            address(of_density, rows),
            address(found, rows, 2 * actions),
        )
        return found, None, None, None


def sample(library: Library, outputs: Tensor, mask: Tensor, limits: Range) -> tuple[Tensor, Tensor]:
    """Actions ``[B, A]`` and their log-probabilities ``[B]`` from mu and log sigma (held in `limits`) ``[B, 2 A]``."""
    if not torch.is_grad_enabled():
        return _squash(outputs, mask, limits, library)[:2]
    drawn: tuple[Tensor, Tensor] = _Sample.apply(outputs, mask, limits, library)  # type: ignore[no-untyped-call]
    return drawn
