"""Which runs of reinforcement learning are compared: those on the same chain of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hvcl.report.reinforcement.run import ReinforcementRun
from hvcl.report.words import distinct
from hvcl.rl.scores import Reference


@dataclass(frozen=True)
class Entry:
    """A run in its group, with a label that is unique there."""

    run: ReinforcementRun
    label: str


@dataclass(frozen=True)
class Group:
    """The runs on one chain of tasks, in the order given."""

    sequence: str
    task_names: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def references(self) -> tuple[Reference, ...] | None:
        """What returns are scaled with, which is the chain's and so the same for all; None if no run says."""
        return next((entry.run.references for entry in self.entries if entry.run.references), None)


def group_runs(runs: Sequence[ReinforcementRun]) -> list[Group]:
    """Sort runs into groups that may be compared, in the order in which the chains come."""
    members: dict[tuple[str, tuple[str, ...]], list[ReinforcementRun]] = {}
    for run in runs:
        members.setdefault((run.sequence, run.task_names), []).append(run)
    groups = []
    for key, together in members.items():
        counts = Counter(run.method for run in together)
        labels = [f"{run.method} ({run.folder.name})" if counts[run.method] > 1 else run.method for run in together]
        groups.append(Group(*key, tuple(map(Entry, together, distinct(labels)))))
    return groups
