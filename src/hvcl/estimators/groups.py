r"""What each group of rows (a customer, a device) has added to the sums, so that it can be taken out without its rows.

All sums over a group's rows are entries of :math:`Z^T Z` with the rows :math:`(1, \phi, z, y)` of Z: features, the numbers of the
novelty, targets. Kept is the triangular factor R with :math:`R^T R = Z^T Z`, in single precision. It has as many rows as the
group, but never more than columns, so the price in memory is :math:`4 \min(n, w)\, w` bytes a group of n rows with
:math:`w = 1 + F + k + C` columns: about 2 kB a row for 500 features, and 1 MB for a group of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError, RunError
from hvcl.core.state import State
from hvcl.posteriors import MatrixNormal

Key = str | int


@dataclass(frozen=True)
class GroupSums:
    """The sums over one group's rows."""

    head: State
    """State of a `MatrixNormal` that learned the group's rows."""
    by_target: Tensor
    """Sum of z for each target ``[C, k]``."""
    total: Tensor
    """Sum of z ``[1, k]``."""
    square: Tensor
    """Sum of z z^T."""


class Groups:
    """The factor of every group."""

    def __init__(self) -> None:
        self.factors: dict[Key, Tensor] = {}

    def add(self, key: Key, phi: Tensor, z: Tensor, y: Tensor) -> None:
        """Rows of a group: features, numbers of the novelty, targets (new ones are appended)."""
        rows = torch.cat([torch.ones(len(phi), 1, dtype=torch.float64), phi.double(), z.double(), y.double()], 1)
        before = self.factors.get(key)
        self.factors[key] = _factor(rows if before is None else torch.cat([_padded(before, rows.shape[1]).double(), rows]))

    def merge(self, other: Groups, fixed: int, targets: list[int], outputs: int) -> None:
        """Add other groups; those with the same key become one.

        Args:
            other: its factors have `fixed` columns before the targets.
            fixed: 1 + features + numbers of the novelty.
            targets: the numbers of its targets here.
            outputs: number of targets here.
        """
        for key, factor in other.factors.items():
            moved = torch.zeros(len(factor), fixed + outputs)
            moved[:, :fixed] = factor[:, :fixed]
            moved[:, [fixed + target for target in targets[: factor.shape[1] - fixed]]] = factor[:, fixed:]
            mine = self.factors.get(key)
            if mine is not None:
                moved = _factor(torch.cat([_padded(mine, fixed + outputs), moved]).double())
            self.factors[key] = moved

    def sums(self, key: Key, features: int, size: int, outputs: int) -> GroupSums:
        """The sums of a group, with `features` features, `size` numbers of the novelty, `outputs` targets."""
        if key not in self.factors:
            raise InputError(f"there is no group {key!r}: it was never learned, or is forgotten already")
        factor = _padded(self.factors[key].double(), 1 + features + size + outputs)
        one, phi, z, y = factor.split([1, features, size, outputs], 1)
        model = MatrixNormal(features, outputs)
        model.add(phi, y)
        head = model.state_dict() | {
            "count": round(float(one.square().sum())),
            "feature_sum": phi.T @ one[:, 0],
            "target_sum": y.T @ one[:, 0],
            "target_square": y.T @ y,
        }
        return GroupSums(head, y.T @ z, (z.T @ one).T, z.T @ z)

    def remove(self, key: Key, phi: Tensor, z: Tensor, y: Tensor) -> None:
        """Take rows out of a group: R^T R loses their products."""
        if key not in self.factors:
            raise InputError(f"there is no group {key!r}: it was never learned, or is forgotten already")
        rows = torch.cat([torch.ones(len(phi), 1, dtype=torch.float64), phi.double(), z.double(), y.double()], 1)
        factor = _padded(self.factors[key].double(), rows.shape[1])
        left = factor.T @ factor - rows.T @ rows
        values, vectors = torch.linalg.eigh(left)
        size = float(factor.square().sum())
        if float(values[0]) < -1e-5 * size:
            raise InputError(f"cannot forget these rows: they are not all of group {key!r}")
        kept = values > 1e-6 * size / len(values)
        if not bool(kept.any()):
            del self.factors[key]
            return
        self.factors[key] = _factor(values[kept].sqrt().unsqueeze(1) * vectors[:, kept].T)

    def state_dict(self) -> State:
        """Keys and factors."""
        return {"keys": list(self.factors), "factors": list(self.factors.values())}

    def load_state_dict(self, state: State, fixed: int) -> None:
        """Restore what `state_dict` returned; `RunError` if factors have less than `fixed` columns."""
        if any(factor.dim() != 2 or factor.shape[1] < fixed or factor.dtype != torch.float32 for factor in state["factors"]):
            raise RunError(f"the saved groups do not fit: their factors must have at least {fixed} columns")
        self.factors = {key: factor.clone() for key, factor in zip(state["keys"], state["factors"], strict=True)}


