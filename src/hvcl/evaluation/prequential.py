"""Test-then-train over a stream: every row is predicted before it is learned, and all predictions are scored.

Scores are sums over rows, of the whole stream and of windows of it. The windows become wider as the stream goes on, so that a
stream without end takes bounded memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvcl.evaluation.scores import FLOOR

BINS = 15
"""Of the confidence, as in `hvcl.evaluation.calibration_error`."""

MOST_WINDOWS = 400
"""When there are so many windows, neighbours are joined."""

LAST = 0.1
"""Share of the tested rows that is "the last part" of a stream."""


class Totals(ABC):
    """Sums over tested rows."""

    rows: int

    @abstractmethod
    def plus(self, other: Self) -> Self:
        """The sums over the rows of both."""

    @abstractmethod
    def minus(self, other: Self) -> Self:
        """The sums over the rows of this that are not of `other`, which are some of them."""

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Means over the rows, by name; empty without rows."""

    @abstractmethod
    def state(self) -> list[Any]:
        """The sums as plain JSON values."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: list[Any]) -> Self:
        """From what `state` returned."""


@dataclass(frozen=True)
class ClassTotals(Totals):
    """Of predicted classes."""

    rows: int = 0
    correct: int = 0
    loss: float = 0.0
    """Negative log probability of the labels, in nats."""
    bins: NDArray[np.float64] = field(default_factory=lambda: np.zeros((BINS, 3)))
    """By confidence: rows, sum of the confidences, rows that were right."""

    @classmethod
    def of(cls, classes: NDArray[Any], probabilities: NDArray[np.float64], labels: Sequence[Any]) -> ClassTotals:
        """Of probabilities ``[n, classes]``; a label that is none of the classes counts as missed by a sure prediction."""
        place = {label: unit for unit, label in enumerate(classes.tolist())}
        units = np.array([place.get(label, -1) for label in labels], dtype=np.int64)
        predicted, confidence = probabilities.argmax(1), probabilities.max(1)
        right = predicted == units
        given = np.where(units >= 0, probabilities[np.arange(len(units)), np.maximum(units, 0)], 0.0)
        bin_of = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        sums = [np.bincount(bin_of, values, BINS) for values in (np.ones(len(units)), confidence, right.astype(np.float64))]
        bins: NDArray[np.float64] = np.stack(sums, 1).astype(np.float64)
        return cls(len(units), int(right.sum()), float(-np.log(np.maximum(given, FLOOR)).sum()), bins)

    def plus(self, other: ClassTotals) -> ClassTotals:
        """The sums over the rows of both."""
        return ClassTotals(self.rows + other.rows, self.correct + other.correct, self.loss + other.loss, self.bins + other.bins)

    def minus(self, other: ClassTotals) -> ClassTotals:
        """The sums over the rows of this that are not of `other`, which are some of them."""
        return ClassTotals(self.rows - other.rows, self.correct - other.correct, self.loss - other.loss, self.bins - other.bins)

    def scores(self) -> dict[str, float]:
        """Accuracy, log loss in nats, expected calibration error."""
        if not self.rows:
            return {}
        gap = float(np.abs(self.bins[:, 2] - self.bins[:, 1]).sum()) / self.rows
        return {"accuracy": self.correct / self.rows, "log_loss": self.loss / self.rows, "calibration_error": gap}

    def state(self) -> list[Any]:
        """The sums as plain JSON values."""
        return [self.rows, self.correct, self.loss, self.bins.tolist()]

    @classmethod
    def from_state(cls, state: list[Any]) -> ClassTotals:
        """From what `state` returned."""
        rows, correct, loss, bins = state
        return cls(int(rows), int(correct), float(loss), np.array(bins, dtype=np.float64).reshape(BINS, 3))


@dataclass(frozen=True)
class NumberTotals(Totals):
    """Of predicted numbers."""

    rows: int = 0
    absolute: float = 0.0
    square: float = 0.0
    inside: int = 0
    """Rows whose label lies in its interval."""

    @classmethod
    def of(
        cls, mean: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], labels: Sequence[float]
    ) -> NumberTotals:
        """Of predicted means and the ends of intervals ``[n]``."""
        wanted = np.array(labels, dtype=np.float64)
        error = mean - wanted
        inside = int(((low <= wanted) & (wanted <= high)).sum())
        return cls(len(wanted), float(np.abs(error).sum()), float(np.square(error).sum()), inside)

    def plus(self, other: NumberTotals) -> NumberTotals:
        """The sums over the rows of both."""
        return NumberTotals(
            self.rows + other.rows, self.absolute + other.absolute, self.square + other.square, self.inside + other.inside
        )

    def minus(self, other: NumberTotals) -> NumberTotals:
        """The sums over the rows of this that are not of `other`, which are some of them."""
        return NumberTotals(
            self.rows - other.rows, self.absolute - other.absolute, self.square - other.square, self.inside - other.inside
        )

    def scores(self) -> dict[str, float]:
        """Mean absolute error, root mean squared error, share of the labels in their intervals."""
        if not self.rows:
            return {}
        return {
            "mae": self.absolute / self.rows,
            "rmse": math.sqrt(max(self.square / self.rows, 0.0)),
            "coverage": self.inside / self.rows,
        }

    def state(self) -> list[Any]:
        """The sums as plain JSON values."""
        return [self.rows, self.absolute, self.square, self.inside]

    @classmethod
    def from_state(cls, state: list[Any]) -> NumberTotals:
        """From what `state` returned."""
        rows, absolute, square, inside = state
        return cls(int(rows), float(absolute), float(square), int(inside))


AnyTotals = TypeVar("AnyTotals", bound=Totals)


@dataclass(frozen=True)
class Window(Generic[AnyTotals]):
    """A part of a stream."""

    end: int
    """Number of rows that had come by its end, whether they were tested or not."""
    totals: AnyTotals
    experts: dict[int, int]
    """Rows that each expert learned in it, by the expert's number."""


