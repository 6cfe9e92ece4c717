"""What an estimator answers from: all that was learned when some call had ended, while another one may be learning.

Every call that changes something ends by putting a new `Learned` in the place of the old one, in one assignment; who asks takes
the one that is there, and waits for nobody. A call that is refused leaves the old one. Sums are copied before they change if
answers are made from them, and nobody has asked yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hvcl.estimators.core import Core
from hvcl.estimators.labels import Labels
from hvcl.estimators.models import Model
from hvcl.estimators.now import DriftEvent
from hvcl.estimators.scales import Scales
from hvcl.estimators.tables import Kind
from hvcl.estimators.waiting import Waiting

AnyModel = TypeVar("AnyModel", bound=Model)


class FirstModel(Generic[AnyModel]):
    """A model of the first rows for the time being, made when it is asked for: of at least two thirds of those there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._core: Core[AnyModel] | None = None
        self._rows = 0

    def core(self, waiting: list[Waiting], make: Callable[[list[Waiting]], Core[AnyModel]]) -> Core[AnyModel]:
        """The model, made anew if there are half as many rows again."""
        rows = sum(len(part.table) for part in waiting)
        with self._lock:
            if self._core is None or 2 * rows >= 3 * self._rows:
                core = make(waiting)
                self._core, self._rows = core.snapshot() or core, rows
            return self._core


@dataclass(frozen=True)
class Learned(Generic[AnyModel]):
    """All that was learned by some moment. It never changes."""

    core: Core[AnyModel] | None
    """A snapshot; None: the first rows are still kept, or the method has no snapshots."""
    waiting: list[Waiting]
    """The first rows, as long as they are kept."""
    first: FirstModel[AnyModel]
    """Of these."""
    apart: bool
    """Whether answers need not wait for a call that learns."""
    columns: Any
    """An estimator that knows the columns, and nothing else."""
    kinds: tuple[Kind, ...] | None
    """Of the columns."""
    shape: tuple[int, ...] | None
    """Of pictures."""
    labels: Labels | None
    """Of a classifier."""
    flat: bool | None
    """Whether a regressor's targets came as ``[n]``."""
    scales: Scales | None
    events: list[DriftEvent]
    experts: dict[int, int]
    """Rows that each expert has learned."""
    rows: int
    """That have come so far."""
