"""Answers for one row at a time, and weights of the filter after each label, without the price of a batch.

Between two blocks of rows nothing changes but the weights of the filter over concepts: the models are solved at the end of a
block. So what they are made of is laid out as arrays once a block, and an answer takes a few products with vectors. Features and
answers of the rows of a block are kept until it is complete; then the sums learn them at once, with the same result. The numbers
are those of the estimator's own path, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.estimators.concepts import BLOCK
from hvcl.estimators.core import Core
from hvcl.estimators.models import ClassModel, ClassReading, LinearReading, RegressionModel
from hvcl.estimators.novelty import FAR
from hvcl.estimators.scales import CLIP
from hvcl.estimators.tables import MISSING, Kind, Table
from hvcl.features import RandomFeatures

NUMBERS = (bool, int, float, np.number, np.bool_)
"""Types of the values of columns of numbers."""

PLAIN = frozenset((float, int, np.float64))
"""Those that arrays can be made of without a look at each value."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What the models say of a row."""

    values: list[Any]
    """Of its columns of numbers, then of those of categories."""
    x: NDArray[np.float32]
    """The encoded row ``[1, inputs]``."""
    everything: NDArray[np.float64]
    """What the model of everything answers ``[1, C]``."""
    answers: NDArray[np.float64]
    """What the members of the filter answer ``[1, K, C]``."""
    sharpened: NDArray[np.float64]
    """With the sharpness that suits each of them ``[1, K, C]``."""


