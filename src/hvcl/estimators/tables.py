"""What users bring as X, read into one form: columns of numbers, columns of categories, or pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data
from torch import Tensor

from hvcl.core.errors import InputError

Kind = Literal["number", "category"]

MISSING = None
"""A category that is not known."""

DATES = (date, time, timedelta, np.datetime64, np.timedelta64)
"""Types of dates and durations; those of pandas are some of them."""

NO_TEXTS = (list, tuple, dict, set, np.ndarray, complex)
"""Types of values that are no categories."""


@dataclass(frozen=True)
class Table:
    """Rows as they are learned from: numbers, categories, or pictures."""

    kinds: tuple[Kind, ...]
    """Of the columns, in the order of X; empty for pictures."""
    numbers: NDArray[np.float64]
    """Columns of numbers ``[n, d]``; NaN where a value is missing."""
    categories: tuple[NDArray[np.object_], ...] = ()
    """Columns of categories, as texts; `MISSING` where there is none."""
    pictures: Tensor | None = None
    """``[n, channels, height, width]``, float32."""

    def __len__(self) -> int:
        return len(self.numbers) if self.pictures is None else len(self.pictures)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one picture; None for columns."""
        return None if self.pictures is None else tuple(self.pictures.shape[1:])

    def take(self, rows: NDArray[np.int64] | slice) -> Table:
        """Some of the rows."""
        pictures = None
        if self.pictures is not None:
            pictures = self.pictures[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
        return Table(self.kinds, self.numbers[rows], tuple(column[rows] for column in self.categories), pictures)

    def parts(self, rows: int) -> Iterator[tuple[slice, Table]]:
        """Consecutive parts of at most so many rows."""
        for first in range(0, len(self), rows):
            part = slice(first, first + rows)
            yield part, self.take(part)

    def canonical_order(self, last: NDArray[Any]) -> NDArray[np.int64]:
        """An order of the rows that does not depend on the one they came in: by all columns, and `last` where these are equal."""
        texts = [np.array(["" if value is None else f"={value}" for value in column]) for column in self.categories]
        keys = [*np.atleast_2d(last.T)[::-1], *texts[::-1], *self.numbers.T[::-1]]
        return np.lexsort(keys)

    @staticmethod
    def joined(tables: Sequence[Table]) -> Table:
        """The rows of several tables of the same columns, one after another."""
        first = tables[0]
        if len(tables) == 1:
            return first
        categories = tuple(np.concatenate(columns) for columns in zip(*(table.categories for table in tables), strict=True))
        pictures = None
        if first.pictures is not None:
            pictures = torch.cat([table.pictures for table in tables if table.pictures is not None])
        return Table(first.kinds, np.concatenate([table.numbers for table in tables]), categories, pictures)


def is_missing(value: Any) -> bool:
    """None, NaN, and pandas' signs for missing values."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def is_frame(x: Any) -> bool:
    """Whether `x` is a data frame of pandas or polars."""
    return type(x).__module__.split(".")[0] in ("pandas", "polars") and hasattr(x, "columns")


def read_table(estimator: BaseEstimator, x: Any, kinds: tuple[Kind, ...] | None, shape: tuple[int, ...] | None) -> Table:
    """X as a table, checked as scikit-learn does.

    Args:
        estimator: takes `n_features_in_` and `feature_names_in_` from the first X, and is checked against afterwards.
        x: an array, a data frame, a sparse matrix, a tensor; pictures are four-dimensional.
        kinds: of the columns seen before; None: this is the first X.
        shape: of the pictures seen before, if there were any.
    """
    first = kinds is None
    if type(x).__name__ == "LazyFrame":
        raise InputError("X is a lazy frame of polars: collect() it first")
    if is_frame(x):
        _check_feature_names(estimator, x, reset=first)
        _check_n_features(estimator, x, reset=first)
        if len(x) == 0 or len(x.columns) == 0:
            raise InputError(f"the frame has {len(x)} rows and {len(x.columns)} columns: a minimum of 1 is required of each")
        return _pandas(x, kinds) if type(x).__module__.startswith("pandas") else _polars(x, kinds)
    if isinstance(x, Tensor):
        x = (x.float() if x.dtype == torch.bfloat16 else x).detach().cpu().numpy()
    if isinstance(x, np.ndarray) and x.dtype.kind in "mM":
        raise _no_dates("0")
    if isinstance(x, np.ndarray) and x.ndim == 4:
        return _pictures(estimator, x, first, shape)
    if isinstance(x, np.ndarray) and x.ndim == 3:
        raise InputError(
            f"Found array with dim 3, of shape {x.shape}: rows have two dimensions and pictures four, with their channels; "
            "give grey pictures as x[:, None]"
        )
    if isinstance(x, np.ma.MaskedArray) and x.dtype.kind in "fiub":
        x = np.ma.filled(x.astype(np.float64), np.nan)
    numbers = x if kinds is not None and _plainly_valid(estimator, x, len(kinds)) else _validated(estimator, x, first)
    if not isinstance(numbers, np.ndarray):
        numbers = numbers.toarray()
    if shape is not None:
        raise InputError(f"pictures of shape {shape} were learned: give pictures, not rows")
    expected: tuple[Kind, ...] = ("number",) * numbers.shape[1]
    if kinds is not None and kinds != expected:
        raise InputError("a data frame with categories was learned: give a frame with the same columns, not an array")
    return Table(expected, _finite(numbers, None))


def _validated(estimator: BaseEstimator, x: Any, first: bool) -> Any:
    """Numbers, dense or sparse; what cannot be made of numbers is refused with a reason."""
    place = _dates(x)
    if place is not None:
        raise _no_dates(str(place))
    try:
        return validate_data(
            estimator, x, reset=first, accept_sparse="csr", dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=1
        )
    except ValueError as error:
        if "could not convert string" in str(error):
            raise InputError(f"{error}: columns of texts need a data frame (pandas or polars)") from None
        raise


def _dates(x: Any) -> int | None:
    """The first column of objects that are dates or durations."""
    if not isinstance(x, list | tuple) and not (isinstance(x, np.ndarray) and x.dtype.kind == "O"):
        return None
    try:
        rows = np.array(x, dtype=object)
    except ValueError:  # of no shape
        return None
    if rows.ndim != 2:
        return None
    return next((place for place, column in enumerate(rows.T) if any(isinstance(value, DATES) for value in column)), None)


def _plainly_valid(estimator: BaseEstimator, x: Any, columns: int) -> bool:
    """Whether scikit-learn's checks, which take longer than a prediction, could only pass: a plain array as the ones before."""
    plain = type(x) is np.ndarray and x.dtype == np.float64 and x.ndim == 2 and len(x) > 0
    return plain and x.shape[1] == columns and not hasattr(estimator, "feature_names_in_")


def _pictures(estimator: BaseEstimator, x: NDArray[Any], first: bool, shape: tuple[int, ...] | None) -> Table:
    if x.dtype.kind not in "fiub" or not len(x):
        raise InputError(f"pictures must be numbers, at least one picture, got {x.dtype} of shape {x.shape}")
    if x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        x = np.moveaxis(x, 3, 1)
    pictures = torch.from_numpy(np.array(x, dtype=np.float32))
    if not bool(pictures.isfinite().all()):
        raise InputError("pictures must not contain NaN or infinity: leave out or repair the damaged ones")
    if not first and tuple(pictures.shape[1:]) != shape:
        raise InputError(f"X has pictures of shape {tuple(pictures.shape[1:])}, but {shape or 'columns'} were learned")
    estimator.n_features_in_ = int(np.prod(x.shape[1:]))
    return Table((), np.zeros((len(x), 0)), (), pictures)


def _finite(numbers: NDArray[np.float64], names: Sequence[str] | None) -> NDArray[np.float64]:
    bad = np.isinf(numbers).any(0)
    if bad.any():
        where = int(bad.argmax())
        raise InputError(f"column {names[where] if names else where} contains infinity: NaN stands for missing values")
    return numbers


def _assemble(columns: list[tuple[str, Kind, NDArray[Any]]], rows: int) -> Table:
    numbers = [(name, values) for name, kind, values in columns if kind == "number"]
    matrix = np.stack([values for _, values in numbers], 1) if numbers else np.zeros((rows, 0))
    return Table(
        tuple(kind for _, kind, _ in columns),
        _finite(matrix, [name for name, _ in numbers]),
        tuple(values for _, kind, values in columns if kind == "category"),
    )


def _no_dates(name: str) -> InputError:
    return InputError(
        f"column {name!r} holds dates or durations, which have no fixed scale (the future lies outside it): turn them into "
        "numbers, e.g. the hour of the day, the day of the week, the days since an event"
    )


def _check_kind(name: str, found: Kind, expected: Kind | None) -> Kind:
    """What a column is read as: what it was before, if that is possible."""
    if expected == "number" and found == "category":
        raise InputError(f"column {name!r} held numbers, and now holds categories: convert it, or begin with a new estimator")
    return expected or found


def _pandas(x: Any, kinds: tuple[Kind, ...] | None) -> Table:
    pandas = sys.modules["pandas"]
    columns: list[tuple[str, Kind, NDArray[Any]]] = []
    for place, name in enumerate(x.columns):
        column = x.iloc[:, place]
        plain = isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb"  # where there is nothing to infer
        inferred = "floating" if plain and len(column) else pandas.api.types.infer_dtype(column, skipna=True)
        if inferred in ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period", "interval"):
            raise _no_dates(str(name))
        numeric = inferred in ("integer", "floating", "mixed-integer-float", "decimal", "boolean")
        # a column without any value is what it was before
        empty = inferred == "empty"
        expected = kinds[place] if kinds is not None else None
        kind = _check_kind(str(name), "number" if numeric or empty else "category", expected)
        if kind == "number":
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            missing = column.isna().to_numpy()
            values = _texts(str(name), column.astype(object).tolist(), missing)
        columns.append((str(name), kind, values))
    return _assemble(columns, len(x))


def _polars(x: Any, kinds: tuple[Kind, ...] | None) -> Table:
    polars = sys.modules["polars"]
    columns: list[tuple[str, Kind, NDArray[Any]]] = []
    for place, name in enumerate(x.columns):
        column = x[name]
        if column.dtype.is_temporal():
            raise _no_dates(name)
        numeric = column.dtype.is_numeric() or column.dtype in (polars.Boolean, polars.Null)
        kind = _check_kind(name, "number" if numeric else "category", kinds[place] if kinds is not None else None)
        if kind == "number":
            values = column.cast(polars.Float64).fill_null(float("nan")).to_numpy()
        elif column.dtype in (polars.String, polars.Categorical, polars.Enum) or numeric:
            values = _texts(name, column.to_list(), column.is_null().to_numpy())
        else:
            raise InputError(f"column {name!r} is of type {column.dtype}: only numbers, texts and categories are understood")
        columns.append((name, kind, values))
    return _assemble(columns, len(x))


def check_category(name: str, value: Any) -> None:
    """`InputError` for values that are no categories."""
    if isinstance(value, DATES) and not is_missing(value):
        raise _no_dates(name)
    if isinstance(value, NO_TEXTS):
        raise InputError(
            f"column {name!r} holds values of type {type(value).__name__}: only numbers and categories are understood"
        )


def _texts(name: str, values: list[Any], missing: NDArray[np.bool_]) -> NDArray[np.object_]:
    for value in values:
        check_category(name, value)
    texts = np.empty(len(values), dtype=object)
    for place, (value, gone) in enumerate(zip(values, missing.tolist(), strict=True)):
        texts[place] = MISSING if gone else str(value)
    return texts
