"""Sums over a complete binary tree in one array: draw by weight, change weights, both for many leaves at a time."""

from __future__ import annotations

import numpy as np

from hvcl.core.errors import InputError
from hvcl.ops import tree, usable
from hvcl.ops.tree import Indices, Weights


class SumTree:
    """`capacity` leaves with weights of at least 0; node i has the children 2i and 2i + 1, and node 1 the total.

    Parents are recomputed from their children, never adjusted by differences: no rounding error ever piles up. Weights may be set
    any number of times before the sums above them are brought up to date, which happens once, when they are read. Only the
    smallest subtree that has all leaves with weights is walked through, by a compiled call where there is a compiler: the same
    additions in the same order, hence the same numbers.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InputError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._leaves = 1 << max(1, (capacity - 1).bit_length())
        self._nodes = np.zeros(2 * self._leaves)
        self._changed: list[Indices] = []
        self._levels = 0
        """Above the leaves, to the root of the subtree in use."""

    def set(self, leaves: Indices, weights: Weights) -> None:
        """New weights of some leaves; of a leaf that is named twice the last counts."""
        places = np.asarray(leaves, np.int64) + self._leaves
        self._nodes[places] = weights
        self._levels = max(self._levels, int(leaves.max(initial=0)).bit_length())
        self._changed.append(places)

    def get(self, leaves: Indices) -> Weights:
        """Weights of some leaves."""
        weights: Weights = self._nodes[leaves + self._leaves]
        return weights

    @property
    def total(self) -> float:
        """The sum of all weights."""
        self._bring_up_to_date()
        return float(self._nodes[self._leaves >> self._levels])

    def find(self, masses: Weights) -> Indices:
        """The leaves at which the running sum of the weights first exceeds each of `masses`, all of them below `total`."""
        self._bring_up_to_date()
        nodes, rest = self._nodes, np.array(masses, np.float64)
        root, library = self._leaves >> self._levels, usable()
        if library is None:
            node = np.full(len(rest), root)
            for _ in range(self._levels):
                node <<= 1
                left = nodes[node]
                right = rest >= left
                left *= right
                rest -= left
                node += right
        else:
            node = tree.find(library, nodes, rest, root, self._levels)
        # rounding may push a mass past the end of a subtree, into leaves of weight 0: take the last leaf before them that has one
        lost = nodes[node] == 0
        if lost.any():
            heavy = np.flatnonzero(nodes[self._leaves :]) + self._leaves
            node[lost] = heavy[np.searchsorted(heavy, node[lost]) - 1]
        node -= self._leaves
        return node

    def weights(self, count: int) -> Weights:
        """Weights of the first `count` leaves, a copy."""
        return self._nodes[self._leaves : self._leaves + count].copy()

    def clear(self) -> None:
        """All weights 0."""
        self._nodes = np.zeros_like(self._nodes)  # fresh memory is zero for free
        self._changed = []
        self._levels = 0

    def _bring_up_to_date(self) -> None:
        if not self._changed:
            return
        node, nodes, library = np.concatenate(self._changed), self._nodes, usable()
        self._changed = []
        if library is not None:
            tree.update(library, nodes, node, self._levels)
            return
        left, right = nodes[::2], nodes[1::2]
        for _ in range(self._levels):
            node = node >> 1
            nodes[node] = left[node] + right[node]
