"""What an estimator answers as of now: its own model of everything, inside a filter over concepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.state import State
from hvcl.estimators.concepts import ConceptFilter
from hvcl.estimators.models import BLOCK, ClassReading, LinearReading, Model, in_blocks
from hvcl.estimators.plain import PlainMap
from hvcl.estimators.scales import Scales

RENEWED = 2.0
"""The model of everything is read anew when its rows have grown by this factor."""

FEW = 256
"""Up to so many rows their features are computed in blocks, in which they are the same as when the rows are asked about."""


@dataclass(frozen=True)
class DriftEvent:
    """The relation of rows and targets has changed, as far as the last labels show it."""

    row: int
    """Number of rows that were learned when it was noticed."""
    expert: int
    """The expert that learns from now on; numbers are never used twice."""
    known: bool
    """Whether the expert was there before: a concept has come back."""
    columns: tuple[str | int, ...]
    """Columns whose means moved with it, by name or number, the farthest first; none: only the relation has changed."""


@dataclass(frozen=True)
class Asked:
    """Rows that were asked about last, and what was computed for the answers: they are often the next ones to be learned."""

    x: Tensor
    """Encoded ``[n, *shape]``."""
    own: Tensor
    """Their features in the model's map ``[n, F]``."""
    phi: Tensor
    """And in the filter's ``[n, D]``."""
    answers: NDArray[np.float64]
    """Of the filter's members ``[n, K, C]``."""
    made: tuple[Any, Any]
    """What the answers were made with: the reading of the model, and the coefficients of the others."""


