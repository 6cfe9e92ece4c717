"""Fingerprints of the rows that the filter over concepts has learned: when each came, so that it can be taken out again.

A row costs 24 bytes in a file, and up to twice that in memory: 8 of a hash of the row with its target, its stamp, what it counts
as and the group that it came in. Beyond `limit` rows the oldest go. From a fingerprint its row cannot be computed; but whoever
has the file can test with it whether a row that he guesses was learned, and rows that can be enumerated are found in this way. So
those of a private stream are made with a key that is in no file, and are in none either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hvcl.core.errors import RunError
from hvcl.core.state import State
from hvcl.estimators.groups import Key
from hvcl.estimators.history import NOWHERE, OPEN, History

NO_GROUP = -1

NOTHING = 1e-6
"""Weight, relative to what a row counts as, that is nothing: it is kept in single precision."""

ROW = np.dtype([("mark", np.int64), ("stamp", np.float64), ("weight", np.float32), ("group", np.int32)])


@dataclass(frozen=True)
class Found:
    """When rows that are asked for were learned: one entry for each, or for each part of one that was learned in parts."""

    rows: NDArray[np.int64]
    """The row of each entry ``[k]``."""
    places: NDArray[np.int64]
    """Its place in the ledger ``[k]``."""
    stamps: NDArray[np.float64]
    """``[k]``."""
    counts: NDArray[np.float64]
    """What it counts as ``[k]``."""
    unknown: NDArray[np.float64]
    """What is not found of every row ``[n]``."""
    elsewhere: Key | None
    """Another group in which one of these was learned."""


class Ledger:
    """Rows with their stamps, in the order in which they came.

    Args:
        limit: rows that are kept, the newest ones.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        """As if no row had come."""
        self.keys: dict[Key, int] = {}
        """Groups and their numbers."""
        self.lost = NOWHERE
        """When the newest row was learned that is not here any more."""
        self._open = 0  # rows at the end whose block is not complete
        self._replace(np.zeros(0, ROW))

    def _replace(self, rows: NDArray[np.void]) -> None:
        self._room, self._first, self._last = rows, 0, len(rows)

    @property
    def complete(self) -> bool:
        """Whether all rows that models may hold are here."""
        return self.lost == NOWHERE

    @property
    def rows(self) -> NDArray[np.void]:
        """All that are kept."""
        return self._room[self._first : self._last]

    # -- rows come --------------------------------------------------------------------------------------------------------

    def add(
        self,
        marks: NDArray[np.int64],
        stamps: NDArray[np.float64],
        weights: NDArray[np.float64] | None,
        group: Key | None,
        history: History,
    ) -> None:
        """Rows with their stamps, and what they count as; None: one each."""
        new = np.empty(len(marks), ROW)
        new["mark"], new["stamp"], new["weight"] = marks, stamps, 1.0 if weights is None else weights
        new["group"] = NO_GROUP if group is None else self.keys.setdefault(group, len(self.keys))
        if self._last + len(new) > len(self._room):
            rows = self.rows
            self._replace(np.empty(max(2 * (len(rows) + len(new)), 256), ROW))
            self._room[: len(rows)], self._last = rows, len(rows)
        self._room[self._last : self._last + len(new)] = new
        self._last += len(new)
        self._open += int((stamps == OPEN).sum())
        self._shorten(history)

    def keep(self, limit: int, history: History) -> None:
        """Keep so many rows from now on."""
        self.limit = limit
        self._shorten(history)

    def _shorten(self, history: History) -> None:
        """The oldest rows go, if there are too many."""
        more = self._last - self._first - self.limit
        if more > 0:
            self.lost = max(self.lost, float(history.times(self.rows["stamp"][:more]).max()))
            self._first += more
            self._open = min(self._open, self.limit)

    def end(self, time: float) -> None:
        """The block is complete: this is the stamp of its rows."""
        self._room["stamp"][self._last - self._open : self._last] = time
        self._open = 0
        self.lost = time if self.lost == OPEN else self.lost

    def scatter(self) -> None:
        """No model holds any row that has come."""
        self.rows["stamp"], self._open, self.lost = NOWHERE, 0, NOWHERE

    def scatter_open(self, time: float) -> None:
        """No model holds the rows of the block that is not complete."""
        self.end(NOWHERE)
        self.lost = time if self.lost == NOWHERE else self.lost

    def merge(self, other: Ledger, moved: tuple[float, float], calls: int, history: History) -> None:
        """Add another site's rows.

        Args:
            other: is added.
            moved: how far the times of each have moved.
            calls: number of calls that brought rows without an order here, before.
            history: of both.
        """
        parts = []
        numbers = {number: self.keys.setdefault(key, len(self.keys)) for key, number in other.keys.items()}
        for each, by, before in ((self, moved[0], 0), (other, moved[1], calls)):
            rows = each.rows.copy()
            stamps = rows["stamp"]
            rows["stamp"] = np.where(stamps == OPEN, NOWHERE, np.where(stamps < 0, stamps - before, stamps + by))
            parts.append(rows)
        theirs = parts[1]["group"]
        parts[1]["group"] = [numbers.get(number, NO_GROUP) for number in theirs.tolist()]
        rows = np.concatenate(parts)
        lost = [NOWHERE if each.lost == OPEN else each.lost + by for each, by in zip((self, other), moved, strict=True)]
        self._replace(rows[np.argsort(history.times(rows["stamp"]), kind="stable")])
        self._open, self.lost = 0, max(lost)
        self._shorten(history)

    # -- rows go ----------------------------------------------------------------------------------------------------------

    def find(self, marks: NDArray[np.int64], weights: NDArray[np.float64] | None, group: Key | None) -> Found:
        """When rows were learned; of equal ones the newest."""
        known = self.rows
        here = np.flatnonzero(np.isin(known["mark"], marks))
        places: dict[int, list[int]] = {}
        for place in here.tolist():
            places.setdefault(int(known["mark"][place]), []).append(place)
        left = dict(zip(here.tolist(), known["weight"][here].astype(np.float64).tolist(), strict=True))
        wanted = np.ones(len(marks)) if weights is None else weights
        number = NO_GROUP if group is None else self.keys.get(group, NO_GROUP - 1)
        unknown, entries, others = np.zeros(len(marks)), list[tuple[int, int, float]](), set[int]()
        for row, (mark, weight) in enumerate(zip(marks.tolist(), wanted.tolist(), strict=True)):
            rest = weight
            mine = [place for place in places.get(mark, []) if known["group"][place] == number]
            for place in reversed(mine):
                taken = min(rest, left[place])
                if taken > NOTHING * weight:
                    entries.append((row, place, rest if rest - taken <= NOTHING * weight else taken))
                    left[place] -= taken
                    rest -= taken
            if rest > NOTHING * weight:
                unknown[row] = rest
                others |= {int(known["group"][place]) for place in places.get(mark, [])} - {number}
        at = np.array([place for _, place, _ in entries], dtype=np.int64)
        return Found(
            np.array([row for row, _, _ in entries], dtype=np.int64),
            at,
            known["stamp"][at].copy(),
            np.array([count for _, _, count in entries], dtype=np.float64),
            unknown,
            next((key for key, own in self.keys.items() if own in others), None),
        )

    def take(self, found: Found) -> None:
        """These rows are taken out."""
        rows = self.rows.copy()
        np.subtract.at(rows["weight"], found.places, found.counts.astype(np.float32))
        gone = np.zeros(len(rows), dtype=bool)
        gone[found.places] = rows["weight"][found.places] <= NOTHING * self.rows["weight"][found.places]
        self._keep(rows, ~gone)

    def take_group(self, group: Key) -> None:
        """All rows of a group are taken out."""
        if group in self.keys:
            self._keep(self.rows, self.rows["group"] != self.keys[group])

    def _keep(self, rows: NDArray[np.void], kept: NDArray[np.bool_]) -> None:
        waiting = int(kept[len(kept) - self._open :].sum()) if self._open else 0
        self._replace(rows[kept])
        self._open = waiting
        # a name without rows is gone
        used, places = np.unique(self.rows["group"], return_inverse=True)
        names = {number: key for key, number in self.keys.items()}
        numbers = {number: place for place, number in enumerate(number for number in used.tolist() if number != NO_GROUP)}
        self.keys = {names[number]: place for number, place in numbers.items()}
        self.rows["group"] = np.array([numbers.get(number, NO_GROUP) for number in used.tolist()], dtype=np.int32)[places]

    # -- files ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Fingerprints and all that goes with them."""
        columns = {name: torch.from_numpy(np.ascontiguousarray(self.rows[name])) for name in ROW.names or ()}
        return {**columns, "keys": list(self.keys), "lost": torch.tensor(self.lost, dtype=torch.float64)}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if its parts do not fit each other."""
        columns = {name: state[name].numpy() for name in ROW.names or ()}
        rows = np.empty(len(columns["mark"]), ROW)
        for name, values in columns.items():
            if values.shape != rows.shape or values.dtype != ROW[name]:
                raise RunError(f"the saved fingerprints do not fit: {name} of shape {values.shape}, expected {rows.shape}")
            rows[name] = values
        self.keys = {key: number for number, key in enumerate(state["keys"])}
        self.lost = float(state["lost"])
        self._replace(rows)
        self._open = int((rows["stamp"] == OPEN).sum())
