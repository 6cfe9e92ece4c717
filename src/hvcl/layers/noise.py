"""Cheap random numbers for the estimators, all of them from torch's global generator in the end."""

from __future__ import annotations

import torch
from torch import Tensor

from hvcl.kernels import load_kernels

_SIGNS = (2 * (torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1) - 1).to(torch.float32)
"""All 256 bytes as rows of eight signs."""


def random_signs(rows: int, columns: int, like: Tensor) -> Tensor:
    """Independent fair signs +-1, ``[rows, columns]``: eight to a random byte, far cheaper than bernoulli_."""
    count = rows * columns
    words = torch.empty(-(-count // 64), dtype=torch.int64, device=like.device).random_(-(2**63), None)
    signs = _SIGNS.to(like).index_select(0, words.view(torch.uint8).int())
    return signs.flatten()[:count].view(rows, columns)


def standard_normal(like: Tensor) -> Tensor:
    """Independent standard normals in the shape of `like`, compiled where that is possible."""
    kernels = load_kernels(like)
    return torch.randn_like(like) if kernels is None else kernels.standard_normals(random_seed(), torch.empty_like(like))


class Signs:
    """Independent fair signs for a matrix, to be applied to any matrix of its shape.

    Compiled, they are never stored: a seed stands for them, and they are made anew each time, faster than they could be read.
    """

    def __init__(self, rows: int, columns: int, like: Tensor) -> None:
        self._seed = random_seed() if load_kernels(like) else None
        self._signs = random_signs(rows, columns, like) if self._seed is None else None

    def __call__(self, x: Tensor) -> Tensor:
        """`x` with these signs."""
        if self._signs is not None:
            return x * self._signs
        assert self._seed is not None
        x = x.contiguous()
        kernels = load_kernels(x)
        assert kernels is not None
        return kernels.random_flip(self._seed, x)

    def add_to(self, out: Tensor, x: Tensor) -> None:
        """Add `x` with these signs to `out`, in place."""
        if self._signs is not None:
            out.addcmul_(x, self._signs)
            return
        kernels = load_kernels(out)
        assert kernels is not None
        assert self._seed is not None
        kernels.add_random_flip(self._seed, x.contiguous(), out)


def random_seed() -> int:
    """A seed for a compiled generator, from torch's."""
    return int(torch.empty((), dtype=torch.int64).random_().item())
