"""What the folder of a run of reinforcement learning holds, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hvcl.report.fields import Vector
from hvcl.rl.scores import Point, Reference

Score = Literal["cumulative_reward", "cumulative_above_random", "average_performance", "forgetting"]
"""A score of every finished seed, by its name in `result.json`; what it means is in `hvcl.rl.scores`."""
SCORES: tuple[Score, ...] = get_args(Score)


@dataclass(frozen=True)
class Evaluation:
    """What the agent reached at one time of its training."""

    returns: Point
    """Mean over episodes, of each task seen so far."""
    usage: tuple[Mapping[str, Vector], ...]
    """For each task, by layer: the share of its observations that goes to each expert."""


@dataclass(frozen=True)
class Result:
    """What one seed came to: `result.json`."""

    scores: Mapping[Score, float]
    """A score that cannot be given (of an agent that learns all tasks at once, say) is NaN."""
    references: tuple[Reference, ...]
    returns_when_learned: tuple[float | None, ...]
    returns_at_the_end: Vector
    learning_areas: Vector | None
    curve: tuple[Point, ...]


@dataclass(frozen=True)
class Seed:
    """One seed of a run; `result` is None while it is unfinished."""

    seed: int
    evaluations: tuple[Evaluation, ...]
    result: Result | None


@dataclass(frozen=True)
class ReinforcementRun:
    """One method on one chain of tasks, over its seeds."""

    folder: Path
    method: str
    sequence: str
    task_names: tuple[str, ...]
    references: tuple[Reference, ...] | None
    """What the returns of each task are scaled with; None if the folder does not say."""
    settings: Mapping[str, object]
    seeds: tuple[Seed, ...]
    """Every planned seed, in order, also those that have not begun."""

    @property
    def results(self) -> tuple[Result, ...]:
        """Those of the seeds that have finished."""
        return tuple(seed.result for seed in self.seeds if seed.result is not None)

    @property
    def logs(self) -> tuple[tuple[Evaluation, ...], ...]:
        """The evaluations of the seeds that have been evaluated at all, finished or not."""
        return tuple(seed.evaluations for seed in self.seeds if seed.evaluations)
