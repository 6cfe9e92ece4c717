r"""What each group of rows (a customer, a device) has added to the sums, so that it can be taken out without its rows.

All sums over a group's rows are sums and products of the rows :math:`(\phi, z, y)` of Z: features, the numbers of the novelty,
targets. Kept are the number of rows and their sum, in double precision, so that whole numbers stay whole, and the triangular
factor R with :math:`R^T R = (Z - \bar Z)^T (Z - \bar Z)`, in single precision. Rows count as often as their weights say. R has as
many rows as the group, but never more than columns, so the price in memory is :math:`4 \min(n, w)\, w + 8 (w + 1)` bytes a group
of n rows with :math:`w = F + k + C` columns: about 2 kB a row for 500 features, and 1 MB for a group of any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError, RunError
from hvcl.core.state import State
from hvcl.posteriors import MatrixNormal
from hvcl.posteriors.matrix_normal import NOTHING

Key = str | int

AGAIN = 1e-5
"""Error, relative to all squares of a group, that rows may have which are taken out of it: their features are computed again."""


@dataclass(frozen=True)
class Part:
    """A group's rows: how many, their sum, and their products around their mean."""

    count: float
    """Each row as often as its weight says."""
    total: Tensor
    """``[w]``, float64."""
    factor: Tensor
    """R ``[r, w]``, float32."""

    @classmethod
    def of(cls, rows: Tensor, weights: Tensor | None = None) -> Part:
        """Of rows ``[n, w]``, float64, with weights ``[n]``."""
        if weights is None:
            return cls(len(rows), rows.sum(0), _factor(rows - rows.mean(0)))
        count, total = float(weights.sum()), weights @ rows
        return cls(count, total, _factor(weights.sqrt().unsqueeze(1) * (rows - total / count)))

    @property
    def squares(self) -> float:
        """Sum of all squares, with a one for every row."""
        return float(self.factor.double().square().sum() + self.total.square().sum() / self.count) + self.count

    def wider(self, columns: int) -> Part:
        """With zeros for targets that have come since."""
        more = columns - len(self.total)
        return Part(self.count, F.pad(self.total, (0, more)), F.pad(self.factor, (0, more)))

    def moved(self, fixed: int, targets: list[int], outputs: int) -> Part:
        """With other numbers for the targets, which follow `fixed` columns."""
        columns = [*range(fixed), *(fixed + target for target in targets[: len(self.total) - fixed])]
        total, factor = self.total.new_zeros(fixed + outputs), self.factor.new_zeros(len(self.factor), fixed + outputs)
        total[columns], factor[:, columns] = self.total, self.factor
        return Part(self.count, total, factor)

    def plus(self, other: Part) -> Part:
        """Both; the number of columns is the same."""
        both = self.count + other.count
        away = math.sqrt(self.count * other.count / both) * (other.total / other.count - self.total / self.count)
        rows = torch.cat([self.factor.double(), other.factor.double(), away.unsqueeze(0)])
        return Part(both, self.total + other.total, _factor(rows))

    def minus(self, rows: Tensor, weights: Tensor | None = None) -> Part | None:
        """Without some of its rows; None: nothing is left. `InputError` if they cannot all be of this group."""
        times = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights
        count, total, squares = float(times.sum()), self.total - times @ rows, self.squares
        left = self.count - count
        if abs(left) <= NOTHING * self.count:
            left = 0
        if left < 0 or (not left and float(total.norm()) > AGAIN * math.sqrt(self.count * squares)):
            raise InputError("they are not all of it")
        if not left:
            return None
        mean, factor = times @ rows / count, self.factor.double()
        gone = times.sqrt().unsqueeze(1) * (rows - mean)
        away = math.sqrt(left * count / self.count) * (mean - total / left)
        values, vectors = torch.linalg.eigh(factor.T @ factor - gone.T @ gone - torch.outer(away, away))
        if float(values[0]) < -AGAIN * squares:
            raise InputError("they are not all of it")
        kept = slice(-min(len(self.factor), len(values)), None)
        return Part(left, total, _factor(values[kept].clamp_min(0).sqrt().unsqueeze(1) * vectors[:, kept].T))


