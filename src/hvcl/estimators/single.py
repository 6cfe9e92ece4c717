"""Answers for one row at a time, and weights of the filter after each label, without the price of a batch.

Between two blocks of rows nothing changes but the weights of the filter over concepts: the models are solved at the end of a
block. So what they are made of is laid out as arrays once a block, and an answer takes a few products with vectors; the sums
learn the rows of a block at once, with the same result. The numbers are those of the estimator's own path, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvcl.core.errors import InputError
from hvcl.estimators.core import Core
from hvcl.estimators.models import ClassModel, RegressionModel
from hvcl.estimators.novelty import FAR
from hvcl.estimators.scales import CLIP
from hvcl.estimators.tables import MISSING, Kind
from hvcl.features import RandomFeatures

NUMBERS = (bool, int, float, np.number, np.bool_)
"""Types of the values of columns of numbers."""


class SingleRows:
    """Encodes rows, answers, and weighs models, one row at a time.

    Args:
        core: of an estimator of a table, which answers as of now.
        columns: names and kinds of the columns.
    """

    def __init__(self, core: Core[ClassModel] | Core[RegressionModel], columns: Mapping[str, Kind]) -> None:
        assert core.tracker is not None
        self.core, self.tracker = core, core.tracker
        self.numbers = [name for name, kind in columns.items() if kind == "number"]
        self.categories = [name for name, kind in columns.items() if kind == "category"]
        made = core.model.map
        assert isinstance(made, RandomFeatures)
        self._own = {name: made.state[name].numpy() for name in ("weights", "offset", "shift", "scale")}
        self.refresh()

    @staticmethod
    def possible(core: Core[ClassModel] | Core[RegressionModel]) -> bool:
        """Whether a core's rows can be answered one at a time here."""
        return core.tracker is not None and core.scales.shape is None and isinstance(core.model.map, RandomFeatures)

    def refresh(self) -> None:
        """Lay everything out as it is now: after rows were learned."""
        core, found = self.core, self.tracker.filter
        scales = core.scales
        self._centre, self._spread = scales.centre.numpy(), scales.spread.numpy()
        self._indicators, self._width = scales.indicators, scales.max_categories + 2
        self._slots = [{category: slot for slot, category in enumerate(known)} for known in scales.categories]
        models = [*found.pools, *found.experts]
        self._models = np.concatenate([model.weights.numpy() for model in models], 1)
        self._members = len(models)
        self._reading = self.tracker.reading()
        white, means = core.novelty.whitened()
        self._white, self._means = white.numpy(), means.numpy()
        projection = core.novelty.projection
        self._projection = None if projection is None else projection.numpy()
        self._ordinary = core.novelty.ordinary

    # -- one row ----------------------------------------------------------------------------------------------------------

    def encode(self, row: Mapping[str, Any]) -> NDArray[np.float32]:
        """The encoded row; `InputError` if a number is none."""
        values = []
        for name in self.numbers:
            value = row.get(name)
            if not isinstance(value, float) and type(value) is not int:
                value = number(name, value)
            values.append(value)
        try:
            found = np.array(values, dtype=np.float64)
        except OverflowError:
            raise InputError("a column of numbers holds a whole number that is too large: convert it to a float") from None
        if np.isinf(found).any():
            raise InputError(f"column {self.numbers[int(np.isinf(found).argmax())]!r} holds numbers, got infinity")
        with np.errstate(over="ignore"):
            z = (found - self._centre) / self._spread
        missing = np.isnan(z)
        z[missing] = 0
        slots = np.zeros(self._width * len(self.categories))
        for place, (name, known) in enumerate(zip(self.categories, self._slots, strict=True)):
            slots[self._width * place + slot(known, row.get(name), self._width)] = 1
        gone = missing if self._indicators == len(missing) else [missing.mean()]
        return np.concatenate([np.clip(z, -CLIP, CLIP), gone, slots]).astype(np.float32)

    def answers(self, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Answers of all members of the filter to an encoded row ``[1, K, C]``, and of the model of everything ``[1, C]``."""
        found = self.tracker.filter
        own = (np.cos(x @ self._own["weights"] + self._own["offset"]) - self._own["shift"]) * self._own["scale"]
        outputs = found.outputs
        of_models = (self.tracker.map.single(x) @ self._models).reshape(1, self._members, outputs)
        everything = self.tracker.everything(self._reading, own[None])
        return found.bounded(np.concatenate([everything[:, None], of_models], 1)), everything

    def mixture(self, answers: NDArray[np.float64], everything: NDArray[np.float64]) -> NDArray[np.float64]:
        """What follows from the members' answers ``[1, C]``, before outliers are considered."""
        found = self.tracker.filter
        return everything if found.alone else found.mixed(answers)

    def trust(self, x: NDArray[np.float32]) -> float:
        """How far the row is from being an outlier: 1 for ordinary rows."""
        z = (x if self._projection is None else x @ self._projection).astype(np.float64) @ self._white
        novelty = float(np.square(z - self._means).sum(1).min()) / self.core.novelty.size
        return min(1.0, FAR * self._ordinary / max(novelty, 1e-12))

    def weigh(self, answers: NDArray[np.float64], target: Sequence[float]) -> None:
        """The row's target is known now: weigh the members by their answers."""
        self.tracker.filter.weigh(answers, np.array([target], dtype=np.float64))

    @property
    def left(self) -> int:
        """Rows until the block of the filter is complete."""
        return self.tracker.filter.left


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
