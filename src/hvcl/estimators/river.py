"""The estimators with river's conventions: one row at a time, as a dict; they need river (``pip install 'hvcl[river]'``)."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from river import base

from hvcl.core.errors import InputError
from hvcl.estimators.classifier import ContinualClassifier
from hvcl.estimators.regressor import ContinualRegressor
from hvcl.estimators.scales import ScaleWarning
from hvcl.estimators.tables import MISSING, Kind, Table

Row = dict[Any, Any]
AnyEstimator = TypeVar("AnyEstimator", ContinualClassifier, ContinualRegressor)


class _OneByOne(Generic[AnyEstimator]):
    """Keeps the first rows, whose names become the columns; then an estimator learns row by row."""

    warmup: int
    batch_size: int

    def _begin(self) -> None:
        if self.warmup < 2 or self.batch_size < 1:
            raise InputError(f"warmup must be at least 2 and batch_size at least 1, got {self.warmup} and {self.batch_size}")
        self._rows: list[tuple[Row, Any]] = []
        self._columns: dict[str, Kind] = {}
        self._estimator: AnyEstimator | None = None
        self._provisional: AnyEstimator | None = None
        self._provisional_rows = 0
        self._warned = False

    @abstractmethod
    def _make(self) -> AnyEstimator:
        """A new estimator."""

    @abstractmethod
    def _teach(self, estimator: AnyEstimator, table: Table, targets: list[Any], fit: bool) -> None:
        """Let an estimator learn rows."""

    def learn_one(self, x: Row, y: Any) -> None:
        """Learn from one row; the first `warmup` rows are kept until then."""
        row = {str(name): value for name, value in x.items()}
        rows = [*self._rows, (row, y.item() if isinstance(y, np.generic) else y)]
        if self._estimator is None:
            if len(rows) >= self.warmup:
                self._columns = _columns(rows)
                self._estimator, rows, self._provisional = self._taught(rows), [], None
        elif len(rows) >= self.batch_size:
            self._warn(rows)
            self._teach(self._estimator, self._table(rows), [target for _, target in rows], fit=False)
            rows = []
        self._rows = rows

    def _taught(self, rows: list[tuple[Row, Any]]) -> AnyEstimator:
        estimator = self._make()
        self._teach(estimator, self._table(rows), [target for _, target in rows], fit=True)
        return estimator

    def _ready(self) -> AnyEstimator | None:
        """What has learned the rows so far, of the first ones all but the last eighth; None before the first one."""
        if self._estimator is not None or not self._rows:
            return self._estimator
        columns, rows = _columns(self._rows), len(self._rows)
        if self._provisional is None or 8 * rows > 9 * self._provisional_rows or columns != self._columns:
            self._columns, self._provisional_rows = columns, rows
            self._provisional = self._taught(self._rows)
        return self._provisional

    def _table(self, rows: list[tuple[Row, Any]]) -> Table:
        numbers = [_numbers(name, rows) for name, kind in self._columns.items() if kind == "number"]
        categories = [_texts(name, rows) for name, kind in self._columns.items() if kind == "category"]
        matrix = np.stack(numbers, 1) if numbers else np.zeros((len(rows), 0))
        return Table(tuple(self._columns.values()), matrix, tuple(categories))

    def _warn(self, rows: list[tuple[Row, Any]]) -> None:
        new = sorted({name for row, _ in rows for name in row} - self._columns.keys())
        if new and not self._warned:
            self._warned = True
            warnings.warn(
                f"the names {new[:5]} appeared after the first {self.warmup} rows and are left out: the columns are fixed",
                ScaleWarning,
                stacklevel=3,
            )

    def _encoded(self, estimator: AnyEstimator, x: Row) -> Any:
        core = estimator._ready()
        row = {str(name): value for name, value in x.items()}
        return core, core.scales.encode(self._table([(row, None)]))[0]


class RiverClassifier(_OneByOne[ContinualClassifier], base.Classifier):
    """`ContinualClassifier` with method `exact`, one row at a time.

    Columns are the names of the first `warmup` rows, which are kept until then. A name that a row lacks is a missing value; one
    that appears later is left out, with a warning. A column of anything but numbers is one of categories.

    Args:
        features: number of random features; None: from the number of columns.
        priors: "learned" or "uniform" class frequencies.
        warmup: rows that columns and scales are taken from.
        batch_size: rows that are learned together. Each time a prediction follows a change costs a factorisation; with 10 it is
            one in ten rows, and predictions lag by up to nine.
        max_categories: of a column.
        seed: of the features.
    """

    def __init__(
        self,
        features: int | None = None,
        priors: str = "learned",
        warmup: int = 100,
        batch_size: int = 1,
        max_categories: int = 16,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.priors = priors
        self.warmup = warmup
        self.batch_size = batch_size
        self.max_categories = max_categories
        self.seed = seed
        self._begin()

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"features": 20, "warmup": 20}

    def _make(self) -> ContinualClassifier:
        priors: Any = self.priors
        return ContinualClassifier(features=self.features, priors=priors, max_categories=self.max_categories, seed=self.seed)

    def _teach(self, estimator: ContinualClassifier, table: Table, targets: list[Any], fit: bool) -> None:
        if fit:
            estimator._reset()
        estimator._learn_table(table, _array(targets), None, None, None, fit)

    def predict_proba_one(self, x: Row, **kwargs: Any) -> dict[Any, float]:
        """Probabilities of the labels so far; empty before the first row."""
        estimator = self._ready()
        if estimator is None:
            return {}
        p = estimator._probabilities(*self._encoded(estimator, x))[0]
        return dict(zip(estimator.classes_.tolist(), p.tolist(), strict=True))


class RiverRegressor(_OneByOne[ContinualRegressor], base.Regressor):
    """`ContinualRegressor`, one row at a time; columns as in `RiverClassifier`.

    Args:
        features: number of random features; None: from the number of columns.
        ridge: prior precision over noise precision; None: from the evidence.
        warmup: rows that columns and scales are taken from.
        batch_size: rows that are learned together.
        max_categories: of a column.
        seed: of the features.
    """

    def __init__(
        self,
        features: int | None = None,
        ridge: float | None = None,
        warmup: int = 100,
        batch_size: int = 1,
        max_categories: int = 16,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.ridge = ridge
        self.warmup = warmup
        self.batch_size = batch_size
        self.max_categories = max_categories
        self.seed = seed
        self._begin()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"features": 20, "warmup": 20}

    def _make(self) -> ContinualRegressor:
        return ContinualRegressor(features=self.features, ridge=self.ridge, max_categories=self.max_categories, seed=self.seed)

    def _teach(self, estimator: ContinualRegressor, table: Table, targets: list[Any], fit: bool) -> None:
        values = np.array(targets, dtype=np.float64)
        if not np.isfinite(values).all():
            raise InputError("the target is NaN or infinite: leave such rows out")
        if fit:
            estimator._reset()
        estimator._learn_table(table, values[:, None], True, None, None, fit)

    def predict_one(self, x: Row) -> float:
        """The expected target; 0 before the first row."""
        estimator = self._ready()
        if estimator is None:
            return 0.0
        core, encoded = self._encoded(estimator, x)
        return float(estimator._moments(core, encoded)[0][0, 0])


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _columns(rows: list[tuple[Row, Any]]) -> dict[str, Kind]:
    """Names in sorted order, so that their order in rows makes no difference."""
    numeric: dict[str, bool] = {}
    for row, _ in rows:
        for name, value in row.items():
            if value is not None:
                numeric[name] = numeric.get(name, True) and _is_number(value)
    return {name: "number" if numeric[name] else "category" for name in sorted(numeric)}


def _numbers(name: str, rows: list[tuple[Row, Any]]) -> NDArray[np.float64]:
    values = np.full(len(rows), np.nan)
    for place, (row, _) in enumerate(rows):
        value = row.get(name)
        if value is not None:
            if not _is_number(value) or np.isinf(value):
                raise InputError(f"column {name!r} holds numbers, got {value!r}")
            values[place] = value
    return values


def _texts(name: str, rows: list[tuple[Row, Any]]) -> NDArray[np.object_]:
    texts = np.empty(len(rows), dtype=object)
    for place, (row, _) in enumerate(rows):
        value = row.get(name)
        texts[place] = MISSING if value is None or value != value else str(value)
    return texts


def _array(targets: list[Any]) -> NDArray[Any]:
    """Labels as an array of their own type: numpy would turn a mixture of types into texts."""
    array = np.empty(len(targets), dtype=object)
    array[:] = targets
    return array
