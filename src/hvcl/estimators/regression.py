"""Ridge regression from sums that may be discounted: what the filter over concepts is made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv, sposv
from torch import Tensor

from hvcl.core.blas import threads_of_torch
from hvcl.core.errors import RunError
from hvcl.core.state import State
from hvcl.posteriors.matrix_normal import NOTHING

RIDGE = 1.0
"""Of all regressions: their features have about unit size."""

SINGLE = 256
"""Half-life up to which regressions are solved in single precision."""

STALE = 8
"""Regressions are solved anew when an eighth of their rows is new."""


class Regression:
    """Ridge regression from sums that may be discounted. Weights are replaced and never changed: whoever has them may keep them.

    Args:
        features: D.
        outputs: C.
        half_life: rows after which the sums have lost half their weight; infinite: never.
        used: the first so many features are used; None: all.
    """

    def __init__(self, features: int, outputs: int, half_life: float = math.inf, used: int | None = None) -> None:
        self.half_life = half_life
        self.used = features if used is None else used
        self.weights = torch.zeros(features, outputs, dtype=torch.float64)
        self.clear()

    def clear(self) -> None:
        """As if nothing had been learned."""
        outputs = self.weights.shape[1]
        self.second = torch.zeros(self.used, self.used, dtype=torch.float64)
        self.cross = torch.zeros(self.used, outputs, dtype=torch.float64)
        self.weights = torch.zeros_like(self.weights)
        self.count = 0.0
        self.new = 0.0

    def add(self, second: Tensor, cross: Tensor, count: float) -> None:
        """Sums over a block of rows; a negative count takes them out."""
        second, cross = second[: self.used, : self.used], cross[: self.used]
        if math.isfinite(self.half_life):
            left = 0.5 ** (count / self.half_life)
            # one pass over the sums, which are larger than a cache
            torch.add(second, self.second, alpha=left, out=self.second)
            torch.add(cross, self.cross, alpha=left, out=self.cross)
            self.count *= left
        else:
            sign = 1.0 if count > 0 else -1.0
            self.second.add_(second, alpha=sign)
            self.cross.add_(cross, alpha=sign)
        self.count = max(self.count + count, 0.0)
        self.new += abs(count)

    def remove(self, phi: Tensor, targets: Tensor, counts: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
        """Take rows out whose weights have become these since; returns the share of the rows that is left.

        Args:
            phi: features ``[n, D]``, each row times the root of what it counts as.
            targets: ``[n, C]``, likewise.
            counts: what the rows count as ``[n]``.
            weights: what is left of each ``[n]``; zero: it is not in these sums.
        """
        here = np.flatnonzero(weights)
        if not len(here):
            return 1.0
        before, left = self.count, self.count - float(counts[here] @ weights[here])
        if left <= NOTHING * before:
            self.clear()
            return 0.0
        rows = torch.from_numpy(here)
        root = torch.from_numpy(np.sqrt(weights[here])).unsqueeze(1)
        some, lines = phi[rows, : self.used] * root, targets[rows] * root
        self.second.addmm_(some.T, some, alpha=-1)
        self.cross.addmm_(some.T, lines, alpha=-1)
        self.count = self.new = left
        self.solve()
        return left / before

    def solve(self) -> None:
        """New weights, if enough rows are new."""
        if not self.new or self.new * STALE < self.count:
            return
        # the sums of few rows are far from singular beside the ridge: single precision will do, in half the time
        ridge, single, places = RIDGE, self.half_life <= SINGLE and self.used > STALE, np.arange(self.used)
        while True:
            ridged: NDArray[Any] = self.second.numpy().astype(np.float32 if single else np.float64)
            cross: NDArray[Any] = self.cross.numpy().astype(ridged.dtype, order="F")
            ridged[places, places] += ridge
            # in place, and of one triangle: torch copies the matrix, transposed, and clears the other one
            with threads_of_torch(self.used**3 / 6):
                _, solved, failed = (sposv if single else dposv)(ridged.T, cross, overwrite_a=True, overwrite_b=True)
            if not failed:
                break
            # what rows were taken out of can be indefinite by the rounding of their sums
            ridge, single = (ridge if single else 2 * ridge), False
        weights = torch.zeros_like(self.weights)
        weights[: self.used] = torch.from_numpy(solved)
        self.weights, self.new = weights, 0.0

    def grow(self, outputs: int) -> None:
        """Room for more outputs."""
        more = outputs - self.cross.shape[1]
        self.cross = torch.nn.functional.pad(self.cross, (0, more))
        self.weights = torch.nn.functional.pad(self.weights, (0, more))

    def state_dict(self) -> State:
        """Sums and weights."""
        return {
            "half_life": None if math.isinf(self.half_life) else self.half_life,
            "second": self.second,
            "cross": self.cross,
            "weights": self.weights,
            "count": self.count,
            "new": self.new,
        }

    @classmethod
    def from_state(cls, state: State, features: int, outputs: int, used: int | None = None) -> Regression:
        """What `state_dict` returned; `RunError` if it does not fit."""
        made = cls(features, outputs, math.inf if state["half_life"] is None else float(state["half_life"]), used)
        for name in ("second", "cross", "weights"):
            value = state[name]
            if value.shape != getattr(made, name).shape or value.dtype != torch.float64 or not bool(value.isfinite().all()):
                raise RunError(f"the saved filter over concepts does not fit: {name} of shape {tuple(value.shape)}")
            setattr(made, name, value.clone())
        made.count, made.new = float(state["count"]), float(state["new"])
        return made
