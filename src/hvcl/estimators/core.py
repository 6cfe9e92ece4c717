"""What an estimator has learned: scales, model, novelty, groups, and what was forgotten."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.state import State
from hvcl.estimators.groups import Groups, Key
from hvcl.estimators.models import Model
from hvcl.estimators.novelty import Novelty
from hvcl.estimators.now import DriftEvent, Tracker
from hvcl.estimators.scales import Drift, Scales
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
        private: no value of a row stays: no new categories, no fingerprints, no sums of rows as they are.
    """

    def __init__(
        self, scales: Scales, model: AnyModel, seed: int, classes: bool, *, now: bool = False, private: bool = False
    ) -> None:
        self.scales, self.model, self.classes, self.private = scales, model, classes, private
        self.tracker = Tracker(scales, model, seed, classes, private) if now and model.sums else None
        self.events: list[DriftEvent] = []
        """Changes of the concept so far."""
        self.novelty = Novelty(int(np.prod(scales.input_shape)), seed, turned=private)
        self.drift = Drift(len(scales.centre) if scales.shape is None else int(np.prod(scales.shape)))
        self.groups = Groups()
        self.forgotten: dict[int, int] = {}
        """How often rows were forgotten, by their fingerprints; empty if `private`."""

    # -- learning ---------------------------------------------------------------------------------------------------------

    def learn(
        self,
        table: Table,
        targets: Tensor,
        group: Key | None,
        course: Course,
        measured: bool = False,
        weights: Tensor | None = None,
        weighed: bool = False,
    ) -> None:
        """Learn from rows with weights; `measured`: the scales are theirs; `weighed`: the filter knows their targets already."""
        scales = self.scales if self.private else self.scales.grown(table)
        encoded, sizes = scales.encode(table)
        if group is not None:
            _ = self.model.width  # a model without sums refuses groups before it has learned
        if not measured:
            self.drift.note(sizes, scales.number_names)
        self.model.check_targets(targets)
        for rows in self._parts(len(table), course):
            x, wanted, times = encoded[rows], targets[rows], None if weights is None else weights[rows]
            if self.tracker is None:
                self.model.learn(x, wanted, times)
            else:
                own = self.tracker.features(x)
                indicators = self.model.indicators(wanted)
                self.events += self.tracker.learn(x, own, indicators, course.ordered, times, weighed=weighed)
                self.model.learn_features(own, wanted, times)
            self.novelty.add(x, self._units(wanted), times)
            if group is not None:
                self.groups.add(group, self.model.features(x), self.novelty.reduce(x), self.model.indicators(wanted), times)
        self.scales = scales
        if self.forgotten:
            for mark in fingerprints(table, targets):
                self.forgotten.pop(mark, None)

    def _parts(self, count: int, course: Course) -> Sequence[Tensor | slice]:
        if course.epochs == 1:
            return [slice(first, first + course.batch) for first in range(0, count, course.batch)]
        random = torch.Generator().manual_seed(course.seed)
        orders = [torch.randperm(count, generator=random) for _ in range(course.epochs)]
        return [part for order in orders for part in order.split(course.batch)]

    def _units(self, targets: Tensor) -> Tensor:
        return targets if self.classes else torch.zeros(len(targets), dtype=torch.long)

    # -- forgetting -------------------------------------------------------------------------------------------------------

    def forget(self, table: Table, targets: Tensor, group: Key | None, twice: bool, weights: Tensor | None = None) -> None:
        """Unlearn rows; `InputError`, and nothing has changed, if they cannot all have been learned."""
        marks = [] if self.private else fingerprints(table, targets)
        again = [place for place, mark in enumerate(marks) if mark in self.forgotten]
        if again and not twice:
            raise InputError(
                f"{len(again)} of these rows are forgotten already (the first is row {again[0]}): if equal rows were learned "
                "several times, forget them in one call or say twice=True"
            )
        count, whole = len(table) if weights is None else float(weights.sum()), float(self.novelty.count.sum())
        if group is None and self.groups.parts and count - (whole - self.groups.count) > NOTHING * whole:
            raise InputError("these rows were learned in groups: name the group in forget(X, y, group=...), or use forget_group")
        x, _ = self.scales.encode(table)
        before = copy.copy(self.groups)
        if group is not None:
            before.parts = dict(self.groups.parts)
            before.remove(group, self.model.features(x), self.novelty.reduce(x), self.model.indicators(targets), weights)
        units = self._units(targets)
        self.novelty.check_removal(units, weights)
        self.model.remove(x, targets, weights)
        self.novelty.remove(x, units, weights)
        self.novelty.blank(self.model.counts == 0)
        if self.tracker is not None:
            self.tracker.restart()
        self.groups = before
        for mark in marks:
            self.forgotten[mark] = self.forgotten.get(mark, 0) + 1

    def forget_group(self, group: Key) -> None:
        """Unlearn a group by its sums."""
        part = self.groups.sums(group, self.model.width, self.novelty.size, self.model.outputs)
        try:
            self.model.subtract(part)
        except InputError as error:
            raise InputError(f"cannot forget group {group!r}: rows of it are forgotten already ({error})") from None
        if self.classes:
            room = len(self.novelty.count)
            self.novelty.subtract(part.targets[:room], part.by_target[:room], part.square)
        else:
            self.novelty.subtract(torch.tensor([part.count], dtype=torch.float64), part.total, part.square)
        self.novelty.blank(self.model.counts == 0)
        del self.groups.parts[group]
        if self.tracker is not None:
            self.tracker.restart()

    def absorb(self, other: Core[AnyModel], classes: list[int], targets: list[int]) -> None:
        """Add what goes with a model that was merged into this one's.

        Args:
            other: is merged.
            classes: the numbers here of the classes of its novelty.
            targets: the numbers here of its targets.
        """
        self.novelty.merge(other.novelty, classes)
        self.drift.warned = self.drift.warned or other.drift.warned
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
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, but for scales, which the constructor takes."""
        self.novelty.load_state_dict(state["novelty"])
        self.drift.load_state_dict(state["drift"])
        self.groups.load_state_dict(state["groups"], self.novelty.size)
        self.forgotten = {int(mark): int(count) for mark, count in state["forgotten"]}
        self.events = [DriftEvent(int(row), int(expert), bool(known), tuple(c)) for row, expert, known, c in state["events"]]
        if self.tracker is not None:
            self.tracker.load_state_dict(state["tracker"])


def fingerprints(table: Table, targets: Tensor) -> list[int]:
    """A number of 63 bits for every row with its target, from which the row cannot be read."""
    values = targets.double().reshape(len(table), -1).numpy()
    pixels = None if table.pictures is None else table.pictures.numpy()
    marks = []
    for row in range(len(table)):
        digest = hashlib.sha256(table.numbers[row].tobytes())
        digest.update(values[row].tobytes())
        digest.update(repr([column[row] for column in table.categories]).encode())
        if pixels is not None:
            digest.update(pixels[row].tobytes())
        marks.append(int.from_bytes(digest.digest()[:8], "big") >> 1)
    return marks
