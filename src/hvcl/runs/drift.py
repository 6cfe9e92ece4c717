"""What an estimator says about drift, read in one place: its events, and how many rows each of its experts has learned."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hvcl.estimators import ScaleWarning


@dataclass(frozen=True)
class DriftEvent:
    """Something about the stream has changed."""

    row: int
    """Rows that had come when it was noticed."""
    text: str
    """What, in a sentence."""
    expert: int | None = None
    """The expert that was opened, from 1, if one was."""
    columns: tuple[str, ...] = ()
    """The columns that have moved, the one that moved most first, where that is known."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"row": self.row, "text": self.text, "expert": self.expert, "columns": list(self.columns)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DriftEvent:
        """From what `to_json` returned."""
        return cls(int(value["row"]), str(value["text"]), value["expert"], tuple(value["columns"]))


def drift_events(model: Any) -> list[dict[str, Any]]:
    """The drift that an estimator has recorded so far (`drift_`), as plain values; empty where it records none."""
    return [_plain(event) for event in getattr(model, "drift_", None) or ()]


def expert_rows(model: Any) -> dict[int, int]:
    """Rows that each expert of an estimator has learned, by its number; empty without experts, or before the first row."""
    found = getattr(model, "experts_", None)
    return {} if found is None else dict(found)


class DriftWatch:
    """Notices what is new in an estimator after it has learned.

    Args:
        model: an estimator.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._events = len(drift_events(model))
        self._experts = expert_rows(model)
        self._said: list[str] = []
        self.learned: dict[int, int] = {}
        """Rows that each expert learned between the last two calls of `news`."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, warnings of columns that leave their scales become news instead."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            if issubclass(warning.category, ScaleWarning):
                self._said.append(str(warning.message))
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def news(self, row: int, learned: Sequence[int] | None = None) -> list[DriftEvent]:
        """What has happened since the last call.

        Args:
            row: rows that have come.
            learned: numbers of those that the model has learned since then; None: each row was learned.
        """
        found = [DriftEvent(row, text) for text in self._said]
        self._said = []
        recorded, seen = drift_events(self.model), getattr(self.model, "n_samples_seen_", None)
        for event in recorded[self._events :]:
            # the model counts all rows that it has ever learned, which are not the rows that have come here
            after = 0 if seen is None or "row" not in event else seen - int(event["row"])
            found.append(_event(_before(row, after, learned), event))
        self._events = len(recorded)
        before, self._experts = self._experts, expert_rows(self.model)
        self.learned = {n: count - before.get(n, 0) for n, count in self._experts.items() if count > before.get(n, 0)}
        return found


def _before(row: int, after: int, learned: Sequence[int] | None) -> int:
    """The number of the row after which so many were learned. Rows that were kept for a while are learned with later ones."""
    if learned:
        row, after = (learned[-1 - after], 0) if after < len(learned) else (learned[0], after - len(learned) + 1)
    return max(row - after, 1)


def _event(row: int, event: Mapping[str, Any]) -> DriftEvent:
    expert = event.get("expert")
    columns = event.get("columns") or ()
    names = tuple(str(name) for name in (columns if not isinstance(columns, Mapping) else columns.keys()))
    words = "labels follow another rule now"
    if expert is not None:
        words += f": expert {expert + 1} " + ("knows it from before" if event.get("known") else "is opened")
    if names:
        words += f"; {', '.join(names[:5])}{' and others' if len(names) > 5 else ''} moved"
    return DriftEvent(row, words, None if expert is None else int(expert) + 1, names)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
