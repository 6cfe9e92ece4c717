"""Labels of users (texts, whole numbers, numbers, truth values) and the output units that stand for them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hvcl.core.errors import InputError, RunError
from hvcl.core.state import State

LabelKind = Literal["int", "float", "bool", "str"]

_TYPES: dict[str, type[Any]] = {"int": int, "float": float, "bool": bool, "str": str}


class Labels:
    """Every label has a unit, in the order of first appearance; `classes` are in sorted order, as scikit-learn has them."""

    def __init__(self) -> None:
        self.kind: LabelKind | None = None
        self.values: list[Any] = []
        """The label of each unit."""
        self._order = np.zeros(0, dtype=np.int64)

    def copy(self) -> Labels:
        """The same labels, which can grow apart."""
        other = Labels()
        other.kind, other.values = self.kind, list(self.values)
        return other

    @property
    def classes(self) -> NDArray[Any]:
        """All labels so far, sorted."""
        return np.array(sorted(self.values))

    @property
    def order(self) -> NDArray[np.int64]:
        """The units in the order of `classes`."""
        if len(self._order) != len(self.values):
            self._order = np.array(sorted(range(len(self.values)), key=self.values.__getitem__), dtype=np.int64)
        return self._order

    def add(self, y: NDArray[Any]) -> None:
        """Give units to labels that are new, the smallest first; `InputError` if they are of another kind."""
        kind, values = read_labels(y)
        if self.kind is not None and kind != self.kind:
            raise InputError(f"labels were of type {self.kind}, and now are of type {kind}: convert them to one type")
        self.kind = kind
        self.values += [value for value in dict.fromkeys(sorted(values)) if value not in set(self.values)]

    def units(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The unit of every label; `InputError` for labels that were not seen before."""
        _, values = read_labels(y)
        place = {value: unit for unit, value in enumerate(self.values)}
        unknown = [value for value in dict.fromkeys(values) if value not in place]
        if unknown:
            raise InputError(f"the labels {unknown[:5]} were never learned")
        return np.array([place[value] for value in values], dtype=np.int64)

    def state_dict(self) -> State:
        """As plain values."""
        return {"kind": self.kind, "values": list(self.values)}

    @classmethod
    def from_state(cls, state: State) -> Labels:
        """From what `state_dict` returned; `RunError` if it cannot be that."""
        labels = cls()
        labels.kind, labels.values = state["kind"], list(state["values"])
        if labels.kind is not None and any(type(value) is not _TYPES.get(labels.kind) for value in labels.values):
            raise RunError(f"the saved labels are damaged: not all are of type {labels.kind}")
        return labels


def read_labels(y: NDArray[Any]) -> tuple[LabelKind, list[Any]]:
    """Labels as plain values of one type."""
    if y.dtype.kind == "b":
        return "bool", y.tolist()
    if y.dtype.kind in "iu":
        return "int", y.tolist()
    if y.dtype.kind == "f":
        if np.isnan(y).any():
            raise InputError("labels hold NaN: leave rows without a label out")
        return "float", y.tolist()
    values = [value.item() if isinstance(value, np.generic) else value for value in y.tolist()]
    found = {type(value) for value in values}
    if found == {float} and any(value != value for value in values):
        raise InputError("labels hold NaN: leave rows without a label out")
    for kind, expected in _TYPES.items():
        if found == {expected}:
            return kind, values  # type: ignore[return-value]
    names = ", ".join(sorted(kind.__name__ for kind in found))
    raise InputError(f"labels must all be texts, whole numbers, numbers or truth values, got {names}")
