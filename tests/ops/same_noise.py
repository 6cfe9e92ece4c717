"""Lets plain operations draw the random numbers that a compiled pass draws from its seed."""

from __future__ import annotations

import torch
from torch import Tensor

import hvcl.layers.base as base
from hvcl.layers import MoVELayer, MoVELinear
from hvcl.ops import dense
from hvcl.ops import random as ops_random

MASK = 2**64 - 1


def splitmix(state: int) -> tuple[int, int]:
    """As in random.c: the next state, and the number that it gives."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def seeds_of(seed: int) -> list[int]:
    """Of weight noise, signs of inputs, signs of outputs, routing."""
    found = []
    for _ in range(4):
        seed, number = splitmix(seed)
        found.append(number)
    return found


class SameNoise:
    """Fixes the seed of compiled passes, and makes plain passes of a layer draw the same numbers.

    Compiled code draws slot by slot for each copy; of several copies plain operations draw everything at once.
    """

    def __init__(self, monkeypatch, seed: int = 12345) -> None:
        self.seed = seed
        for module in ("dense", "conv", "gate"):
            monkeypatch.setattr(f"hvcl.ops.{module}.random_seed", lambda: self.seed)
        self.monkeypatch = monkeypatch

    def for_plain(self, layer: MoVELayer, batch: int) -> None:
        """The next plain pass of `layer` on a batch (of each copy) draws what a compiled one would."""
        copies, slots = layer.copies, batch * layer.top_k
        every = [seeds_of((self.seed + 0xD1342543DE82EF95 * copy) & MASK) for copy in range(copies)]
        dtype = layer.posterior.mean.dtype

        def normal(like: Tensor) -> Tensor:
            if layer.estimator == "flipout":
                assert copies == 1, "one draw for all experts: copies have their own"
                return ops_random.normals(every[0][0], *like.shape).to(dtype)
            return self._by_slot(lambda c, shape: ops_random.normals(every[c][0], *shape), like, slots, layer).to(dtype)

        calls = iter((1, 2))

        def signs(rows: int, columns: int, like: Tensor) -> Tensor:
            which = next(calls)
            parts = [ops_random.signs(seeds[which], rows // copies, columns) for seeds in every]
            return torch.cat(parts).to(dtype)

        self.monkeypatch.setattr(base, "standard_normal", normal)
        self.monkeypatch.setattr(base, "random_signs", signs)

        def exponential(out: Tensor, *_: object, **__: object) -> Tensor:
            drawn = [race(seeds[3] if isinstance(layer, MoVELinear) else self.seed, batch, layer.experts) for seeds in every]
            return out.copy_(torch.stack(drawn))

        self.monkeypatch.setattr(Tensor, "exponential_", exponential)

    @staticmethod
    def _by_slot(draw, like: Tensor, slots: int, layer: MoVELayer) -> Tensor:
        shape = (slots, *like.shape[1:])
        if isinstance(layer, MoVELinear):
            return torch.cat([draw(copy, shape) for copy in range(layer.copies)])
        raise NotImplementedError


def race(seed: int, rows: int, experts: int) -> Tensor:
    """The exponentials of a gate's race ``[rows, experts]``: 64 rows of every expert at a time."""
    blocks = -(-rows // 64)
    drawn = ops_random.exponentials(seed, blocks, experts, 64)
    return drawn.transpose(1, 2).reshape(blocks * 64, experts)[:rows]


__all__ = ["SameNoise", "dense", "race", "seeds_of"]
