"""Answers for one row at a time, and weights of the filter after each label, without the price of a batch.

Between two blocks of rows nothing changes but the weights of the filter over concepts: the models are solved at the end of a
block. So all that a row goes through is laid out once a block, for one compiled call (`hvcl.ops.rows.Block`). Features and
answers of the rows of a block are kept until it is complete; then the sums learn them at once, with the same result. The numbers
are those of the estimator's own path, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.estimators.concepts import BLOCK, STEP
from hvcl.estimators.core import Core
from hvcl.estimators.models import ClassModel, RegressionModel
from hvcl.estimators.scales import CLIP
from hvcl.estimators.tables import MISSING, Kind, Table, is_missing
from hvcl.features import RandomFeatures
from hvcl.ops import rows

NUMBERS = (bool, int, float, np.number, np.bool_)
"""Types of the values of columns of numbers."""

PLAIN = frozenset((float, int, np.float64))
"""Those that arrays can be made of without a look at each value."""

AnyCore = Core[ClassModel] | Core[RegressionModel]


class Answered(NamedTuple):
    """A row that the models have answered."""

    row: int
    """Its number in the block."""
    values: list[Any]
    """Of its columns of numbers, then of those of categories."""


class PlainBlock:
    """What `hvcl.ops.rows.Block` does, where there is no compiled code."""

    def __init__(self, core: AnyCore) -> None:
        assert core.tracker is not None
        self.core, self.tracker, found = core, core.tracker, core.tracker.filter
        scales = core.scales
        self.values, self.places = (
            np.zeros((BLOCK, len(scales.centre))),
            np.zeros((BLOCK, len(scales.categories)), dtype=np.int64),
        )
        self.x = np.zeros((BLOCK, *scales.input_shape), dtype=np.float32)
        self.own = np.zeros((BLOCK, core.model.width), dtype=np.float32)
        self.phi, self.novelty = np.zeros((BLOCK, found.features)), np.zeros(BLOCK)

    def bind(self) -> None:
        """Room for the answers of the models as they are now."""
        found = self.tracker.filter
        self.everything = np.zeros((BLOCK, found.outputs))
        self.answers = np.zeros((BLOCK, len(found.believed), found.outputs))
        self.sharpened = self.answers.copy()

    def answer(self, row: int) -> int:
        """Encode a row from its `values` and `places`, and answer it; returns the first number that is infinite, or -1."""
        scales, values, found, part = self.core.scales, self.values[row], self.tracker.filter, slice(row, row + 1)
        if np.isinf(values).any():
            return int(np.isinf(values).argmax())
        self.x[row] = 0
        scales.write_numbers(self.values[part], self.x[part])
        first, width = len(values) + scales.indicators, scales.max_categories + 2
        self.x[row, first + np.arange(len(self.places[row])) * width + self.places[row]] = 1
        x = torch.from_numpy(self.x[part].copy())
        own = self.core.model.features(x)
        phi, everything = self.tracker.map(x, own), self.tracker.everything(self.tracker.reading(), own.numpy())
        answers = found.answers(phi, everything)
        self.own[part], self.phi[part], self.everything[part] = own.numpy(), phi.numpy(), everything
        self.answers[part], self.sharpened[part] = answers, found.sharpened(answers)
        self.novelty[part] = self.core.novelty(x)
        return -1


class SingleRows:
    """Encodes rows, answers, and weighs models, one row at a time.

    Args:
        core: of an estimator of a table, which answers as of now.
        columns: names and kinds of the columns.
    """

    def __init__(self, core: AnyCore, columns: Mapping[str, Kind]) -> None:
        assert core.tracker is not None
        self.core, self.tracker, scales = core, core.tracker, core.scales
        self.kinds = tuple(columns.values())
        self.numbers = [name for name, kind in columns.items() if kind == "number"]
        self.categories = [name for name, kind in columns.items() if kind == "category"]
        self.names = [*self.numbers, *self.categories]
        self._width = scales.max_categories + 2
        compiled = self.tracker.compiled()
        centre, spread = (np.ascontiguousarray(each.numpy()) for each in (scales.centre, scales.spread))
        encoding = rows.Encoding(centre, spread, CLIP, scales.indicators, len(self.categories), self._width)
        self._block = PlainBlock(core) if compiled is None else rows.Block(BLOCK, compiled, encoding)
        self.refresh()

    @staticmethod
    def possible(core: AnyCore) -> bool:
        """Whether a core's rows can be answered one at a time here."""
        return core.tracker is not None and core.scales.shape is None and isinstance(core.model.map, RandomFeatures)

    def refresh(self) -> None:
        """Lay everything out as it is now: after rows were learned."""
        core, found = self.core, self.tracker.filter
        self._kept: list[list[Any]] = []
        """Values of the rows since the last block."""
        self._last: Answered | None = None
        self._slots = [{category: slot for slot, category in enumerate(known)} for known in core.scales.categories]
        self._alone, self._ordinary = found.alone, core.novelty.far
        if isinstance(self._block, PlainBlock):
            self._block.bind()
            return
        compiled = self.tracker.compiled()
        assert compiled is not None
        # these are changed in place, and may be somebody else's
        found.weights, found.usual, found.rates = found.weights.copy(), found.usual.copy(), found.rates.copy()
        self._block.bind(compiled, found.powers, core.novelty.of_inputs(), STEP, found.weights, found.usual, found.rates)

    # -- one row ----------------------------------------------------------------------------------------------------------

    def answered(self, row: Mapping[str, Any]) -> Answered:
        """What the models say of a row, computed once for one that is predicted and then learned; `InputError` if it is none."""
        values = [row.get(name) for name in self.names]
        if self._last is None or not all(map(is_, values, self._last.values)):
            self._last = None
            self._last = self._answer(values)
        return self._last

    def _answer(self, values: list[Any]) -> Answered:
        row, block, count = len(self._kept), self._block, len(self.numbers)
        raw = values[:count]
        if not PLAIN.issuperset(map(type, raw)):
            raw = [number(name, value) for name, value in zip(self.numbers, raw, strict=True)]
        try:
            block.values[row] = raw
        except OverflowError:
            raise InputError("a column of numbers holds a whole number that is too large: convert it to a float") from None
        if self._slots:
            block.places[row] = [
                slot(known, value, self._width) for known, value in zip(self._slots, values[count:], strict=True)
            ]
        bad = block.answer(row)
        if bad >= 0:
            raise InputError(f"column {self.numbers[bad]!r} holds numbers, got infinity")
        return Answered(row, values)

    def mixture(self, answered: Answered) -> NDArray[np.float64]:
        """What follows from the models' answers ``[1, C]``, before outliers are considered."""
        block, found, row = self._block, self.tracker.filter, answered.row
        if self._alone and found.alone:
            return block.everything[row : row + 1]
        if isinstance(block, PlainBlock) or block.weights is not found.weights:
            return found.believed @ block.sharpened[row : row + 1]
        return block.mix(row)

    def trust(self, answered: Answered) -> float:
        """How far the row is from being an outlier: 1 for ordinary rows."""
        return min(1.0, self._ordinary / max(float(self._block.novelty[answered.row]), 1e-12))

    def weigh(self, answered: Answered, target: Sequence[float]) -> None:
        """The target of the row that was `answered` last is known now: weigh the members by their answers."""
        block, found, part = self._block, self.tracker.filter, slice(answered.row, answered.row + 1)
        if not found.classes:
            found.weigh(block.answers[part], np.array([target], dtype=np.float64))
        elif isinstance(block, PlainBlock) or block.weights is not found.weights:
            found.believe(block.sharpened[part], np.array([target], dtype=np.float64))
        else:
            block.believe(answered.row, target.index(1.0))
            found.rows += 1
        self.keep(answered)

    def keep(self, answered: Answered) -> None:
        """The row that was `answered` last belongs to the block, and is weighed already."""
        self._kept.append(answered.values)
        self._last = None

    # -- blocks -----------------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Rows until the block of the filter is complete."""
        return self.tracker.filter.left

    def complete(self, targets: Tensor) -> Table:
        """The rows since the last block, which are learned next: what is known of them is handed on to the tracker."""
        block, found, count = self._block, self.tracker.filter, len(self._kept)
        if found.classes:
            found.count(block.answers[:count], self.core.model.indicators(targets).numpy())
        # copies: the next rows are written over these
        x, own, phi = (torch.from_numpy(each[:count].copy()) for each in (block.x, block.own, block.phi))
        self.tracker.know(x, own, phi)
        texts = [np.array([None] * count, dtype=object) for _ in self.categories]
        for place, column in enumerate(texts, len(self.numbers)):
            column[:] = [text(values[place]) for values in self._kept]
        return Table(self.kinds, block.values[:count].copy(), tuple(texts))


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


def text(value: Any) -> str | None:
    """The value of a column of categories, `MISSING` if it is missing."""
    return MISSING if is_missing(value) else str(value)


def slot(known: Mapping[str, int], value: Any, width: int) -> int:
    """Place of a category among `width` ones: the last but one is for those without a place, the last one for missing ones."""
    category = text(value)
    return width - 1 if category is MISSING else known.get(category, width - 2)
