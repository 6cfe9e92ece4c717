"""The compiled passes around the matrix product of patch features."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from hvcl.kernels.library import load_library


class PatchKernels:
    """The functions of patches.c, on contiguous float32 CPU tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        size, number, pointer = ctypes.c_ssize_t, ctypes.c_float, ctypes.c_void_p
        self._patches_of = library.patches_of
        self._patches_of.argtypes, self._patches_of.restype = [*[size] * 4, number, *[pointer] * 3], None
        self._pool = library.threshold_and_pool
        self._pool.argtypes, self._pool.restype = [*[size] * 3, number, *[pointer] * 6], None

    def patches_of(self, image: Tensor, size: int, constant: float, rows: Tensor, scale: Tensor) -> None:
        """Patches of an image as rows, and 1 / sqrt(variance + constant) of each."""
        self._patches_of(*image.shape, size, constant, image.data_ptr(), rows.data_ptr(), scale.data_ptr())

    def threshold_and_pool(
        self, responses: Tensor, scale: Tensor, offset: Tensor, cell: Tensor, threshold: float, up: Tensor, down: Tensor
    ) -> None:
        """Add the two-sided thresholded responses to the cells that their places belong to; see patches.c."""
        arrays = (responses, scale, offset, cell, up, down)
        self._pool(*responses.shape, up.stride(0), threshold, *[array.data_ptr() for array in arrays])


@lru_cache(maxsize=1)
def load_patch_kernels() -> PatchKernels | None:
    """The compiled functions, or None where they cannot be had."""
    library = load_library(Path(__file__).with_name("patches.c"))
    return None if library is None else PatchKernels(library)
