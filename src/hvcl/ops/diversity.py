"""The compiled passes behind the diversity of experts; see `csrc/diversity.c`. The mathematics are in `hvcl.layers.diversity`.

Layers call `diversity` and `repel`; `add_distances` and `log_determinant` are the parts of the former, for the tests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from hvcl.ops.border import address, scratch
from hvcl.ops.library import Library

COLUMNS = 1024
"""As in hvcl.h."""


def add_distances(library: Library, values: Tensor, exponentials: bool, weight: float, which: Sequence[int], out: Tensor) -> None:
    """Add squared distances of the rows `which` of `values` ``[M, ...]`` (or of exponentials) to all rows to `out` ``[M, M]``."""
    experts, size = len(values), values[0].numel()
    room = scratch((len(which) + 1) * COLUMNS, "room")
    library.functions.pair_distances(
        experts,
        size,
        address(values, *values.shape),
        exponentials,
        weight,
        len(which),
        *_rows(which, experts),
        room.data_ptr(),
        address(out, experts, experts, dtype=torch.float64),
    )


def repel(library: Library, push: Tensor, values: Tensor, exponentials: bool, which: Sequence[int], out: Tensor) -> None:
    """The rows `which` of push (values - values[0]), or for exponentials of values times their own, to the same rows of `out`."""
    experts, size = len(values), values[0].numel()
    room = scratch(experts * experts + (2 * experts + 1) * COLUMNS, "room")
    push = push.contiguous()
    library.functions.repel(
        experts,
        size,
        address(push, experts, experts),
        address(values, *values.shape),
        exponentials,
        len(which),
        *_rows(which, experts),
        room.data_ptr(),
        address(out, *values.shape),
    )


def log_determinant(library: Library, distances: Tensor, width: float, jitter: float) -> tuple[float, Tensor]:
    r"""log det(K + jitter I) of the kernel :math:`K = \exp(-d / (2 h^2))` of squared distances (float64), and its Laplacian."""
    experts = len(distances)
    room = torch.empty(3 * experts * experts, dtype=torch.float64)
    laplacian = torch.empty(experts, experts, dtype=torch.float32)
    value: float = library.functions.log_determinant(
        experts,
        address(distances, experts, experts, dtype=torch.float64),
        width,
        jitter,
        address(room, 3 * experts * experts, dtype=torch.float64),
        address(laplacian, experts, experts),
    )
    return value, laplacian


def diversity(
    library: Library,
    mean: Tensor,
    log_sigma: Tensor,
    repeats: float,
    changed: Sequence[int],
    jitter: float,
    known: Tensor,
    widths: Tensor,
) -> tuple[float, Tensor]:
    """log det(K + jitter I) of each copy's experts, summed, and the Laplacians ``[C * M, C * M]``.

    Args:
        library: the compiled code.
        mean: ``[C * M, ...]``.
        log_sigma: like `mean`, or fewer, each counted `repeats` times.
        repeats: see `log_sigma`.
        changed: experts whose distances in `known` are not up to date.
        jitter: added to the diagonal.
        known: squared distances ``[C, M, M]`` (float64) of the means and, if they are as many, the sigmas; brought up to date.
        widths: of the kernels ``[C]``; those that are zero are measured and written.
    """
    total, size, sigmas, copies = mean.shape[0], mean[0].numel(), log_sigma[0].numel(), widths.shape[0]
    experts = total // copies
    laplacian = torch.empty(total, total, dtype=torch.float32)
    room = scratch(2 * (5 * experts * experts + 2 + (experts + 1) * COLUMNS), "room")
    value: float = library.functions.diversity(
        copies,
        experts,
        size,
        sigmas,
        address(mean, *mean.shape),
        address(log_sigma, *log_sigma.shape),
        repeats,
        len(changed),
        *_rows(changed, total),
        jitter,
        address(known, copies, experts, experts, dtype=torch.float64),
        address(widths, copies),
        room.data_ptr(),
        address(laplacian, total, total),
    )
    return value, laplacian


def _rows(which: Sequence[int], experts: int) -> tuple[ctypes.Array[ctypes.c_int64]]:
    """Row numbers for C, each of them in range and named once."""
    if any(not 0 <= row < experts for row in which) or len(set(which)) != len(which):
        raise IndexError(f"rows {list(which)} of {experts}")
    return ((ctypes.c_int64 * len(which))(*which),)