class Prequential(Generic[AnyTotals]):
    """Scores of a whole stream and of windows of it.

    Args:
        nothing: sums over no rows, of the kind that is added.
        width: rows of the first windows.
    """

    def __init__(self, nothing: AnyTotals, width: int = 100) -> None:
        self._nothing, self.width = nothing, width
        self.total = nothing
        self.windows: list[Window[AnyTotals]] = []
        self.rows = 0
        """Rows so far."""

    def add(self, rows: int, totals: AnyTotals | None, experts: dict[int, int] | None = None) -> None:
        """`rows` more rows have come, of which `totals` were tested; `experts` learned so many of them each."""
        found = self._nothing if totals is None else totals
        self.rows, self.total = self.rows + rows, self.total.plus(found)
        if self.windows and self.rows - self._start(len(self.windows) - 1) <= self.width:
            before = self.windows.pop()
            self.windows.append(_joined(before, Window(self.rows, found, experts or {})))
        else:
            self.windows.append(Window(self.rows, found, experts or {}))
        if len(self.windows) > MOST_WINDOWS:
            pairs = [self.windows[place : place + 2] for place in range(0, len(self.windows), 2)]
            self.windows = [_joined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
            self.width *= 2

    def _start(self, place: int) -> int:
        return self.windows[place - 1].end if place else 0

    def last(self) -> AnyTotals:
        """The sums over about the last tenth of the tested rows: as many of the last windows as hold it."""
        found = self._nothing
        for window in reversed(self.windows):
            if found.rows >= LAST * self.total.rows:
                break
            found = found.plus(window.totals)
        return found

    def state(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "width": self.width,
            "rows": self.rows,
            "total": self.total.state(),
            "windows": [[w.end, w.totals.state(), [[n, c] for n, c in w.experts.items()]] for w in self.windows],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        made = type(self._nothing).from_state
        self.width, self.rows, self.total = int(state["width"]), int(state["rows"]), made(state["total"])
        self.windows = [
            Window(int(end), made(totals), {int(n): int(c) for n, c in experts}) for end, totals, experts in state["windows"]
        ]


def _joined(a: Window[AnyTotals], b: Window[AnyTotals]) -> Window[AnyTotals]:
    experts = {number: a.experts.get(number, 0) + b.experts.get(number, 0) for number in {**a.experts, **b.experts}}
    return Window(b.end, a.totals.plus(b.totals), experts)
