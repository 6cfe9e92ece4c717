"""The results table: scores over seeds, and the returns at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hvcl.report import words
from hvcl.report.reinforcement.groups import Group
from hvcl.report.reinforcement.run import SCORES
from hvcl.report.statistic import statistic
from hvcl.rl.scores import forward_transfer

FROM_SCRATCH = "reset"
"""The method that learns every task from scratch, which forward transfer is measured against."""


@dataclass(frozen=True)
class Row:
    """One run's row, as text."""

    label: str
    scores: tuple[tuple[str, str], ...]
    """The scores and forward transfer, each with a note that says when not all finished seeds gave it."""
    returns: tuple[str, ...]
    """Return at the end in each task."""
    seeds: str
    finished: bool


def rows(group: Group) -> list[Row]:
    """The rows of a group's table."""
    of_scratch = [result for entry in group.entries if entry.run.method == FROM_SCRATCH for result in entry.run.results]
    scratch = [result.learning_areas for result in of_scratch if result.learning_areas]
    found = []
    for label, run in ((entry.label, entry.run) for entry in group.entries):
        results, planned = run.results, len(run.seeds)
        scores = [_score([result.scores[name] for result in results]) for name in SCORES]
        compared = [] if run.method == FROM_SCRATCH else scratch
        transfer = _minus(transfer_of([result.learning_areas for result in results], compared)), ""
        returns = [
            _minus(over([result.returns_at_the_end[task] for result in results], 0)) for task in range(len(group.task_names))
        ]
        seeds = str(planned) if len(results) == planned else f"{len(results)} of {planned} seeds finished"
        found.append(Row(label, (*scores, transfer), tuple(returns), seeds, len(results) == planned))
    return found


def _score(values: Sequence[float]) -> tuple[str, str]:
    known = sum(map(math.isfinite, values))
    return _minus(over(values)), f"{known} of {len(values)} seeds" if 0 < known < len(values) else ""


def _minus(text: str) -> str:
    return text.replace("-", "−")


def over(values: Iterable[float | None], digits: int = 3) -> str:
    """Mean and standard deviation over seeds; a seed that does not have the value is left out."""
    found = statistic(math.nan if value is None else value for value in values)
    if found is None:
        return words.MISSING
    mean = f"{found.mean:.{digits}f}"
    return mean if found.sd is None else f"{mean} ± {found.sd:.{digits}f}"


def transfer_of(areas: Sequence[Sequence[float] | None], scratch: Sequence[Sequence[float]], digits: int = 3) -> str:
    """Forward transfer of runs with these learning areas against those of agents that learned every task from scratch."""
    if not scratch:
        return words.MISSING
    base = [math.fsum(values) / len(values) for values in zip(*scratch, strict=True)]
    return over([forward_transfer(area, base) for area in areas if area], digits)
