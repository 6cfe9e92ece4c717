"""The compiled passes around the matrix product of patch features; see `csrc/patches.c`."""

from __future__ import annotations

import torch
from torch import Tensor

from hvcl.ops.border import address, optional
from hvcl.ops.library import Library


def patches_of(library: Library, image: Tensor, size: int, step: int, constant: float, rows: Tensor, scale: Tensor) -> None:
    """Patches of an image ``[C, H, W]``, `step` apart, as `rows` ``[places, C * size^2]``.

    To `scale` goes 1 / sqrt(variance + constant) of each.
    """
    channels, height, width = image.shape
    if min(height, width) < size or size < 1 or step < 1:
        raise IndexError(f"an image of {height} x {width} has no patches of {size} x {size}")
    places = ((height - size) // step + 1) * ((width - size) // step + 1)
    library.functions.patches_of(
        channels,
        height,
        width,
        size,
        step,
        constant,
        address(image, channels, height, width),
        address(rows, places, channels * size * size),
        address(scale, places),
    )


def check_cells(cell: Tensor, cells: int) -> None:
    """Raise `IndexError` unless every place belongs to one of so many cells; once, before `threshold_and_pool`."""
    if cell.dtype is not torch.int32 or not (int(cell.min()) >= 0 and int(cell.max()) < cells):
        raise IndexError(f"places must belong to cells from 0 to {cells - 1}")


def threshold_and_pool(
    library: Library,
    even: Tensor,
    odd: Tensor | None,
    scale: Tensor,
    offset: Tensor,
    cell: Tensor,
    mirrored: Tensor | None,
    threshold: float,
    up: Tensor,
    down: Tensor,
) -> None:
    """Add the two-sided thresholded responses ``[places, filters]`` to the cells that their places belong to.

    What is above the threshold goes to `up`, what is below minus the threshold to `down`, both ``[cells, filters]``; their rows
    may be apart from each other. Responses are `even` or, with `odd`, even + odd and, for the cells `mirrored`, even - odd. The
    cells have passed `check_cells`.
    """
    (places, filters), cells, apart = even.shape, len(up), up.stride(0)
    for sums in (up, down):
        if sums.shape != (cells, filters) or sums.stride() != (apart, 1) or apart < filters or sums.dtype is not torch.float32:
            raise IndexError(f"sums must be [{cells}, {filters}], got {tuple(sums.shape)} with strides {sums.stride()}")
    if (odd is None) != (mirrored is None):
        raise IndexError("odd responses and the cells of the mirror image come together")
    library.functions.threshold_and_pool(
        places,
        filters,
        apart,
        threshold,
        address(even, places, filters),
        optional(odd, places, filters),
        address(scale, places),
        address(offset, filters),
        address(cell, places, dtype=torch.int32),
        None if mirrored is None else address(mirrored, places, dtype=torch.int32),
        up.data_ptr(),
        down.data_ptr(),
    )
