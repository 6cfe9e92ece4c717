"""What an estimator has learned: scales, model, novelty, groups, and what was forgotten."""

from __future__ import annotations

import copy
import hashlib
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.state import State
from hvcl.estimators.groups import Groups, Key
from hvcl.estimators.ledger import Found
from hvcl.estimators.models import FAR_TARGET, Model
from hvcl.estimators.novelty import Novelty
from hvcl.estimators.now import DriftEvent, Tracker
from hvcl.estimators.scales import Drift, Scales, ScaleWarning, warn_user
from hvcl.estimators.tables import Table
from hvcl.posteriors.matrix_normal import NOTHING

AnyModel = TypeVar("AnyModel", bound=Model)

ROWS = 2048
"""Rows that are learned at once."""


@dataclass(frozen=True)
class Course:
    """How rows are gone through."""

    batch: int = ROWS
    """Rows that are learned at once."""
    epochs: int = 1
    """Passes over them, each in a random order if there are several."""
    seed: int = 0
    """Of the orders."""
    ordered: bool = True
    """Whether rows came one after the other; else all of them hold now."""


class Core(Generic[AnyModel]):
    """Scales, model and what goes with them, once the first rows are seen.

    Args:
        scales: of the first rows.
        model: learns from rows that are encoded by the scales.
        seed: of the novelty's projection.
        classes: whether targets are units of classes.
        now: whether answers are those of now, where the model is made of sums; else of everything ever learned.
        private: no value of a row stays: no new categories, no sums of rows as they are, no fingerprints in files.
        fingerprints: rows whose fingerprints are kept, the newest ones, where answers are those of now.
        later: warnings wait until they are asked for (`news`), when rows are learned that were accepted before.
    """

    def __init__(
        self,
        scales: Scales,
        model: AnyModel,
        seed: int,
        classes: bool,
        *,
        now: bool = False,
        private: bool = False,
        fingerprints: int = 0,
        later: bool = False,
    ) -> None:
        self.later = later
        self.scales, self.model, self.classes, self.private = scales, model, classes, private
        self.tracker = Tracker(scales, model, seed, classes, private, fingerprints) if now and model.sums else None
        self._asking, self._prepared = threading.Lock(), False
        self._key = secrets.token_hex(16) if private else ""  # of fingerprints; in no file
        self.events: list[DriftEvent] = []
        """Changes of the concept so far."""
        self._news: tuple[list[str], list[DriftEvent]] = ([], [])  # warnings and changes that nobody was told of
        self.novelty = Novelty(int(np.prod(scales.input_shape)), seed, turned=private)
        self.drift = Drift(len(scales.centre) if scales.shape is None else int(np.prod(scales.shape)))
        self.groups = Groups()
        self.forgotten: dict[int, int] = {}
        """How often rows were forgotten, by their fingerprints; empty if `private`."""
        self.rows = 0
        """Rows so far, those among them that are forgotten by now."""
        self.far = 0
        """Those of them whose targets were far out."""

    # -- snapshots --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Core[AnyModel] | None:
        """What answers as this one does now, whatever is learned meanwhile; None: the model has no snapshots.

        It is for novelty, answers and events alone. `prepare` comes before the first answer.
        """
        made, tracker = copy.copy(self), self.tracker
        if tracker is None or tracker.filter.alone or not self.classes:
            model = self.model.snapshot()
            if model is None:
                return None
            made.model = model
        # else the filter has all that answers are made of, and of the model only its map is used, which never changes
        made.novelty = copy.copy(self.novelty)
        made.tracker = None if tracker is None else tracker.snapshot(made.model)
        made._asking, made._prepared = threading.Lock(), made.model is self.model
        return made

    def prepare(self) -> None:
        """Compute what all answers of a snapshot are made of, in the first thread that asks."""
        if not self._prepared:
            with self._asking:
                if not self._prepared:
                    self.model.prepare()
                    self._prepared = True

    @property
    def experts(self) -> dict[int, int]:
        """Rows that each expert has learned, by its number: one for each concept, or as the method has them."""
        if self.tracker is not None:
            found = self.tracker.filter
            return {number: round(model.count) for number, model in zip(found.numbers, found.experts, strict=True)}
        log = getattr(getattr(self.model, "learner", None), "expert_log", None)
        return {} if log is None else {record.expert: record.examples for record in log.records}

    # -- learning ---------------------------------------------------------------------------------------------------------

    def news(self) -> tuple[list[str], list[DriftEvent]]:
        """Warnings, and changes of the concept, since this was last asked."""
        news, self._news = self._news, ([], [])
        return news

    def learn(
        self,
        table: Table,
        targets: Tensor,
        group: Key | None,
        course: Course,
        measured: bool = False,
        weights: Tensor | None = None,
        weighed: bool = False,
        names: Sequence[Any] | None = None,
    ) -> None:
        """Learn from rows.

        Args:
            table: rows.
            targets: units of classes, or numbers ``[n, C]``.
            group: that they come in.
            course: how they are gone through.
            measured: whether the scales are theirs.
            weights: what they count as ``[n]``.
            weighed: whether the filter knows their targets already.
            names: labels of the units.
        """
        scales = self.scales if self.private else self.scales.grown(table)
        encoded, sizes = scales.encode(table)
        if group is not None:
            _ = self.model.width  # a model without sums refuses groups before it has learned
        far = self.model.far_targets(targets)
        self._warn(_of_far(self.far, far, len(targets)), None if measured else (sizes, scales.number_names))
        known = self.tracker is not None and self.tracker.ledger.limit > 0
        marks = self._marks(table, targets, names) if known or self.forgotten else None
        for rows in self._parts(len(table), course):
            x, wanted, times = encoded[rows], targets[rows], None if weights is None else weights[rows]
            if self.tracker is None:
                self.model.learn(x, wanted, times)
            else:
                own = self.tracker.features(x)
                indicators = self.model.indicators(wanted)
                changes = self.tracker.learn(
                    x,
                    own,
                    indicators,
                    course.ordered,
                    times,
                    weighed=weighed,
                    marks=marks[rows if isinstance(rows, slice) else rows.numpy()] if known and marks is not None else None,
                    group=group,
                )
                if changes:
                    self.events = [*self.events, *changes]
                    self._news[1].extend(changes)
                self.model.learn_features(own, wanted, times)
            self.novelty.add(x, self._units(wanted), times)
            if group is not None:
                self.groups.add(group, self.model.features(x), self.novelty.reduce(x), self.model.indicators(wanted), times)
        self.scales, self.rows, self.far = scales, self.rows + len(table), self.far + far
        if self.forgotten and marks is not None:
            for mark in marks.tolist():
                self.forgotten.pop(mark, None)

    def _warn(self, targets: str | None, sizes: tuple[NDArray[np.float64], tuple[str, ...] | None] | None) -> None:
        """Warn of odd targets and of columns that have left their scales, before anything is learned, or leave it to `news`.

        A warning that is turned into an error refuses the rows: then nothing has changed.
        """
        before = copy.copy(self.drift)
        words = [targets, None if sizes is None else self.drift.note(*sizes)]
        found = [each for each in words if each is not None]
        if self.later:
            self._news[0].extend(found)
            return
        try:
            for each in found:
                warn_user(each, ScaleWarning)
        except BaseException:
            self.drift = before
            raise

    def _marks(self, table: Table, targets: Tensor, names: Sequence[Any] | None) -> NDArray[np.int64]:
        return fingerprints(table, targets, names, self._key)

    def _parts(self, count: int, course: Course) -> Sequence[Tensor | slice]:
        if course.epochs == 1:
            return [slice(first, first + course.batch) for first in range(0, count, course.batch)]
        random = torch.Generator().manual_seed(course.seed)
        orders = [torch.randperm(count, generator=random) for _ in range(course.epochs)]
        return [part for order in orders for part in order.split(course.batch)]

    def _units(self, targets: Tensor) -> Tensor:
        return targets if self.classes else torch.zeros(len(targets), dtype=torch.long)

    # -- forgetting -------------------------------------------------------------------------------------------------------

    def forget(
        self,
        table: Table,
        targets: Tensor,
        group: Key | None,
        twice: bool,
        weights: Tensor | None = None,
        names: Sequence[Any] | None = None,
    ) -> None:
        """Unlearn rows; `InputError`, and nothing has changed, if they cannot all have been learned."""
        marks = self._marks(table, targets, names)
        again = [place for place, mark in enumerate(marks.tolist()) if mark in self.forgotten]
        if again and not twice:
            raise InputError(
                f"{len(again)} of these rows are forgotten already (the first is row {again[0]}): if equal rows were learned "
                "several times, forget them in one call or say twice=True"
            )
        count, whole = len(table) if weights is None else float(weights.sum()), float(self.novelty.count.sum())
        if group is None and self.groups.parts and count - (whole - self.groups.count) > NOTHING * whole:
            raise InputError("these rows were learned in groups: name the group in forget(X, y, group=...), or use forget_group")
        found = None if self.tracker is None else self._find(self.tracker, marks, weights, group)
        x, _ = self.scales.encode(table)
        before = copy.copy(self.groups)
        if group is not None:
            before.parts = dict(self.groups.parts)
            before.remove(group, self.model.features(x), self.novelty.reduce(x), self.model.indicators(targets), weights)
        units = self._units(targets)
        self.novelty.check_removal(units, weights)
        rows = float(self.model.counts.sum())
        self.model.remove(x, targets, weights)
        self.novelty.remove(x, units, weights)
        self.groups = before
        if self.tracker is not None and found is not None and self._anything_left():
            left = float(self.model.counts.sum()) / rows
            self.tracker.forget(x, self.model.features(x), self.model.indicators(targets), found, group, left)
        for mark in () if self.private else marks.tolist():
            self.forgotten[mark] = self.forgotten.get(mark, 0) + 1

    def remember(self, rows: int) -> None:
        """Keep fingerprints of so many rows from now on, the newest ones."""
        if self.tracker is not None:
            self.tracker.ledger.keep(rows, self.tracker.filter.history)

    def _find(self, tracker: Tracker, marks: NDArray[np.int64], weights: Tensor | None, group: Key | None) -> Found:
        """When rows were learned; `InputError` if it is sure that they were not."""
        found = tracker.ledger.find(marks, None if weights is None else weights.numpy(), group)
        lost = np.flatnonzero(found.unknown)
        if group is None and found.elsewhere is not None:
            raise InputError(
                f"row {lost[0]} was learned in group {found.elsewhere!r}: name it in forget(X, y, group=...), or use forget_group"
            )
        if not len(lost) or not tracker.ledger.complete:
            return found
        raise InputError(
            f"cannot forget these rows: {len(lost)} of them (the first is row {lost[0]}) were not learned as they are here, or "
            "are forgotten already. Give values and labels exactly as they were learned; after set_params(fingerprints=0) values "
            "that are only nearly the same will do, and what is known of concepts begins anew"
        )

    def _anything_left(self) -> bool:
        """Tidy up what rows have left that are unlearned; whether there are others."""
        gone = self.model.counts == 0
        self.novelty.blank(gone)
        if bool(gone.all()) and self.tracker is not None:
            self.tracker.clear()
            self.events, self.rows = [], 0
        return not bool(gone.all())

    def forget_group(self, group: Key) -> None:
        """Unlearn a group by its sums."""
        part = self.groups.sums(group, self.model.width, self.novelty.size, self.model.outputs)
        rows = float(self.model.counts.sum())
        try:
            self.model.subtract(part)
        except InputError as error:
            raise InputError(f"cannot forget group {group!r}: rows of it are forgotten already ({error})") from None
        if self.classes:
            room = len(self.novelty.count)
            self.novelty.subtract(part.targets[:room], part.by_target[:room], part.square)
        else:
            self.novelty.subtract(torch.tensor([part.count], dtype=torch.float64), part.total, part.square)
        del self.groups.parts[group]
        if self._anything_left() and self.tracker is not None:
            self.tracker.forget_group(group, float(self.model.counts.sum()) / rows)

    def absorb(self, other: Core[AnyModel], classes: list[int], targets: list[int]) -> None:
        """Add what goes with a model that was merged into this one's.

        Args:
            other: is merged.
            classes: the numbers here of the classes of its novelty.
            targets: the numbers here of its targets.
        """
        self.novelty.merge(other.novelty, classes)
        self.drift.warned = self.drift.warned or other.drift.warned
        self.rows, self.far = self.rows + other.rows, self.far + other.far
        if self.tracker is not None and other.tracker is not None:
            self.tracker.merge(other.tracker, targets)
        if other.groups.parts:
            self.groups.merge(other.groups, self.model.width + self.novelty.size, targets, self.model.outputs)
        for mark, count in other.forgotten.items():
            self.forgotten[mark] = self.forgotten.get(mark, 0) + count

    # -- files ------------------------------------------------------------------------------------------------------------

    def state_dict(self, file: bool = False) -> State:
        """All of it but the model; `file`: for one, which holds nothing of single rows of a private stream."""
        return {
            "scales": self.scales.state_dict(),
            "novelty": self.novelty.state_dict(),
            "drift": self.drift.state_dict(),
            "groups": self.groups.state_dict(),
            "forgotten": [[mark, count] for mark, count in self.forgotten.items()],
            "tracker": None if self.tracker is None else self.tracker.state_dict(file),
            "events": [[event.row, event.expert, event.known, list(event.columns)] for event in self.events],
            "key": "" if file else self._key,
            "rows": self.rows,
            "far": self.far,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, but for scales, which the constructor takes."""
        self.novelty.load_state_dict(state["novelty"])
        self.drift.load_state_dict(state["drift"])
        self.groups.load_state_dict(state["groups"], self.novelty.size)
        self.forgotten = {int(mark): int(count) for mark, count in state["forgotten"]}
        self.events = [DriftEvent(int(row), int(expert), bool(known), tuple(c)) for row, expert, known, c in state["events"]]
        self._key = str(state["key"]) or self._key
        self.rows, self.far = int(state["rows"]), int(state["far"])
        if self.tracker is not None:
            self.tracker.load_state_dict(state["tracker"])


def _of_far(before: int, far: int, rows: int) -> str | None:
    """A warning of targets that are far out, for the first of them, the tenth, the hundredth and so on."""
    if not far or (before and len(str(before + far)) == len(str(before))):
        return None
    also = f", and {before} before them," if before else ""
    return (
        f"{far} of {rows} targets{also} lie more than {FAR_TARGET:.0f} spreads from the first rows' median "
        "and count as if they lay there: check them, or transform the targets (logarithm, difference)"
    )


def fingerprints(table: Table, targets: Tensor, names: Sequence[Any] | None = None, key: str = "") -> NDArray[np.int64]:
    """A number of 63 bits for every row with its target, from which the row cannot be computed.

    `names` are labels of the units that are targets: sites number them differently. Without the `key` nobody can make the same
    numbers from the same rows.
    """
    values = targets.double().reshape(len(table), -1)
    # one bit pattern for zero, and one for what is missing
    numbers = np.concatenate([np.where(np.isnan(table.numbers), np.nan, table.numbers) + 0.0, values.numpy() + 0.0], 1)
    whole = numbers.tobytes()
    width = numbers.shape[1] * numbers.itemsize
    labels = [b""] * len(table) if names is None else [repr(names[unit]).encode() for unit in targets.tolist()]
    if names is not None:
        width -= numbers.itemsize
    secret, pixels = bytes.fromhex(key), None if table.pictures is None else table.pictures.numpy()
    marks = np.empty(len(table), dtype=np.int64)
    for row in range(len(table)):
        first = row * numbers.shape[1] * numbers.itemsize
        digest = hashlib.blake2b(whole[first : first + width], digest_size=8, key=secret)
        digest.update(labels[row])
        if table.categories:
            digest.update(repr([column[row] for column in table.categories]).encode())
        if pixels is not None:
            digest.update(pixels[row].tobytes())
        marks[row] = int.from_bytes(digest.digest(), "big") >> 1
    return marks
