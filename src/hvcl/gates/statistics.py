"""Sufficient statistics of the generative gate's Gaussian components: counts, sums and second moments, which only add up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError

_BY_ROW = ("count", "effective", "total", "sketch_total", "sketch_diagonal")
_NAMES = (*_BY_ROW, "square", "sketch_square", "spare")


class ComponentStatistics:
    """Counts, sums and second moments of the components (expert, label), and second moments of the sketch over all of them.

    Everything is float64 and additive: the order of the examples does not matter, statistics `merge` by addition, and examples
    can be taken out again (`subtract`).

    Args:
        dim: number of features.
        sketch_dim: numbers in the sketch that shifts are tested on (`hvcl.gates.shift`).
        tied: one second-moment matrix ``[dim, dim]`` for all components, else a diagonal ``[components, dim]`` for each.
    """

    def __init__(self, dim: int, sketch_dim: int, tied: bool) -> None:
        self.dim, self.sketch_dim, self.tied = dim, sketch_dim, tied
        self.keys: list[tuple[int, int]] = []
        """(expert, label) of each row; the label is -1 where examples came without one."""
        self.closed: set[int] = set()
        """Experts whose components were merged into others or dropped: their numbers are not given again."""
        self.count = torch.zeros(0, dtype=torch.float64)
        self.effective = torch.zeros(0, dtype=torch.float64)
        """Independent examples that say as much about a component's mean as its examples, some of which are repeated."""
        self.total = torch.zeros(0, dim, dtype=torch.float64)
        self.square = torch.zeros(dim if tied else 0, dim, dtype=torch.float64)
        self.sketch_total = torch.zeros(0, sketch_dim, dtype=torch.float64)
        self.sketch_diagonal = torch.zeros(0, sketch_dim, dtype=torch.float64)
        self.sketch_square = torch.zeros(sketch_dim, sketch_dim, dtype=torch.float64)
        self.spare = torch.zeros((), dtype=torch.float64)
        """Examples of dropped components whose scatter the pooled second moments still hold."""

    def empty(self) -> ComponentStatistics:
        """Statistics of no examples, of the same sizes."""
        return ComponentStatistics(self.dim, self.sketch_dim, self.tied)

    @property
    def examples(self) -> float:
        """Number of examples in all components."""
        return float(self.count.sum())

    @property
    def experts(self) -> int:
        """One more than the largest number of an expert that has a component or was closed; 0 without examples."""
        return max([-1, *self.closed, *(expert for expert, _ in self.keys)]) + 1

    @property
    def open(self) -> list[int]:
        """The experts that have components, in the order of their numbers."""
        return sorted({expert for expert, _ in self.keys})

    @property
    def expert_counts(self) -> Tensor:
        """Examples of each expert ``[experts]``."""
        experts = torch.tensor([expert for expert, _ in self.keys], dtype=torch.long)
        return torch.zeros(self.experts, dtype=torch.float64).index_add_(0, experts, self.count)

    def add(self, z: Tensor, sketch: Tensor, experts: Tensor, labels: Tensor, repeats: float = 1.0) -> None:
        """Add examples: features ``[B, dim]``, their sketch ``[B, sketch_dim]``, experts ``[B]`` and labels ``[B]``.

        `repeats` is how often each is repeated on average: the examples count as B / repeats independent ones.
        """
        pairs, place = torch.stack([experts, labels], 1).unique(dim=0, return_inverse=True)
        rows = self._rows([(expert, label) for expert, label in pairs.tolist()])[place]
        self.count.index_add_(0, rows, torch.ones(len(z), dtype=torch.float64))
        self.effective.index_add_(0, rows, torch.full((len(z),), 1 / repeats, dtype=torch.float64))
        self.total.index_add_(0, rows, z)
        self.sketch_total.index_add_(0, rows, sketch)
        self.sketch_diagonal.index_add_(0, rows, sketch.square())
        self.sketch_square.addmm_(sketch.T, sketch)
        if self.tied:
            self.square.addmm_(z.T, z)
        else:
            self.square.index_add_(0, rows, z.square())

    def merge(self, other: ComponentStatistics, first: int = 0) -> None:
        """Add other statistics; their expert m is expert `first` + m here."""
        rows = self._rows([(expert + first, label) for expert, label in other.keys])
        for name in self._by_row:
            getattr(self, name).index_add_(0, rows, getattr(other, name))
        self.sketch_square += other.sketch_square
        self.spare += other.spare
        if self.tied:
            self.square += other.square
        self.closed = (self.closed | {expert + first for expert in other.closed}) - {expert for expert, _ in self.keys}

    def subtract(self, other: ComponentStatistics) -> None:
        """Take other statistics out.

        Raises:
            InputError: if what would be left cannot be the statistics of any examples; then nothing has changed.
        """
        missing = [key for key in other.keys if key not in self.keys]
        if missing:
            raise InputError(f"cannot remove examples of (expert, label) {missing[0]}: none were learned")
        rows = self._rows(other.keys)
        count = self.count.index_add(0, rows, -other.count)
        total = self.total.index_add(0, rows, -other.total)
        square = self.square - other.square if self.tied else self.square.index_add(0, rows, -other.square)
        # by Cauchy and Schwarz: the squared sum is at most count times the sum of squares, up to rounding
        left = count[:, None].clamp_min(1e-9)
        bound = (total.square() / left).sum(0) if self.tied else total.square() / left
        moments = square.diagonal() if self.tied else square
        tolerance = 1e-9 * (self.square.diagonal() if self.tied else self.square) + 1e-9
        if bool((count < 0).any()) or bool((bound > moments + tolerance).any()):
            raise InputError("cannot remove these examples: they were not all learned with these experts and labels")
        kept = count > 0
        self.keys = [key for key, keep in zip(self.keys, kept.tolist(), strict=True) if keep]
        for name in ("sketch_total", "sketch_diagonal"):
            setattr(self, name, getattr(self, name).index_add(0, rows, -getattr(other, name))[kept])
        # which of the examples were repeated ones is not known any more
        self.effective = (self.effective * count / self.count)[kept]
        self.count, self.total, self.square = count[kept], total[kept], square if self.tied else square[kept]
        self.sketch_square = self.sketch_square - other.sketch_square

    def reassign(self, expert: int) -> None:
        """Assign all examples, which belong to a single expert so far, to `expert`."""
        self.keys = [(expert, label) for _, label in self.keys]

    def join(self, expert: int, into: int) -> None:
        """Expert `expert` becomes one with expert `into`, as if all its examples had been assigned to that; it is closed."""
        part = self.empty()
        rows = [row for row, (own, _) in enumerate(self.keys) if own == expert]
        part.keys = [(into, self.keys[row][1]) for row in rows]
        for name in self._by_row:
            setattr(part, name, getattr(self, name)[rows])
        self._keep([row for row, (own, _) in enumerate(self.keys) if own != expert])
        self.merge(part)
        self.closed = self.closed | {expert}

    def drop(self, expert: int) -> None:
        """Close an expert: its counts and sums are gone. What it told of the pooled scatter within components stays."""
        rows = [row for row, (own, _) in enumerate(self.keys) if own == expert]
        count = self.count[rows, None]
        root = self.sketch_total[rows] / count.sqrt()
        self.sketch_square = self.sketch_square - root.T @ root
        if self.tied:
            root = self.total[rows] / count.sqrt()
            self.square = self.square - root.T @ root
        self.spare = self.spare + (count - 1).sum()
        self._keep([row for row, (own, _) in enumerate(self.keys) if own != expert])
        self.closed = self.closed | {expert}

    @property
    def _by_row(self) -> tuple[str, ...]:
        """The names of the tensors with a row for each component."""
        return _BY_ROW if self.tied else (*_BY_ROW, "square")

    def _keep(self, rows: list[int]) -> None:
        self.keys = [self.keys[row] for row in rows]
        for name in self._by_row:
            setattr(self, name, getattr(self, name)[rows])

    def _rows(self, keys: list[tuple[int, int]]) -> Tensor:
        """The row of each key; rows of zeros are appended for keys that are new."""
        place = {key: row for row, key in enumerate(self.keys)}
        new = [key for key in dict.fromkeys(keys) if key not in place]
        if new:
            place.update((key, len(self.keys) + row) for row, key in enumerate(new))
            self.keys = self.keys + new
            for name in self._by_row:
                old = getattr(self, name)
                setattr(self, name, torch.cat([old, old.new_zeros(len(new), *old.shape[1:])]))
        return torch.tensor([place[key] for key in keys], dtype=torch.long)

    def state_dict(self) -> dict[str, Any]:
        """All sums, the key of each row, and the closed experts."""
        sums = {name: getattr(self, name).clone() for name in _NAMES}
        return {"keys": [list(key) for key in self.keys], "closed": sorted(self.closed), **sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        keys = [(int(expert), int(label)) for expert, label in state["keys"]]
        for name in _NAMES:
            own, saved = getattr(self, name), state[name]
            shape = (len(keys), *own.shape[1:]) if name in self._by_row else tuple(own.shape)
            if tuple(saved.shape) != shape or saved.dtype != own.dtype:
                raise RunError(f"the saved gate does not fit this one: {name} has shape {tuple(saved.shape)}, expected {shape}")
            setattr(self, name, saved.clone())
        self.keys, self.closed = keys, {int(expert) for expert in state["closed"]}


def cholesky(covariance: Tensor) -> Tensor:
    """Lower Cholesky factor of a covariance, which only rounding can have made indefinite: then `InputError`."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        raise InputError("features are of too different sizes for float64 statistics: standardise them, and check for outliers")
    return factor


def whiten(factor: Tensor, rows: Tensor) -> Tensor:
    """`rows` in the coordinates in which the covariance with the Cholesky factor `factor` is the identity."""
    white: Tensor = torch.linalg.solve_triangular(factor, rows.T, upper=False)
    return white.T
