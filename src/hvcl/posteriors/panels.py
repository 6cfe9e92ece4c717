"""A symmetric matrix of sums of products, kept as panels of rows up to the diagonal: half the memory of the whole.

In the blocks on the diagonal only the lower triangle counts; what is above it may be anything.
"""

from __future__ import annotations

import torch
from scipy.linalg.blas import dsyrk, ssyrk
from torch import Tensor

from hvcl.core.blas import threads_of_torch

PANEL = 1024
"""Rows that are updated at once; only columns up to the end of the block on the diagonal are kept."""


def empty_panels(size: int, dtype: torch.dtype) -> list[Tensor]:
    """Zeros for a matrix ``[size, size]``."""
    return [torch.zeros(min(PANEL, size - i), min(i + PANEL, size), dtype=dtype) for i in range(0, size, PANEL)]


def add_products(panels: list[Tensor], rows: Tensor, sign: int = 1) -> None:
    """Add (or take away) the products of the columns of `rows` ``[B, size]``, in place."""
    for first, panel in _placed(panels):
        mine = rows[:, first : first + len(panel)].T
        if first or not panel.is_contiguous():
            panel.addmm_(mine, rows[:, : panel.shape[1]], alpha=sign)
        elif len(rows):
            # all of it lies on the diagonal: half the products will do
            syrk = dsyrk if panel.dtype == torch.float64 else ssyrk
            with threads_of_torch(len(rows) * len(panel) ** 2 / 2):
                syrk(float(sign), mine.numpy(), beta=1.0, c=panel.numpy().T, overwrite_c=True)


def diagonal(panels: list[Tensor]) -> Tensor:
    """The diagonal ``[size]``, in double precision."""
    return torch.cat([panel[:, first:].diagonal() for first, panel in _placed(panels)]).double()


def lower_triangle(panels: list[Tensor], into: Tensor) -> Tensor:
    """Write the matrix into the first rows and columns of `into`; what is above the blocks on the diagonal stays as it was."""
    for first, panel in _placed(panels):
        into[first : first + len(panel), : panel.shape[1]] = panel
    return into


def times(panels: list[Tensor], right: Tensor) -> Tensor:
    """The matrix times ``[size, C]``, in double precision."""
    out = torch.zeros_like(right)
    for first, panel in _placed(panels):
        block, mine = panel.double(), slice(first, first + len(panel))
        lower = block[:, first:].tril()
        out[mine] += block[:, :first] @ right[:first] + lower @ right[mine] + lower.tril(-1).T @ right[mine]
        out[:first] += block[:, :first].T @ right[mine]
    return out


def _placed(panels: list[Tensor]) -> list[tuple[int, Tensor]]:
    """Each panel with the number of its first row."""
    return [(panel.shape[1] - len(panel), panel) for panel in panels]
