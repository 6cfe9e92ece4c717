"""Sums over a complete binary tree in one array: draw by weight, change weights, both for many leaves at a time."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hvcl.errors import InputError
from hvcl.kernels import load_kernels

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]

_ANY = torch.zeros(1, dtype=torch.float32)
"""Stands for tensors that kernels can work on."""


class SumTree:
    """`capacity` leaves with weights of at least 0; node i has the children 2i and 2i + 1, and node 1 the total.

    Parents are recomputed from their children, never adjusted by differences: no rounding error ever piles up. Weights may be set
    any number of times before the sums above them are brought up to date, which happens once, when they are asked for. Only the
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
        root, kernels = self._leaves >> self._levels, load_kernels(_ANY)
        if kernels is None:
            node = np.full(len(rest), root)
            for _ in range(self._levels):
                node <<= 1
                left = nodes[node]
                right = rest >= left
                left *= right
                rest -= left
                node += right
        else:
            node = np.empty(len(rest), np.int64)
            kernels.tree_find(len(rest), self._levels, root, nodes.ctypes.data, rest.ctypes.data, node.ctypes.data)
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
        node, nodes, kernels = np.concatenate(self._changed), self._nodes, load_kernels(_ANY)
        self._changed = []
        if kernels is not None:
            kernels.tree_update(len(node), self._levels, node.ctypes.data, nodes.ctypes.data)
            return
        left, right = nodes[::2], nodes[1::2]
        for _ in range(self._levels):
            node = node >> 1
            nodes[node] = left[node] + right[node]