def check_group(key: Any) -> Key:
    """A group's name as it is kept; `InputError` unless it is a text or a whole number."""
    if hasattr(key, "item") and getattr(key, "ndim", 1) == 0:
        key = key.item()
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InputError(f"a group is named by one text or whole number for all rows of a call, got {type(key).__name__}")
    return key


def taken_out(whole: State, part: State, counts: bool) -> State:
    """The sums of a `MatrixNormal` without those of some of its examples.

    Args:
        whole: state of a model.
        part: state of a model that learned some of the examples.
        counts: whether targets are indicators of classes, whose sums are whole numbers.
    """
    left: State = whole | {"count": whole["count"] - part["count"]}
    if left["count"] < 0:
        raise InputError("cannot take out more rows than were learned")
    for name, value in whole.items():
        if isinstance(value, list):
            left[name] = [a - b for a, b in zip(value, part[name], strict=True)]
        elif isinstance(value, Tensor):
            left[name] = value - part[name]
    if left["count"] and not _positive(left, whole):
        raise InputError("cannot forget this group: some of its rows are forgotten already")
    if counts:
        left["target_sum"], left["target_square"] = left["target_sum"].round(), left["target_square"].round()
    if not left["count"]:
        # nothing but rounding is left
        left = {name: _zeros(value) for name, value in left.items()} | {"peak": whole["peak"]}
    return left


def _positive(left: State, whole: State) -> bool:
    """Whether second moments are those of examples, up to the rounding of the sums: positive semi-definite around their mean."""
    features = len(left["feature_sum"])
    moments = torch.zeros(features, features, dtype=torch.float64)
    first = 0
    for panel in left["panels"]:
        moments[first : first + len(panel), : panel.shape[1]] = panel
        first += len(panel)
    moments = moments.tril() + moments.tril(-1).T
    moments -= torch.outer(left["feature_sum"], left["feature_sum"]) / left["count"]
    typical = sum(float(panel[:, panel.shape[1] - len(panel) :].diagonal().sum()) for panel in whole["panels"]) / features
    moments.diagonal().add_((1e-5 + 4 * torch.finfo(torch.float32).eps * features) * typical)
    return int(torch.linalg.cholesky_ex(moments)[1]) == 0


def _zeros(value: Any) -> Any:
    if isinstance(value, list):
        return [torch.zeros_like(item) for item in value]
    return torch.zeros_like(value) if isinstance(value, Tensor) else 0


def _padded(factor: Tensor, columns: int) -> Tensor:
    return F.pad(factor, (0, columns - factor.shape[1]))


def _factor(rows: Tensor) -> Tensor:
    """R of rows = Q R, single precision; also of fewer rows than columns, so that no row is kept as it was."""
    factor: Tensor = torch.linalg.qr(rows, mode="r")[1]
    return factor.float().contiguous()  # in memory as in a file: sums are then the same to the last bit
