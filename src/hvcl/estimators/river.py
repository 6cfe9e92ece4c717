"""The estimators with river's conventions: one row at a time, as a dict; they need river (``pip install 'hvcl[river]'``)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from river import base
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.estimators.classifier import ContinualClassifier
from hvcl.estimators.labels import read_labels
from hvcl.estimators.maps import FEW_FEATURES
from hvcl.estimators.now import DriftEvent
from hvcl.estimators.regressor import ContinualRegressor
from hvcl.estimators.scales import ScaleWarning, warn_user
from hvcl.estimators.single import NUMBERS, SingleRows, number, text
from hvcl.estimators.tables import Kind, Table, check_category

Row = dict[Any, Any]
AnyEstimator = TypeVar("AnyEstimator", ContinualClassifier, ContinualRegressor)


class _OneByOne(Generic[AnyEstimator]):
    """Keeps the first rows, whose names become the columns; then an estimator learns row by row.

    Every label weighs the models of the filter over concepts at once (`SingleRows`); the sums learn a block of rows at a time,
    before which no model changes anyway.
    """

    warmup: int

    def _begin(self) -> None:
        if self.warmup < 2:
            raise InputError(f"warmup must be at least 2, got {self.warmup}")
        self._rows: list[tuple[Row, Any]] = []  # the first ones, then those of the present block
        self._columns: dict[str, Kind] = {}
        self._estimator: AnyEstimator | None = None
        self._provisional: AnyEstimator | None = None
        self._provisional_rows = 0
        self._single: SingleRows | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        """Without what is laid out for single rows: it must refer to the estimator of the copy."""
        return self.__dict__ | {"_single": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lay_out()

    def _lay_out(self) -> None:
        """Let single rows be answered by the estimator as it is."""
        core = None if self._estimator is None else self._estimator._ready()
        self._single = SingleRows(core, self._columns) if core is not None and SingleRows.possible(core) else None
        if self._single is not None:
            for row, _ in self._rows:  # of a copy: they are weighed, and answered as they were
                self._single.keep(self._single.answered(row))

    @property
    def drift_(self) -> list[DriftEvent]:
        """Changes of the concept so far."""
        core = None if self._estimator is None else self._estimator._core
        return [] if core is None else list(core.events)

    @abstractmethod
    def _make(self) -> AnyEstimator:
        """A new estimator."""

    @abstractmethod
    def _teach(self, estimator: AnyEstimator, table: Table, targets: list[Any], fit: bool) -> None:
        """Let an estimator learn rows."""

    @abstractmethod
    def _wanted(self, estimator: AnyEstimator, targets: list[Any]) -> Tensor:
        """Targets as the estimator learns them."""

    @abstractmethod
    def _check_target(self, y: Any) -> None:
        """`InputError` if it cannot be learned after the first rows."""

    @abstractmethod
    def _target(self, estimator: AnyEstimator, y: Any) -> list[float] | None:
        """The target as the filter has it; None if it is not known there yet. `InputError` if it cannot be learned."""

    def learn_one(self, x: Row, y: Any) -> None:
        """Learn from one row; the first `warmup` rows are kept until then."""
        row = dict(_named(x))
        kept = (row, y.item() if isinstance(y, np.generic) else y)
        estimator = self._estimator
        if estimator is None:
            if not row and not self._rows:
                raise InputError("the first row is empty: its names become the columns")
            for name, value in row.items():
                if isinstance(value, NUMBERS):
                    number(name, value)
                else:
                    check_category(name, value)
            self._check_target(kept[1])
            rows = [*self._rows, kept]
            if len(rows) < self.warmup:
                self._rows = rows
                return
            columns, before = _columns(rows), self._columns
            self._columns = columns
            try:
                self._estimator = self._taught(rows)
            except BaseException:
                self._columns = before
                raise
            self._rows, self._provisional = [], None
            self._lay_out()
            self._estimator._announce()
            return
        target = None if self._single is None else self._target(estimator, kept[1])
        if self._single is None or target is None:
            table = self._table([kept])  # which checks the row before anything is changed
            self._finish_block()
            self._teach(estimator, table, [kept[1]], fit=False)
            if self._single is not None:
                self._single.refresh()
            estimator._announce()
            return
        answered = self._single.answered(row)
        self._single.weigh(answered, target)
        self._rows.append(kept)
        if len(self._rows) >= self._single.left:
            self._finish_block()
            estimator._announce()
        self._warn(row)

    def _finish_block(self) -> None:
        """The sums learn the rows that have come since the last block."""
        if self._rows and self._estimator is not None and self._single is not None:
            targets = self._wanted(self._estimator, [target for _, target in self._rows])
            try:
                self._estimator._learn_weighed(self._single.complete(targets), targets)
            finally:
                self._rows = []
                self._single.refresh()

    def _taught(self, rows: list[tuple[Row, Any]], small: bool = False) -> AnyEstimator:
        estimator = self._make()
        estimator._warns_later = True
        if small:
            estimator.answer = "ever"  # which is the same before any row that comes after these
            if estimator.features is None:
                estimator.features = FEW_FEATURES
        self._teach(estimator, self._table(rows), [target for _, target in rows], fit=True)
        return estimator

    def _name(self, estimator: AnyEstimator) -> None:
        """Begin anew, with the names of the columns."""
        estimator._reset()
        estimator.feature_names_in_ = np.array(list(self._columns), dtype=object)

    def _ready(self) -> AnyEstimator | None:
        """What has learned the rows so far, of the first ones at least two thirds; None before the first one."""
        if self._estimator is not None or not self._rows:
            return self._estimator
        columns, rows = _columns(self._rows), len(self._rows)
        if self._provisional is None or 2 * rows >= 3 * self._provisional_rows or columns != self._columns:
            self._columns, self._provisional_rows = columns, rows
            self._provisional = self._taught(self._rows, small=True)
        return self._provisional

    def _table(self, rows: list[tuple[Row, Any]]) -> Table:
        numbers = [_numbers(name, rows) for name, kind in self._columns.items() if kind == "number"]
        categories = [_texts(name, rows) for name, kind in self._columns.items() if kind == "category"]
        matrix = np.stack(numbers, 1) if numbers else np.zeros((len(rows), 0))
        return Table(tuple(self._columns.values()), matrix, tuple(categories))

    def _warn(self, row: Row) -> None:
        if self._warned or (len(row) <= len(self._columns) and row.keys() <= self._columns.keys()):
            return
        new = sorted(row.keys() - self._columns.keys())
        if new:
            self._warned = True
            words = f"the names {new[:5]} appeared after the first {self.warmup} rows and are left out: the columns are fixed"
            warn_user(words, ScaleWarning)

    def _encoded(self, estimator: AnyEstimator, x: Row) -> Any:
        core = estimator._ready()
        return core, core.scales.encode(self._table([(_named(x), None)]))[0]


class RiverClassifier(_OneByOne[ContinualClassifier], base.Classifier):
    """`ContinualClassifier` with method `exact`, one row at a time.

    Columns are the names of the first `warmup` rows, which are kept until then. A name that a row lacks is a missing value; one
    that appears later is left out, with a warning. A column of anything but numbers is one of categories.

    Args:
        features: number of random features; None: from the number of columns.
        priors: "learned" or "uniform" class frequencies.
        warmup: rows that columns and scales are taken from.
        max_categories: of a column.
        seed: of the features.
    """

    def __init__(
        self,
        features: int | None = None,
        priors: str = "learned",
        warmup: int = 100,
        max_categories: int = 16,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.priors = priors
        self.warmup = warmup
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
        return ContinualClassifier(
            features=self.features, priors=priors, max_categories=self.max_categories, seed=self.seed, fingerprints=0
        )

    def _teach(self, estimator: ContinualClassifier, table: Table, targets: list[Any], fit: bool) -> None:
        if fit:
            self._name(estimator)
        estimator._learn_table(table, _array(targets), None, None, None, fit)

    def _wanted(self, estimator: ContinualClassifier, targets: list[Any]) -> Tensor:
        return torch.from_numpy(estimator._labels.units(_array(targets)))

    def _check_target(self, y: Any) -> None:
        read_labels(_array([target for _, target in self._rows] + [y]))

    def _target(self, estimator: ContinualClassifier, y: Any) -> list[float] | None:
        labels, core = estimator._labels, estimator._ready()
        if y not in labels.values or type(y) is not type(labels.values[0]):
            return None
        unit = labels.values.index(y)
        return [float(place == unit) for place in range(core.tracker.filter.outputs)] if core.tracker else None

    def predict_proba_one(self, x: Row, **kwargs: Any) -> dict[Any, float]:
        """Probabilities of the labels so far; empty before the first row."""
        estimator = self._ready()
        if estimator is None:
            return {}
        if self._single is None:
            core, encoded = self._encoded(estimator, x)
            p = estimator._probabilities(core, encoded, None)[0]
        else:
            found = self._single.answered(_named(x))
            trust = np.array([self._single.trust(found)])
            p = estimator._ranked(estimator._ready(), self._single.mixture(found), trust, None)[0]
        return dict(zip(estimator.classes_.tolist(), p.tolist(), strict=True))


class RiverRegressor(_OneByOne[ContinualRegressor], base.Regressor):
    """`ContinualRegressor`, one row at a time; columns as in `RiverClassifier`.

    Args:
        features: number of random features; None: from the number of columns.
        ridge: prior precision over noise precision; None: from the evidence.
        warmup: rows that columns and scales are taken from.
        max_categories: of a column.
        seed: of the features.
    """

    def __init__(
        self,
        features: int | None = None,
        ridge: float | None = None,
        warmup: int = 100,
        max_categories: int = 16,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.ridge = ridge
        self.warmup = warmup
        self.max_categories = max_categories
        self.seed = seed
        self._begin()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"features": 20, "warmup": 20}

    def _make(self) -> ContinualRegressor:
        return ContinualRegressor(
            features=self.features, ridge=self.ridge, max_categories=self.max_categories, seed=self.seed, fingerprints=0
        )

    def _teach(self, estimator: ContinualRegressor, table: Table, targets: list[Any], fit: bool) -> None:
        values = np.array(targets, dtype=np.float64)
        if not np.isfinite(values).all():
            raise InputError("the target is NaN or infinite: leave such rows out")
        if fit:
            self._name(estimator)
        estimator._learn_table(table, values[:, None], True, None, None, fit)

    def _wanted(self, estimator: ContinualRegressor, targets: list[Any]) -> Tensor:
        return torch.tensor(targets, dtype=torch.float64)[:, None]

    def _check_target(self, y: Any) -> None:
        if not isinstance(y, NUMBERS) or not np.isfinite(float(y)):
            raise InputError(f"the target must be a finite number, got {y!r}: leave such rows out")

    def _target(self, estimator: ContinualRegressor, y: Any) -> list[float] | None:
        self._check_target(y)
        indicators = estimator._ready().model.indicators(torch.tensor([[float(y)]], dtype=torch.float64))
        return [float(indicators[0, 0])]

    def predict_one(self, x: Row) -> float:
        """The expected target; 0 before the first row."""
        estimator = self._ready()
        if estimator is None:
            return 0.0
        if self._single is not None:
            model = estimator._ready().model
            mean = float(self._single.mixture(self._single.answered(_named(x)))[0, 0])
            return mean * float(model.spread[0]) + float(model.centre[0])
        core, encoded = self._encoded(estimator, x)
        return float(estimator._moments(core, encoded)[0][0, 0])


def _named(x: Row) -> dict[str, Any]:
    """A row whose names are texts; the same one if they are."""
    return x if {str}.issuperset(map(type, x)) else {str(name): value for name, value in x.items()}


def _columns(rows: list[tuple[Row, Any]]) -> dict[str, Kind]:
    """Names in sorted order, so that their order in rows makes no difference."""
    numeric: dict[str, bool] = {}
    for row, _ in rows:
        for name, value in row.items():
            if value is not None:
                numeric[name] = numeric.get(name, True) and isinstance(value, NUMBERS)
    return {name: "number" if numeric[name] else "category" for name in sorted(numeric)}


def _numbers(name: str, rows: list[tuple[Row, Any]]) -> NDArray[np.float64]:
    return np.array([number(name, row.get(name)) for row, _ in rows], dtype=np.float64)


def _texts(name: str, rows: list[tuple[Row, Any]]) -> NDArray[np.object_]:
    texts = np.empty(len(rows), dtype=object)
    for place, (row, _) in enumerate(rows):
        texts[place] = text(row.get(name))
    return texts


def _array(targets: list[Any]) -> NDArray[Any]:
    """Labels as an array of their own type: numpy would turn a mixture of types into texts."""
    array = np.empty(len(targets), dtype=object)
    array[:] = targets
    return array
