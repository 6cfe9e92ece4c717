"""The distribution of the examples' distances from what was learned before them, for p-values of novelty."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BINS = 1024
"""Cells of the histogram, even in the logarithm of the distance."""

_LOWEST, _HIGHEST = math.log(1e-3), math.log(1e5)

MEMORY = (256.0, 10_000.0)
"""Bounds of the sum S of all weights that the decay of old ones is set by: the weight of an example halves, roughly, with every
1.4 S that follow. In between the t-th of N examples weighs t / N, and S = N / 2. Distances become smaller as the gate learns, so
old ones must not count for ever."""


class Calibration:
    """A histogram of distances, in which newer ones count more.

    Args:
        counts: of another one, to go on from; None: of no examples.
    """

    def __init__(self, counts: Tensor | None = None) -> None:
        self.counts = torch.zeros(BINS, dtype=torch.float64) if counts is None else counts

    def count(self, distance: Tensor) -> None:
        """Add distances ``[B]``."""
        memory = min(max(float(self.counts.sum()), MEMORY[0]), MEMORY[1])
        new = torch.bincount(self._place(distance).long().clamp_max(BINS - 1), minlength=BINS)
        self.counts = self.counts * math.exp(-len(distance) / (2 * memory)) + new

    def share(self, distance: Tensor) -> Tensor:
        """The share of distances that are at least as large ``[B]``, one more of which is taken to be each one itself."""
        place = self._place(distance)
        cell = place.long().clamp_max(BINS - 1)
        beyond = self.counts.flip(0).cumsum(0).flip(0)
        within = (place - cell).clamp(0, 1) * self.counts[cell]
        return (1 + (beyond[cell] - within).clamp_min(0)) / (1 + float(self.counts.sum()))

    def plus(self, other: Calibration) -> Calibration:
        """The histogram of the distances of both."""
        return Calibration(self.counts + other.counts)

    @staticmethod
    def _place(distance: Tensor) -> Tensor:
        """The cell of each distance, with a fraction."""
        return ((distance.clamp_min(1e-30).log() - _LOWEST) / (_HIGHEST - _LOWEST) * BINS).clamp(0, BINS)