class Tracker:
    """Follows the stream beside a model whose answers it corrects.

    Args:
        scales: of the rows.
        model: of everything; a model of sums.
        seed: of the features.
        classes: whether targets are units of classes.
        private: sums of less than a block of rows are not saved; those rows are left out of the filter then.
    """

    def __init__(self, scales: Scales, model: Model, seed: int, classes: bool, private: bool = False) -> None:
        self.model, self.classes, self.private = model, classes, private
        self.map = PlainMap(scales, seed, model.width)
        self.filter = ConceptFilter(self.map.features, model.outputs, classes, self.map.linear)
        self._reading: ClassReading | LinearReading | None = None
        self._read_at = 0.0
        self._asked: Asked | None = None

    # -- learning ---------------------------------------------------------------------------------------------------------

    def features(self, x: Tensor) -> Tensor:
        """Features of encoded rows in the model's map, as `learn` takes them; computed once if they were asked about last."""
        asked = self._asked
        if asked is not None and asked.x.shape == x.shape and torch.equal(asked.x, x):
            return asked.own
        self._asked = None
        if self.map.pictures or len(x) > FEW:
            return self.model.features(x)
        return torch.cat([self.model.features(block) for block in in_blocks(x)])[: len(x)]

    def _phi(self, x: Tensor, own: Tensor) -> Tensor:
        """Features in the filter's map of rows whose `features` are given."""
        if self._asked is not None and self._asked.own is own:
            return self._asked.phi
        if self.map.pictures or len(x) > FEW:
            return self.map(x, own)
        return torch.cat([self.map(block, own) for block in in_blocks(x)])[: len(x)]

    def know(self, x: Tensor, own: Tensor, phi: Tensor) -> None:
        """Features of rows that are learned next, in the model's map and in the filter's."""
        self._asked = Asked(x, own, phi, np.empty((0, 0, 0)), (None, None))

    def learn(
        self, x: Tensor, own: Tensor, targets: Tensor, ordered: bool, weights: Tensor | None = None, *, weighed: bool = False
    ) -> list[DriftEvent]:
        """Learn rows before the model does; returns the changes that they showed.

        Args:
            x: encoded rows.
            own: their `features`.
            targets: as the columns of the regression ``[n, C]``.
            ordered: whether they came in this order; else all hold now.
            weights: how many rows each one counts as.
            weighed: the filter's models are weighed by these rows already (`ConceptFilter.weigh`).
        """
        self.filter.grow(self.model.outputs)
        phi, wanted = self._phi(x, own), targets.double()
        if not ordered:
            self.filter.begin(phi, wanted, weights)
            return []
        asked, self._asked = self._asked, None
        everything = None
        if asked is not None and not weighed and self._still_holds(asked):
            self.filter.weigh(asked.answers, wanted.numpy(), None if weights is None else weights.double().numpy())
        elif not weighed:
            everything = self._everything(own)
        changes = self.filter.learn(phi, wanted, everything, weights)
        return [DriftEvent(change.row, change.expert, change.known, self.map.columns(change.moved)) for change in changes]

    def _still_holds(self, asked: Asked) -> bool:
        """Whether rows are one block of the filter, and their answers are what they would be now."""
        whole = len(asked.answers) == BLOCK == self.filter.left and asked.answers.shape[2] == self.filter.outputs
        return whole and asked.made[0] is self.reading() and asked.made[1] is self.filter.coefficients()

    def reading(self) -> ClassReading | LinearReading | None:
        """The model of everything, at most half of whose rows have come since it was read; None: it has none."""
        count = self.model.count
        if self._reading is None or count >= max(self._read_at + 32, RENEWED * self._read_at) or count < self._read_at:
            self._reading, self._read_at = self.model.reading(), count
        return self._reading

    def everything(self, reading: ClassReading | LinearReading | None, own: NDArray[Any]) -> NDArray[np.float64]:
        """What a reading says of the features of rows in the model's map ``[n, C]``; None: nothing is known."""
        return self.nothing_known(len(own)) if reading is None else self.padded(reading(own))

    def nothing_known(self, rows: int) -> NDArray[np.float64]:
        """What is said of rows before the first one is learned ``[n, C]``."""
        return np.full((rows, self.filter.outputs), 1 / self.filter.outputs if self.classes else 0.0)

    def padded(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """With outputs that have come since, of which nothing is known."""
        missing = self.filter.outputs - answers.shape[1]
        return np.pad(answers, ((0, 0), (0, missing))) if missing else answers

    def _everything(self, own: Tensor) -> NDArray[np.float64]:
        return self.everything(self.reading(), own.numpy())

    def restart(self) -> None:
        """Forget everything: rows of the model were taken out, and only its own sums can do that exactly."""
        self.filter.restart()
        self._reading = None

    def merge(self, other: Tracker, targets: list[int]) -> None:
        """Add what another site's tracker knows, whose targets have these numbers here; the model has learned its rows."""
        self.filter.grow(self.model.outputs)
        self.filter.merge(other.filter, targets)
        self._reading = None

    # -- answers ----------------------------------------------------------------------------------------------------------

    def answers(self, x: Tensor) -> NDArray[np.float64]:
        """Probabilities or standardised numbers as of now ``[n, C]``."""
        found = []
        for block in in_blocks(x):
            own = self.model.features(block)
            phi, everything = self.map(block, own), self._everything(own)
            answers = self.filter.answers(phi, everything)
            found.append((own, phi, answers, everything if self.filter.alone else self.filter.mixed(answers)))
        owns, phis, members, mixtures = zip(*found, strict=True)
        count = len(x)
        if not (self.private or self.map.pictures) and count <= FEW:
            made = self._reading, self.filter.coefficients()
            self._asked = Asked(x, torch.cat(owns)[:count], torch.cat(phis)[:count], np.concatenate(members)[:count], made)
        return np.concatenate(mixtures)[:count]

    def moments(self, x: Tensor, variance: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and variances of standardised numbers as of now ``[n, C]``; `variance` is the model's."""
        means, variances = [], []
        for place, block in enumerate(in_blocks(x)):
            own = self.model.features(block)
            mine = variance[place * len(block) : (place + 1) * len(block)]
            mine = np.concatenate([mine, np.repeat(mine[:1], len(block) - len(mine), 0)])
            mean, around = self.filter.moments(self.map(block, own), self._everything(own), mine)
            means.append(mean)
            variances.append(around)
        return np.concatenate(means)[: len(x)], np.concatenate(variances)[: len(x)]

    # -- files ------------------------------------------------------------------------------------------------------------

    def state_dict(self, file: bool = False) -> State:
        """The filter, and the model of everything as it was read; `file`: for one, which holds no block of a private stream."""
        reading = None if self._reading is None else self._reading.state_dict()
        block = not (file and self.private)
        return {"filter": self.filter.state_dict(block), "reading": reading, "read_at": self._read_at}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.filter.load_state_dict(state["filter"])
        saved = state["reading"]
        self._reading = None if saved is None else (ClassReading if self.classes else LinearReading).from_state(saved)
        self._read_at = float(state["read_at"])
