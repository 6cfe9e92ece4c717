"""A log of which expert of a growing learner opened when, and what it learned from: the drift report's record."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from torch import Tensor


@dataclass
class ExpertRecord:
    """What one expert has learned from."""

    expert: int
    """Its number, in the order of opening."""
    opened_step: int
    """The step (`observe` call, from 0) that gave it its first example."""
    opened_after: int
    """Examples that the learner had seen before that step."""
    examples: int = 0
    """Examples that it has learned from."""
    labels: dict[int, int] = field(default_factory=dict)
    """Examples per label."""
    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    """Runs of consecutive steps that it learned in: (first step, last step, examples)."""


class ExpertLog:
    """The records of all experts, updated with every batch."""

    def __init__(self) -> None:
        self.seen = 0
        """Examples so far, over all experts."""
        self._records: dict[int, ExpertRecord] = {}

    def record(self, step: int, experts: Tensor, y: Tensor) -> None:
        """Record that in step `step` the examples with labels `y` ``[B]`` were assigned to `experts` ``[B]``."""
        pairs = sorted(Counter(zip(experts.tolist(), y.tolist(), strict=True)).items())
        for expert, found in groupby(pairs, key=lambda pair: pair[0][0]):
            entry = self._records.setdefault(expert, ExpertRecord(expert, step, self.seen))
            mine = 0
            for (_, label), count in found:
                entry.labels[label] = entry.labels.get(label, 0) + count
                mine += count
            entry.examples += mine
            if entry.stretches and entry.stretches[-1][1] >= step - 1:
                first, _, before = entry.stretches[-1]
                entry.stretches[-1] = (first, step, before + mine)
            else:
                entry.stretches.append((step, step, mine))
        self.seen += len(experts)

    def remove(self, experts: Tensor, y: Tensor) -> None:
        """Record that examples of `experts` with labels `y` were unlearned; the stretches stay, as their steps are not known."""
        for expert, label in zip(experts.tolist(), y.tolist(), strict=True):
            entry = self._records[expert]
            entry.examples -= 1
            entry.labels[label] -= 1
            if not entry.labels[label]:
                del entry.labels[label]
        self.seen -= len(experts)

    def correct(self, expert: int, label: int, count: int) -> None:
        """Record that an expert has so many examples of a label now: where they have weights, rows do not say it."""
        entry = self._records[expert]
        more = count - entry.labels.pop(label, 0)
        if count:
            entry.labels[label] = count
        entry.examples += more
        self.seen += more

    def join(self, expert: int, into: int) -> None:
        """Record that an expert has become part of another one, which has learned what both have."""
        if expert not in self._records:
            return
        gone = self._records.pop(expert)
        mine = self._records.setdefault(into, ExpertRecord(into, gone.opened_step, gone.opened_after))
        mine.opened_step, mine.opened_after = min((e.opened_step, e.opened_after) for e in (mine, gone))
        mine.examples += gone.examples
        for label, count in gone.labels.items():
            mine.labels[label] = mine.labels.get(label, 0) + count
        mine.stretches = sorted([*mine.stretches, *gone.stretches])

    def merge(self, other: ExpertLog, first: int = 0) -> None:
        """Append another log as if its steps had followed this one's; its expert m becomes expert `first` + m."""
        steps = 1 + max((last for record in self.records for _, last, _ in record.stretches), default=-1)
        for record in other.records:
            mine = self._records.setdefault(
                record.expert + first,
                ExpertRecord(record.expert + first, record.opened_step + steps, record.opened_after + self.seen),
            )
            mine.examples += record.examples
            for label, count in record.labels.items():
                mine.labels[label] = mine.labels.get(label, 0) + count
            mine.stretches += [(begin + steps, end + steps, count) for begin, end, count in record.stretches]
        self.seen += other.seen

    @property
    def records(self) -> list[ExpertRecord]:
        """One record for each expert that has examples, in the order of their numbers."""
        return [self._records[expert] for expert in sorted(self._records)]

    def state_dict(self) -> dict[str, Any]:
        """The records as plain JSON values."""
        return {"seen": self.seen, "records": [asdict(record) for record in self.records]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.seen = int(state["seen"])
        self._records = {}
        for saved in state["records"]:
            expert, step, after, examples = (int(saved[n]) for n in ("expert", "opened_step", "opened_after", "examples"))
            record = ExpertRecord(expert, step, after, examples)
            # JSON knows neither integer keys nor tuples
            record.labels = {int(label): int(count) for label, count in saved["labels"].items()}
            record.stretches = [(int(first), int(last), int(count)) for first, last, count in saved["stretches"]]
            self._records[record.expert] = record