class SingleRows:
    """Encodes rows, answers, and weighs models, one row at a time.

    Args:
        core: of an estimator of a table, which answers as of now.
        columns: names and kinds of the columns.
    """

    def __init__(self, core: Core[ClassModel] | Core[RegressionModel], columns: Mapping[str, Kind]) -> None:
        assert core.tracker is not None
        self.core, self.tracker = core, core.tracker
        self.kinds = tuple(columns.values())
        self.numbers = [name for name, kind in columns.items() if kind == "number"]
        self.categories = [name for name, kind in columns.items() if kind == "category"]
        self.names = [*self.numbers, *self.categories]
        made = core.model.map
        assert isinstance(made, RandomFeatures)
        self._own = {name: made.state[name].numpy() for name in ("weights", "offset", "shift", "scale")}
        # of the rows of a block: their numbers, the encoding, and features before they are scaled
        self._values = np.zeros((BLOCK, len(self.numbers)))
        self._x = np.zeros((BLOCK, *core.scales.input_shape), dtype=np.float32)
        self._cosines = np.zeros((BLOCK, made.features), dtype=np.float32)
        self._parts = np.zeros((BLOCK, self.tracker.map.features))
        self._reading: ClassReading | LinearReading | None = None
        self.refresh()

    @staticmethod
    def possible(core: Core[ClassModel] | Core[RegressionModel]) -> bool:
        """Whether a core's rows can be answered one at a time here."""
        return core.tracker is not None and core.scales.shape is None and isinstance(core.model.map, RandomFeatures)

    def refresh(self) -> None:
        """Lay everything out as it is now: after rows were learned."""
        core, found, plain, scales = self.core, self.tracker.filter, self.tracker.map, self.core.scales
        self._block: list[Answered] = []
        """The rows since the last block."""
        self._last: Answered | None = None
        self._centre, self._spread = scales.centre.numpy(), scales.spread.numpy()
        self._width, self._indicators = scales.max_categories + 2, scales.indicators
        self._slots = [{category: slot for slot, category in enumerate(known)} for known in scales.categories]
        coefficients = found.coefficients()
        self._models, self._at_zero = plain.scale[:, None] * coefficients, plain.shift @ coefficients
        reading, own = self.tracker.reading(), self._own
        if reading is not None and reading is not self._reading:
            self._read = own["scale"][:, None] * reading.weights
            self._read_at_zero = reading.at_zero - own["shift"].astype(np.float64) @ self._read
        self._reading = reading
        self._white, self._means = core.novelty.whitened()
        projection = core.novelty.projection
        self._projection = None if projection is None else projection.numpy()
        self._ordinary = FAR * core.novelty.ordinary

    # -- one row ----------------------------------------------------------------------------------------------------------

    def answered(self, row: Mapping[str, Any]) -> Answered:
        """What the models say of a row, computed once for one that is predicted and then learned; `InputError` if it is none."""
        values = [row.get(name) for name in self.names]
        if self._last is None or not all(map(is_, values, self._last.values)):
            self._last = self._answer(values)
        return self._last

    def _answer(self, values: list[Any]) -> Answered:
        found, own, place = self.tracker.filter, self._own, len(self._block)
        self._last = None
        row = slice(place, place + 1)
        self._encode(values, self._values[place], self._x[place])
        x, cosines, parts = self._x[row], self._cosines[row], self._parts[row]
        np.matmul(x, own["weights"], out=cosines)
        cosines += own["offset"]
        np.cos(cosines, out=cosines)
        self.tracker.map.parts(x, parts)
        if self._reading is None:
            everything = self.tracker.nothing_known(1)
        else:
            everything = self.tracker.padded(
                self._reading.of_scores(cosines.astype(np.float64) @ self._read + self._read_at_zero)
            )
        answers = np.concatenate([everything, parts @ self._models + self._at_zero], 1).reshape(1, -1, found.outputs)
        answers = found.bounded(answers)
        return Answered(values, x, everything, answers, found.sharpened(answers))

    def _encode(self, values: list[Any], numbers: NDArray[np.float64], x: NDArray[np.float32]) -> None:
        """Write numbers and the encoded row, as `Scales.encode` has it; `InputError` if a number is none."""
        count = len(self.numbers)
        raw = values[:count]
        if not PLAIN.issuperset(map(type, raw)):
            raw = [number(name, value) for name, value in zip(self.numbers, raw, strict=True)]
        try:
            numbers[:] = raw
        except OverflowError:
            raise InputError("a column of numbers holds a whole number that is too large: convert it to a float") from None
        with np.errstate(over="ignore"):
            z = (numbers - self._centre) / self._spread
        place = count + self._indicators
        x[count:] = 0
        if not np.isfinite(z).all():
            if np.isinf(numbers).any():
                raise InputError(f"column {self.numbers[int(np.isinf(numbers).argmax())]!r} holds numbers, got infinity")
            missing = np.isnan(z)
            z[missing] = 0
            x[count:place] = missing if self._indicators == count else missing.mean()
        np.maximum(z, -CLIP, out=z)
        x[:count] = np.minimum(z, CLIP, out=z)
        for value, known in zip(values[count:], self._slots, strict=True):
            x[place + slot(known, value, self._width)] = 1
            place += self._width

    def mixture(self, answered: Answered) -> NDArray[np.float64]:
        """What follows from the models' answers ``[1, C]``, before outliers are considered."""
        found = self.tracker.filter
        return answered.everything if found.alone else found.believed @ answered.sharpened[0][None]

    def trust(self, answered: Answered) -> float:
        """How far the row is from being an outlier: 1 for ordinary rows."""
        x = answered.x
        away = (x if self._projection is None else x @ self._projection).astype(np.float64) @ self._white - self._means
        novelty = float(np.add.reduce(np.square(away, out=away), 1).min()) / self.core.novelty.size
        return min(1.0, self._ordinary / max(novelty, 1e-12))

    def weigh(self, answered: Answered, target: Sequence[float]) -> None:
        """The target of the row that was `answered` last is known now: weigh the members by their answers."""
        found, targets = self.tracker.filter, np.array([target], dtype=np.float64)
        if found.classes:
            found.believe(answered.sharpened, targets)
        else:
            found.weigh(answered.answers, targets)
        self.keep(answered)

    def keep(self, answered: Answered) -> None:
        """The row that was `answered` last belongs to the block, and is weighed already."""
        self._block.append(answered)
        self._last = None

    # -- blocks -----------------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Rows until the block of the filter is complete."""
        return self.tracker.filter.left

    def complete(self, targets: Tensor) -> Table:
        """The rows since the last block, which are learned next: what is known of them is handed on to the tracker."""
        block, own, found, count = self._block, self._own, self.tracker.filter, len(self._block)
        if found.classes:
            found.count(np.concatenate([each.answers for each in block]), self.core.model.indicators(targets).numpy())
        # copies: the next rows are written over these
        features = (self._cosines[:count] - own["shift"]) * own["scale"]
        phi = self.tracker.map.scaled(self._parts[:count].copy())
        self.tracker.know(*(torch.from_numpy(each) for each in (self._x[:count].copy(), features, phi)))
        texts = [np.array([None] * count, dtype=object) for _ in self.categories]
        for place, column in enumerate(texts, len(self.numbers)):
            column[:] = [text(each.values[place]) for each in block]
        return Table(self.kinds, self._values[:count].copy(), tuple(texts))


def number(name: str, value: Any) -> float:
    """The value of a column of numbers, NaN if it is missing; `InputError` if it is none."""
    if is_missing(value):
        return float("nan")
    try:
        found = float(value) if isinstance(value, NUMBERS) else float("inf")
    except OverflowError:
        found = float("inf")
    if found in (float("inf"), float("-inf")):
        raise InputError(f"column {name!r} holds numbers, got {str(value)[:50]}")
    return found


def is_missing(value: Any) -> bool:
    """None, NaN, and pandas' signs for missing values."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def text(value: Any) -> str | None:
    """The value of a column of categories, `MISSING` if it is missing."""
    return MISSING if is_missing(value) else str(value)


def slot(known: Mapping[str, int], value: Any, width: int) -> int:
    """Place of a category among `width` ones: the last but one is for those without a place, the last one for missing ones."""
    category = text(value)
    return width - 1 if category is MISSING else known.get(category, width - 2)