@dataclass(frozen=True)
class GroupSums:
    """The sums over one group's rows."""

    count: float
    features: Tensor
    """Sum of phi ``[F]``."""
    targets: Tensor
    """Sum of y ``[C]``."""
    rows: Tensor
    """Their products are those of phi around its mean."""
    lines: Tensor
    """Likewise of y; the products of both are those of phi and y."""
    by_target: Tensor
    """Sum of z for each target ``[C, k]``."""
    total: Tensor
    """Sum of z ``[1, k]``."""
    square: Tensor
    """Sum of z z^T."""

    def model(self, targets: list[int] | None = None) -> MatrixNormal:
        """What has learned just these rows; with some of the targets, all by default."""
        chosen = slice(None) if targets is None else targets
        return MatrixNormal.of_sums(self.count, self.features, self.targets[chosen], self.rows, self.lines[:, chosen])


class Groups:
    """The part of every group."""

    def __init__(self) -> None:
        self.parts: dict[Key, Part] = {}

    @property
    def count(self) -> float:
        """Rows of all groups, by their weights."""
        return sum(part.count for part in self.parts.values())

    def add(self, key: Key, phi: Tensor, z: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Rows of a group: features, numbers of the novelty, targets (new ones are appended), weights."""
        new, before = Part.of(_rows(phi, z, y), weights), self.parts.get(key)
        self.parts[key] = new if before is None else before.wider(len(new.total)).plus(new)

    def merge(self, other: Groups, fixed: int, targets: list[int], outputs: int) -> None:
        """Add other groups; those with the same key become one.

        Args:
            other: its parts have `fixed` columns before the targets.
            fixed: features + numbers of the novelty.
            targets: the numbers of its targets here.
            outputs: number of targets here.
        """
        for key, part in other.parts.items():
            new, mine = part.moved(fixed, targets, outputs), self.parts.get(key)
            self.parts[key] = new if mine is None else mine.wider(fixed + outputs).plus(new)

    def sums(self, key: Key, features: int, size: int, outputs: int) -> GroupSums:
        """The sums of a group, with `features` features, `size` numbers of the novelty, `outputs` targets."""
        part = self._part(key).wider(features + size + outputs)
        phi, z, y = part.total.split([features, size, outputs])
        rows, novel, lines = part.factor.double().split([features, size, outputs], 1)
        by_target = lines.T @ novel + torch.outer(y, z) / part.count
        square = novel.T @ novel + torch.outer(z, z) / part.count
        return GroupSums(part.count, phi, y, rows, lines, by_target, z.unsqueeze(0), square)

    def remove(self, key: Key, phi: Tensor, z: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Take rows out of a group."""
        rows = _rows(phi, z, y)
        try:
            left = self._part(key).wider(rows.shape[1]).minus(rows, weights)
        except InputError as error:
            raise InputError(f"cannot forget these rows of group {key!r}: {error}") from None
        if left is None:
            del self.parts[key]
        else:
            self.parts[key] = left

    def _part(self, key: Key) -> Part:
        if key not in self.parts:
            raise InputError(f"there is no group {key!r}: it was never learned, or is forgotten already")
        return self.parts[key]

    def state_dict(self) -> State:
        """Keys and parts."""
        parts = list(self.parts.values())
        return {
            "keys": list(self.parts),
            "counts": [part.count for part in parts],
            "totals": [part.total for part in parts],
            "factors": [part.factor for part in parts],
        }

    def load_state_dict(self, state: State, fixed: int) -> None:
        """Restore what `state_dict` returned; `RunError` if parts have less than `fixed` columns."""
        self.parts = {}
        for key, count, total, factor in zip(state["keys"], state["counts"], state["totals"], state["factors"], strict=True):
            shapes = total.dim() == 1 and len(total) >= fixed and factor.dim() == 2 and factor.shape[1] == len(total)
            if not shapes or total.dtype != torch.float64 or factor.dtype != torch.float32 or not count > 0:
                raise RunError(f"the saved groups do not fit: they must have at least {fixed} columns")
            self.parts[key] = Part(count, total.clone(), factor.clone())


def check_group(key: Any) -> Key:
    """A group's name as it is kept; `InputError` unless it is a text or a whole number."""
    if hasattr(key, "item") and getattr(key, "ndim", 1) == 0:
        key = key.item()
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InputError(f"a group is named by one text or whole number for all rows of a call, got {type(key).__name__}")
    return key


def _rows(phi: Tensor, z: Tensor, y: Tensor) -> Tensor:
    return torch.cat([phi.double(), z.double(), y.double()], 1)


def _factor(rows: Tensor) -> Tensor:
    """R of rows = Q R, single precision; also of fewer rows than columns, so that no row is kept as it was."""
    factor: Tensor = torch.linalg.qr(rows, mode="r")[1]
    return factor.float().contiguous()  # in memory as in a file: sums are then the same to the last bit
