"""The first rows of a stream, which are kept until there are enough of them to measure scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.state import State
from hvcl.estimators.core import fingerprints
from hvcl.estimators.groups import Key
from hvcl.estimators.tables import Table
from hvcl.posteriors.matrix_normal import NOTHING


@dataclass(frozen=True)
class Waiting:
    """Rows of one call."""

    table: Table
    targets: Tensor
    group: Key | None
    weights: Tensor | None = None
    """How many rows each one counts as, float64; None: one."""

    @property
    def times(self) -> Tensor:
        """The weights, also where they are one."""
        return torch.ones(len(self.table), dtype=torch.float64) if self.weights is None else self.weights

    @staticmethod
    def joined(parts: Sequence[Waiting]) -> Waiting:
        """The rows of several calls, one after another; the group is that of the first."""
        weighed = any(part.weights is not None for part in parts)
        return Waiting(
            Table.joined([part.table for part in parts]),
            torch.cat([part.targets for part in parts]),
            parts[0].group,
            torch.cat([part.times for part in parts]) if weighed else None,
        )

    def state_dict(self) -> State:
        """As plain values and tensors."""
        table = self.table
        return {
            "kinds": list(table.kinds),
            "numbers": torch.from_numpy(table.numbers.copy()),
            "categories": [column.tolist() for column in table.categories],
            "pictures": table.pictures,
            "targets": self.targets,
            "group": self.group,
            "weights": self.weights,
        }

    @classmethod
    def from_state(cls, state: State) -> Waiting:
        """From what `state_dict` returned."""
        categories = []
        for column in state["categories"]:
            texts = np.empty(len(column), dtype=object)
            texts[:] = column
            categories.append(texts)
        table = Table(tuple(state["kinds"]), state["numbers"].numpy().copy(), tuple(categories), state["pictures"])
        weights = state["weights"]
        return cls(table, state["targets"].clone(), state["group"], None if weights is None else weights.clone())


def by_group(waiting: Sequence[Waiting]) -> list[Waiting]:
    """Consecutive calls of the same group as one."""
    runs: list[list[Waiting]] = []
    for part in waiting:
        if runs and runs[-1][0].group == part.group:
            runs[-1].append(part)
        else:
            runs.append([part])
    return [Waiting.joined(run) for run in runs]


def without(waiting: Sequence[Waiting], gone: Waiting) -> list[Waiting]:
    """The rows that are left; those to go are looked for in their group, if they have one. `InputError` if some are not there."""
    left = [part.times.tolist() for part in waiting]
    places: dict[int, list[tuple[int, int]]] = {}
    for number, part in enumerate(waiting):
        if gone.group is None or part.group == gone.group:
            for row, mark in enumerate(fingerprints(part.table, part.targets)):
                places.setdefault(mark, []).append((number, row))
    for mark, weight in zip(fingerprints(gone.table, gone.targets), gone.times.tolist(), strict=True):
        found = places.get(mark, [])
        rest = weight
        for number, row in sorted(found, key=lambda place: abs(left[place[0]][place[1]] - weight)):
            taken = min(rest, left[number][row])
            left[number][row] -= taken
            rest -= taken
        if rest > NOTHING * weight:
            raise InputError("cannot forget these rows: they were not all learned")
    kept = []
    for part, times, before in zip(waiting, left, (part.times.tolist() for part in waiting), strict=True):
        rows = np.array([row for row, weight in enumerate(times) if weight > NOTHING * before[row]], dtype=np.int64)
        if not len(rows):
            continue
        chosen = torch.from_numpy(rows)
        weights = torch.tensor(times, dtype=torch.float64)[chosen]
        whole = part.weights is None and bool((weights == 1).all())
        kept.append(Waiting(part.table.take(rows), part.targets[chosen], part.group, None if whole else weights))
    return kept
