"""What an estimator answers as of now: its own model of everything, inside a filter over concepts."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.state import State
from hvcl.estimators.concepts import BLOCK, ConceptFilter
from hvcl.estimators.groups import Key
from hvcl.estimators.history import OPEN
from hvcl.estimators.ledger import Found, Ledger
from hvcl.estimators.models import ClassReading, LinearReading, Model, in_blocks
from hvcl.estimators.plain import COSINES, MORE_CONDITIONS, RULES, PlainMap
from hvcl.estimators.scales import Scales
from hvcl.estimators.shares import Shares
from hvcl.features import RandomFeatures
from hvcl.ops import load
from hvcl.ops.rows import Maps, Rows

RENEWED = 2.0
"""The model of everything is read anew when its rows have grown by this factor."""

FEW = 256
"""Up to so many rows their features are computed as when the rows are asked about."""


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


class Last:
    """What was asked last, of a tracker or of a snapshot of it, in whatever thread."""

    asked: Asked | None = None


class Tracker:
    """Follows the stream beside a model whose answers it corrects.

    Args:
        scales: of the rows.
        model: of everything; a model of sums.
        seed: of the features.
        classes: whether targets are units of classes.
        private: fingerprints are not saved, nor sums of less than a block of rows, which are left out of the filter then.
        fingerprints: rows whose fingerprints are kept, the newest ones (`hvcl.estimators.ledger`).
    """

    def __init__(
        self, scales: Scales, model: Model, seed: int, classes: bool, private: bool = False, fingerprints: int = 0
    ) -> None:
        self.model, self.classes, self.private = model, classes, private
        self.map = PlainMap(scales, seed, model.width)
        self.filter = ConceptFilter(self.map.features, model.outputs, classes, self.map.linear)
        self.ledger = Ledger(fingerprints)
        self.shares = Shares(self.map.features, model.outputs, [pool.used for pool in self.filter.pools])
        self._reading: ClassReading | LinearReading | None = None
        self._read_at = 0.0
        self._fixed = False  # a snapshot
        self._asked: Asked | None = None  # what is learned next
        self._last = Last()
        self._rows = _compiled(model, self.map)
        self._on: tuple[Any, int, Rows] | None = None
        self._beside: tuple[Any, Rows] | None = None

    # -- learning ---------------------------------------------------------------------------------------------------------

    def features(self, x: Tensor) -> Tensor:
        """Features of encoded rows in the model's map, as `learn` takes them; computed once if they were asked about last."""
        for asked in (self._asked, self._last.asked):
            if asked is not None and asked.x.shape == x.shape and torch.equal(asked.x, x):
                self._asked = asked
                return asked.own
        own, phi = self._both(x)
        self.know(x, own, phi)
        return own

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of encoded rows in the model's map and in the filter's.

        Of few rows they are the same, to the last bit, as when they are asked about; many are one product of matrices.
        """
        if self.map.pictures or len(x) > FEW:
            own = self.model.features(x)
            return own, self.map(x, own)
        if self._rows is not None:
            owns, phis = self._rows.features(x.numpy())
            return torch.from_numpy(owns), torch.from_numpy(phis)
        blocks = in_blocks(x)
        found = [self.model.features(block) for block in blocks]
        phi = torch.cat([self.map(block, own) for block, own in zip(blocks, found, strict=True)])
        return torch.cat(found)[: len(x)], phi[: len(x)]

    def know(self, x: Tensor, own: Tensor, phi: Tensor) -> None:
        """Features of rows that are learned next, in the model's map and in the filter's."""
        self._asked = Asked(x, own, phi, np.empty((0, 0, 0)), (None, None))

    def learn(
        self,
        x: Tensor,
        own: Tensor,
        targets: Tensor,
        ordered: bool,
        weights: Tensor | None = None,
        *,
        weighed: bool = False,
        marks: NDArray[np.int64] | None = None,
        group: Key | None = None,
    ) -> list[DriftEvent]:
        """Learn rows before the model does; returns the changes that they showed.

        Args:
            x: encoded rows.
            own: their `features`.
            targets: as the columns of the regression ``[n, C]``.
            ordered: whether they came in this order; else all hold now.
            weights: how many rows each one counts as.
            weighed: the filter's models are weighed by these rows already (`ConceptFilter.weigh`).
            marks: their fingerprints ``[n]``; None: they cannot be found again.
            group: that they came in.
        """
        self._grow()
        asked, self._asked, self._last.asked = self._asked, None, None
        phi = asked.phi if asked is not None and asked.own is own else self.map(x, own)
        wanted, waiting, everything = targets.double(), self.filter.block_rows, None
        if ordered:
            if asked is not None and not weighed and self._still_holds(asked):
                self.filter.weigh(asked.answers, wanted.numpy(), None if weights is None else weights.double().numpy())
            elif not weighed:
                everything = self._everything(own)
            changes = self.filter.learn(phi, wanted, everything, weights)
            blocks = np.array([*self.filter.ended, OPEN])
            stamps = blocks[(waiting + np.arange(len(phi))) // BLOCK]
            for time in self.filter.ended[:1]:
                self.ledger.end(time)
                self.shares.end(time)
        else:
            changes = []
            self.filter.begin(phi, wanted, weights)
            stamps = np.full(len(phi), -float(len(self.filter.history.begun)))
        times = None if weights is None else weights.double().numpy()
        if marks is None:
            self.ledger.lost = OPEN
        else:
            self.ledger.add(marks, stamps, times, group, self.filter.history)
        if group is not None:
            counts, history, pending = np.ones(len(phi)) if times is None else times, self.filter.history, self.filter.pending
            final = pending[0].after if pending else history.time
            self.shares.add(group, _scaled(phi, wanted, counts), stamps, counts, history, final)
        return [DriftEvent(change.row, change.expert, change.known, self.map.columns(change.moved)) for change in changes]

    def _still_holds(self, asked: Asked) -> bool:
        """Whether rows fit into the filter's block, and their answers are, to the last bit, what they would be now."""
        count = len(asked.answers)
        alike = 0 < count <= self.filter.left and (count == BLOCK or self._rows is not None)
        alike = alike and asked.answers.shape[2] == self.filter.outputs
        return alike and asked.made[0] is self.reading() and asked.made[1] is self.filter.coefficients()

    def _grow(self) -> None:
        self.filter.grow(self.model.outputs)
        self.shares.grow(self.model.outputs)

    def reading(self) -> ClassReading | LinearReading | None:
        """The model of everything, at most half of whose rows have come since it was read; None: it has none."""
        if self._fixed:
            return self._reading
        count = self.model.count
        if self._reading is None or count >= max(self._read_at + 32, RENEWED * self._read_at) or count < self._read_at:
            self._reading, self._read_at = self.model.reading(), count
        return self._reading

    def everything(self, reading: ClassReading | LinearReading | None, own: NDArray[Any]) -> NDArray[np.float64]:
        """What a reading says of the features of rows in the model's map ``[n, C]``; None: nothing is known."""
        outputs = self.filter.outputs
        if reading is None:
            return np.full((len(own), outputs), 1 / outputs if self.classes else 0.0)
        answers = reading(own)
        missing = outputs - answers.shape[1]
        return np.pad(answers, ((0, 0), (0, missing))) if missing else answers

    def _everything(self, own: Tensor) -> NDArray[np.float64]:
        rows = self.compiled()
        return self.everything(self.reading(), own.numpy()) if rows is None else rows.read(own.numpy())

    def compiled(self) -> Rows | None:
        """The compiled call for rows, with the models as they are now; None where there is none."""
        if self._rows is None:
            return None
        reading, outputs, coefficients = self.reading(), self.filter.outputs, self.filter.coefficients()
        if self._on is None or self._on[0] is not reading or self._on[1] != outputs:
            scores = None if reading is None else reading.scores()
            self._on, self._beside = (reading, outputs, self._rows.on(scores, outputs, self.filter.least)), None
        if self._beside is None or self._beside[0] is not coefficients:
            self._beside = coefficients, self._on[2].beside(coefficients)
        return self._beside[1]

    # -- forgetting -------------------------------------------------------------------------------------------------------

    def forget(self, x: Tensor, own: Tensor, targets: Tensor, found: Found, group: Key | None, left: float) -> None:
        """Unlearn rows, which the model has unlearned.

        Args:
            x: encoded rows.
            own: their features in the model's map.
            targets: as the columns of the regression ``[n, C]``.
            found: when they were learned.
            group: that they came in.
            left: share of its rows that the model still has.
        """
        self._grow()
        phi, wanted = self.map(x, own), targets.double()
        known = torch.from_numpy(found.rows)
        rows = _scaled(phi[known], wanted[known], found.counts)
        self.filter.remove(*self._parts(rows), found.stamps, found.counts, left)
        if group is not None:
            self.shares.take(group, rows, found.stamps, found.counts, self.filter.history)
        self.ledger.take(found)
        lost = np.flatnonzero(found.unknown)
        if len(lost):
            unknown, until, some = found.unknown[lost], self.ledger.lost, torch.from_numpy(lost)
            parts = self._parts(_scaled(phi[some], wanted[some], unknown))
            # whose rows of a group they are is not known to the group's share either
            if self.filter.renew(until, 1.0, *parts, unknown, alone=group is not None):
                self.ledger.scatter()
                self.shares.scatter()
            elif until == OPEN:
                self.ledger.scatter_open(self.filter.history.time)
                self.shares.scatter_open()
        self._reading = None

    def forget_group(self, group: Key, left: float) -> None:
        """Unlearn a group, which the model has unlearned; it still has this share of its rows."""
        self._grow()
        rows, stamps, counts = self.shares.of(group)
        self.filter.remove(*self._parts(rows), stamps, counts, left, *self.shares.folded(group, self.filter.history))
        self.shares.groups.pop(group, None)
        self.ledger.take_group(group)
        self._reading = None

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Features and targets, which stand side by side."""
        return rows[:, : self.map.features], rows[:, self.map.features :]

    def clear(self) -> None:
        """As if there had been no row."""
        self.filter.clear()
        self.ledger.clear()
        self.shares.scatter()
        self._reading, self._read_at = None, 0.0

    def merge(self, other: Tracker, targets: list[int]) -> None:
        """Add what another site's tracker knows, whose targets have these numbers here; the model has learned its rows."""
        self._grow()
        mine, theirs = self.filter.history, other.filter.history
        time, calls, outputs = max(mine.time, theirs.time), len(mine.begun), self.filter.outputs
        moved = (time - mine.time, time - theirs.time)
        sites = (
            self.shares.moved(moved[0], 0, mine, range(outputs), outputs),
            other.shares.moved(moved[1], calls, theirs, targets, outputs),
        )
        self.filter.merge(other.filter, targets)
        self.ledger.merge(other.ledger, moved, calls, self.filter.history)
        self.shares.merge(*sites)
        self._reading = None

    # -- answers ----------------------------------------------------------------------------------------------------------

    def snapshot(self, model: Model) -> Tracker:
        """A tracker that answers as this one does now, and only that; `model` is a snapshot of the model, or has the same map."""
        if not self.filter.alone:
            self.reading()
            self.filter.coefficients()  # the same for both, so that the answers to rows that are learned next need no others
        made = copy.copy(self)
        made.model, made.filter, made._fixed = model, self.filter.snapshot(), True
        return made

    def answers(self, x: Tensor) -> NDArray[np.float64]:
        """Probabilities or standardised numbers as of now ``[n, C]``."""
        found, count, compiled = [], len(x), self.compiled()
        for block in in_blocks(x) if compiled is None else x.split(FEW):
            if compiled is not None:
                own, phi, everything, members = compiled.answers(block.numpy())
                features = torch.from_numpy(own), torch.from_numpy(phi)
            else:
                features = self._both(block)
                everything = self._everything(features[0])
                members = self.filter.answers(features[1], everything)
            found.append((*features, members, everything if self.filter.alone else self.filter.mixed(members)))
        owns, phis, answers, mixtures = zip(*found, strict=True)
        if not (self.private or self.map.pictures) and count <= FEW:
            made = self._reading, self.filter.coefficients()
            self._last.asked = Asked(x, torch.cat(owns)[:count], torch.cat(phis)[:count], np.concatenate(answers)[:count], made)
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
        """The filter, who learned what, and the model of everything as it was read.

        `file`: for one, which holds no block of a private stream, and no fingerprints.
        """
        reading = None if self._reading is None else self._reading.state_dict()
        whole = not (file and self.private)
        ledger = self.ledger
        if not whole:
            ledger = Ledger(0)
            ledger.lost = self.filter.history.time
        return {
            "filter": self.filter.state_dict(whole),
            "reading": reading,
            "read_at": self._read_at,
            "ledger": ledger.state_dict(),
            "shares": self.shares.state_dict(whole),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.filter.load_state_dict(state["filter"])
        saved = state["reading"]
        self._reading = None if saved is None else (ClassReading if self.classes else LinearReading).from_state(saved)
        self._read_at = float(state["read_at"])
        self.ledger.load_state_dict(state["ledger"])
        self.shares.outputs = self.filter.outputs
        self.shares.load_state_dict(state["shares"])


def _scaled(phi: Tensor, targets: Tensor, counts: NDArray[np.float64]) -> Tensor:
    """Features and targets of rows side by side, times the root of what each row counts as."""
    return torch.from_numpy(np.sqrt(counts)).unsqueeze(1) * torch.cat([phi, targets], 1)


def _compiled(model: Model, plain: PlainMap) -> Rows | None:
    """The compiled call for the maps of a model and of a filter; None where there is none."""
    library, own = load(), getattr(model, "map", None)
    if library is None or plain.pictures or not isinstance(own, RandomFeatures):
        return None
    parts = [np.ascontiguousarray(own.state[name].numpy()) for name in ("weights", "offset", "shift", "scale")]
    counts = (COSINES, RULES, *MORE_CONDITIONS)
    return Rows(library, Maps(tuple(parts), (*plain.projections, plain.scale, plain.shift), plain.numbers, plain.linear, counts))
