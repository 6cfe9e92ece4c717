"""Sums over a complete binary tree, compiled; see `hvcl.rl.sum_tree`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvcl.ops.border import of_array
from hvcl.ops.library import Library

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]


def update(library: Library, nodes: Weights, leaves: Indices, levels: int) -> None:
    """The sums of so many levels above some leaves (numbers of nodes; overwritten), anew."""
    _check(nodes, leaves)
    at = of_array(leaves, len(leaves), dtype=np.int64), of_array(nodes, len(nodes))
    library.functions.tree_update(len(leaves), levels, *at)


def find(library: Library, nodes: Weights, masses: Weights, root: int, levels: int) -> Indices:
    """The leaves below `root` at which the running sum first exceeds each of `masses`, which are overwritten."""
    if root < 1 or (root + 1) << levels > len(nodes):
        raise IndexError(f"a tree of {len(nodes)} nodes has no {levels} levels below node {root}")
    found = np.empty(len(masses), np.int64)
    at = of_array(nodes, len(nodes)), of_array(masses, len(masses)), of_array(found, len(masses), dtype=np.int64)
    library.functions.tree_find(len(masses), levels, root, *at)
    return found


def _check(nodes: Weights, leaves: Indices) -> None:
    if len(leaves) and not (leaves.min() >= 0 and leaves.max() | 1 < len(nodes)):  # a sum reads both children
        raise IndexError(f"leaves from {leaves.min()} to {leaves.max()} of {len(nodes)} nodes")
