"""Rows and labels of requests, as an estimator takes them; what is wrong with one is said with its number."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, ContinualRegressor

MOST_ROWS = 10_000
"""In one request."""

LONGEST = 1000
"""Characters of a text."""

Estimator = ContinualClassifier | ContinualRegressor


class RowReader:
    """Reads rows for a model: objects by column, or lists of numbers if the model's columns have no names.

    Args:
        model: knows its columns.
    """

    def __init__(self, model: Estimator) -> None:
        names = getattr(model, "feature_names_in_", None)
        self.columns = None if names is None else [str(name) for name in names]
        """Names of the columns; None: they have none."""
        self.width = int(model.n_features_in_)

    def rows(self, rows: Sequence[Any], model: Estimator) -> Any:
        """A data frame, or an array; `InputError` says which row is wrong and why. Columns that a row leaves out are missing."""
        if not rows:
            raise InputError("rows is empty: give at least one")
        if len(rows) > MOST_ROWS:
            raise InputError(f"{len(rows)} rows in one request, at most {MOST_ROWS} are taken: send them in parts")
        if self.columns is None:
            return self._array(rows)
        import pandas

        known = set(self.columns)
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise InputError(f"row {number} is no object such as {{{self.columns[0]!r}: ...}}")
            if not row.keys() <= known:
                name = next(name for name in row if name not in known)
                near = difflib.get_close_matches(name, self.columns, n=1, cutoff=0.4)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise InputError(f"row {number} has a column {name!r}, which the model does not know{hint}")
        kinds = _kinds(model)
        return pandas.DataFrame({name: self._column(name, rows, kinds.get(name)) for name in self.columns})

    def _array(self, rows: Sequence[Any]) -> NDArray[np.float64]:
        values = np.empty((len(rows), self.width))
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != self.width:
                raise InputError(f"row {number} is no list of {self.width} numbers (the model has learned columns without names)")
            values[number] = [_number(number, place, value) for place, value in enumerate(row)]
        return values

    def _column(self, name: str, rows: Sequence[dict[str, Any]], kind: str | None) -> NDArray[Any]:
        values = [row.get(name) for row in rows]
        if kind is None:  # the model has not decided yet
            kind = "category" if any(isinstance(value, str) for value in values) else "number"
        column: NDArray[Any] = np.empty(len(rows), dtype=np.float64 if kind == "number" else object)
        convert = _number if kind == "number" else _text
        column[:] = [convert(number, name, value) for number, value in enumerate(values)]
        return column

    def labels(self, labels: Sequence[Any], count: int, model: Estimator) -> NDArray[Any]:
        """The labels of `count` rows; `InputError` says which one is wrong."""
        if len(labels) != count:
            raise InputError(f"{len(labels)} labels for {count} rows: give one for each")
        if isinstance(model, ContinualRegressor):
            return np.array([_target(number, value) for number, value in enumerate(labels)], dtype=np.float64)
        kind = model.classes_.dtype.kind
        taken, wanted = {
            "U": ((str,), "a text"),
            "b": ((bool,), "true or false"),
            "f": ((int, float), "a number"),
        }.get(kind, ((int,), "a whole number"))
        for number, value in enumerate(labels):
            if not isinstance(value, taken) or (isinstance(value, bool) and kind != "b"):
                raise InputError(f"label {number} is {_shown(value)}, where {wanted} was learned")
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"label {number} is {value}, which is no label")
            if isinstance(value, int) and abs(value) >= 2**63:
                raise InputError(f"label {number} is too large")
            if isinstance(value, str):
                _check_text(f"label {number}", value)
        return np.array(labels, dtype=np.float64 if kind == "f" else None)


def _kinds(model: Estimator) -> dict[str, str]:
    """What the columns are, as far as the model has decided it."""
    scales = getattr(model, "scales_", None)
    return {} if scales is None else dict(zip(map(str, model.feature_names_in_), scales.kinds, strict=True))


def _number(row: int, column: Any, value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        raise InputError(f"row {row}: {column!r} is {_shown(value)}, where a number is expected (null: missing)")
    number = _float(value)
    if not math.isfinite(number):
        raise InputError(f"row {row}: {column!r} is {_shown(value)}: null stands for a missing value")
    return number


def _text(row: int, column: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int | float):
        raise InputError(f"row {row}: {column!r} is {_shown(value)}, where a text is expected (null: missing)")
    text = str(value)
    _check_text(f"row {row}: {column!r}", text)
    return text


def _check_text(what: str, text: str) -> None:
    if len(text) > LONGEST:
        raise InputError(f"{what} has {len(text)} characters, at most {LONGEST} are taken")
    if not text.isprintable() and any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise InputError(f"{what} holds control characters or halves of characters: give plain text")


def _target(number: int, value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(_float(item)):
            raise InputError(f"label {number} is {_shown(item)}, where a number is expected")
    return value


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"
