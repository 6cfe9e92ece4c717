"""What a reproduction is: one table or figure, from what to run to what follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from hvcl.core.errors import InputError, RunError
from hvcl.report.statistic import Statistic, statistic
from hvcl.reproduce.outcome import Outcome, Source
from hvcl.runs import Experiment

Budget = Literal["quick", "standard", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)

SEEDS: Mapping[Budget, int] = {"quick": 2, "standard": 3, "paper": 10}
"""Seeds of a reproduction, unless it or the command says otherwise."""


@dataclass(frozen=True)
class Scale:
    """How much is run: the budget, and the seeds."""

    budget: Budget
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise InputError(f"budget must be one of {', '.join(BUDGETS)}, got {self.budget!r}")
        if not self.seeds:
            raise InputError("at least one seed is needed")


@dataclass(frozen=True)
class Planned:
    """One run that a reproduction needs, under a key of its own."""

    key: str
    experiment: Experiment
    effort: float = 1.0
    """About how long it takes beside the others, for the estimate of what is left."""


@dataclass(frozen=True)
class Finished:
    """A run that is done."""

    planned: Planned
    results: Sequence[Mapping[str, Any]]
    """By seed."""
    facts: Mapping[str, Any]
    """What the run's configuration says besides: memory, names of the tasks."""
    path: Path | None
    """The run folder; None for results that were committed without it."""
    source: Source = "run"

    @property
    def folder(self) -> Path:
        """The run folder, which holds more than the results."""
        if self.path is None:
            raise RunError(f"there is no run folder of {self.planned.key}: committed results do not hold it")
        return self.path

    def over_seeds(self, key: str, factor: float = 1.0) -> Statistic | None:
        """A number of every seed's result, times `factor`; seeds that do not have it are left out."""
        return statistic(factor * float(result[key]) for result in self.results if result.get(key) is not None)


class Found(Mapping[str, Finished]):
    """The finished runs of a reproduction by key."""

    def __init__(self, scale: Scale, runs: Mapping[str, Finished]) -> None:
        self.scale, self._runs = scale, runs

    def __getitem__(self, key: str) -> Finished:
        return self._runs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


class Reproduction(Protocol):
    """A table or figure."""

    name: str
    title: str
    paper: str
    """Where it stands in the paper; empty for what goes beyond it."""
    seeds: Mapping[Budget, int]
    from_results: bool
    """Whether committed results are enough for it, without run folders."""

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """The runs that it needs."""

    def read(self, found: Found) -> Outcome:
        """What they come to."""
