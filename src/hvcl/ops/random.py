"""Random numbers of the compiled generators, which a seed stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from hvcl.ops.border import address, random_seed, usable

__all__ = ["exponentials", "normals", "random_seed", "signs", "standard_normal"]


def standard_normal(like: Tensor) -> Tensor:
    """Independent standard normals in the shape of `like`, compiled where that is possible."""
    return torch.randn_like(like) if usable(like) is None else normals(random_seed(), *like.shape)


def normals(seed: int, *shape: int) -> Tensor:
    """The standard normals of a seed."""
    return _filled("standard_normals", seed, shape)


def signs(seed: int, *shape: int) -> Tensor:
    """The fair signs +-1 of a seed."""
    return _filled("random_signs", seed, shape)


def exponentials(seed: int, *shape: int) -> Tensor:
    """The exponentials (mean 1) of a seed."""
    return _filled("random_exponentials", seed, shape)


def _filled(function: str, seed: int, shape: tuple[int, ...]) -> Tensor:
    out = torch.empty(shape, dtype=torch.float32)
    library = usable(out)
    assert library is not None
    getattr(library.functions, function)(out.numel(), seed, address(out, *shape))
    return out
