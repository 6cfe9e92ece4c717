"""What an estimator has learned: scales, model, novelty, groups, and what was forgotten."""

from __future__ import annotations

import copy
import hashlib
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
from hvcl.estimators.scales import Drift, Scales
from hvcl.estimators.tables import Table

AnyModel = TypeVar("AnyModel", bound=Model)

ROWS = 2048
"""Rows that are learned at once."""


@dataclass(frozen=True)
class Waiting:
    """Rows that are kept until there are enough of them to measure scales."""

    table: Table
    targets: Tensor
    group: Key | None


@dataclass(frozen=True)
class Course:
    """How rows are gone through."""

    batch: int = ROWS
    """Rows that are learned at once."""
    epochs: int = 1
    """Passes over them, each in a random order if there are several."""
    seed: int = 0
    """Of the orders."""


class Core(Generic[AnyModel]):
    """Scales, model and what goes with them, once the first rows are seen.

    Args:
        scales: of the first rows.
        model: learns from rows that are encoded by the scales.
        seed: of the novelty's projection.
        classes: whether targets are units of classes.
    """

    def __init__(self, scales: Scales, model: AnyModel, seed: int, classes: bool) -> None:
        self.scales, self.model, self.classes = scales, model, classes
        self.novelty = Novelty(int(np.prod(scales.input_shape)), seed)
        self.drift = Drift(len(scales.centre) if scales.shape is None else int(np.prod(scales.shape)))
        self.groups = Groups()
        self.forgotten: dict[int, int] = {}
        """How often rows were forgotten, by their fingerprints."""

    # -- learning ---------------------------------------------------------------------------------------------------------

    def learn(self, table: Table, targets: Tensor, group: Key | None, course: Course, measured: bool = False) -> None:
        """Learn from rows; `measured`: the scales are theirs."""
        scales = self.scales.grown(table)
        encoded, sizes = scales.encode(table)
        if group is not None:
            _ = self.model.width  # a model without sums refuses groups before it has learned
        if not measured:
            self.drift.note(sizes, scales.number_names)
        for rows in self._parts(len(table), course):
            x, wanted = encoded[rows], targets[rows]
            self.model.learn(x, wanted)
            self.novelty.add(x, self._units(wanted))
            if group is not None:
                self.groups.add(group, self.model.features(x), self.novelty.reduce(x), self.model.indicators(wanted))
        self.scales = scales
        if self.forgotten:
            for mark in fingerprints(table, targets):
                self.forgotten.pop(mark, None)

    def _parts(self, count: int, course: Course) -> list[Tensor]:
        random = torch.Generator().manual_seed(course.seed)
        shuffled = course.epochs > 1
        orders = [torch.randperm(count, generator=random) if shuffled else torch.arange(count) for _ in range(course.epochs)]
        return [part for order in orders for part in order.split(course.batch)]

    def _units(self, targets: Tensor) -> Tensor:
        return targets if self.classes else torch.zeros(len(targets), dtype=torch.long)

    # -- forgetting -------------------------------------------------------------------------------------------------------

    def forget(self, table: Table, targets: Tensor, group: Key | None, twice: bool) -> None:
        """Unlearn rows; `InputError`, and nothing has changed, if they cannot all have been learned."""
        marks = fingerprints(table, targets)
        again = [place for place, mark in enumerate(marks) if mark in self.forgotten]
        if again and not twice:
            raise InputError(
                f"{len(again)} of these rows are forgotten already (the first is row {again[0]}): if equal rows were learned "
                "several times, forget them in one call or say twice=True"
            )
        if group is None and self.groups.factors and len(table) > self._ungrouped():
            raise InputError("these rows were learned in groups: name the group in forget(X, y, group=...), or use forget_group")
        x, _ = self.scales.encode(table)
        before = copy.copy(self.groups)
        if group is not None:
            before.factors = dict(self.groups.factors)
            before.remove(group, self.model.features(x), self.novelty.reduce(x), self.model.indicators(targets))
        units = self._units(targets)
        if bool((torch.bincount(units, minlength=len(self.novelty.count)) > self.novelty.count).any()):
            raise InputError("cannot forget these rows: of some class there are more than were learned")
        self.model.remove(x, targets)
        self.novelty.add(x, units, -1)
        self.groups = before
        for mark in marks:
            self.forgotten[mark] = self.forgotten.get(mark, 0) + 1

    def _ungrouped(self) -> float:
        """Rows that were learned outside any group."""
        grouped = sum(float(factor[:, 0].double().square().sum()) for factor in self.groups.factors.values())
        return float(self.novelty.count.sum()) - grouped + 1e-3

    def forget_group(self, group: Key) -> None:
        """Unlearn a group by its sums."""
        part = self.groups.sums(group, self.model.width, self.novelty.size, self.model.outputs)
        self.model.subtract(part)
        if self.classes:
            counts = part.head["target_sum"].round()
            room = len(self.novelty.count)
            self.novelty.subtract(counts[:room], part.by_target[:room], part.square)
        else:
            self.novelty.subtract(torch.tensor([float(part.head["count"])], dtype=torch.float64), part.total, part.square)
        del self.groups.factors[group]

    def absorb(self, other: Core[AnyModel], classes: list[int], targets: list[int]) -> None:
        """Add what goes with a model that was merged into this one's.

        Args:
            other: is merged.
            classes: the numbers here of the classes of its novelty.
            targets: the numbers here of its targets.
        """
        self.novelty.merge(other.novelty, classes)
        self.drift.warned = self.drift.warned or other.drift.warned
        if other.groups.factors:
            self.groups.merge(other.groups, 1 + self.model.width + self.novelty.size, targets, self.model.outputs)
        for mark, count in other.forgotten.items():
            self.forgotten[mark] = self.forgotten.get(mark, 0) + count

    # -- files ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """All of it but the model."""
        return {
            "scales": self.scales.state_dict(),
            "novelty": self.novelty.state_dict(),
            "drift": self.drift.state_dict(),
            "groups": self.groups.state_dict(),
            "forgotten": [[mark, count] for mark, count in self.forgotten.items()],
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, but for scales, which the constructor takes."""
        self.novelty.load_state_dict(state["novelty"])
        self.drift.load_state_dict(state["drift"])
        self.groups.load_state_dict(state["groups"], 1 + self.novelty.size)
        self.forgotten = {int(mark): int(count) for mark, count in state["forgotten"]}


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
