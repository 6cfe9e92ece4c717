r"""What a run on a chain of tasks comes to.

- J(t) = sum_k R_k(t) / R_k(k): mean returns over those right after the task was learned (the paper's). Meaningless where a
  normaliser is near zero or negative: such tasks make it None, and raw returns always stand beside it.
- J(t) above random: the same of returns less those of random actions, sum_k p_k(t) / p_k(k), which means something wherever an
  agent has learned anything.
- Continual World's scores (Wolczyk et al., 2021), with performances p = (return - low) / (high - low) scaled by stated references
  in place of success rates. With p_i(t) the performance in task i at time t, T the end, and task i learned from t_{i-1} to t_i:
  average performance 1/N sum_i p_i(T); forgetting 1/N sum_i p_i(t_i) - p_i(T); forward transfer
  1/N sum_i (AUC_i - AUC_i^b) / (1 - AUC_i^b) with AUC_i the mean of p_i over the time of its learning, and AUC_i^b that of
  an agent that learned it from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence as Values
from dataclasses import dataclass

from hvcl.core.errors import InputError

NEGLIGIBLE = 0.02
"""A normaliser of J below this share of a task's range says nothing."""


@dataclass(frozen=True)
class Point:
    """The returns of the tasks seen so far (None for the others) at one time of a run."""

    time: float
    """In tasks: 1.5 is half-way through the second."""
    returns: tuple[float | None, ...]


@dataclass(frozen=True)
class Reference:
    """What a task's returns are scaled with."""

    low: float
    high: float

    def performance(self, value: float) -> float:
        """0 at `low`, 1 at `high`."""
        return (value - self.low) / (self.high - self.low)


def normalisers(points: Values[Point], tasks: int) -> list[float | None]:
    """R_k(k): each task's return at the end of its own time; None for tasks that are not learned yet."""
    ends = {point.time: point.returns for point in points}
    return [ends[task + 1][task] if task + 1 in ends else None for task in range(tasks)]


def cumulative(
    point: Point, references: Values[Reference], norms: Values[float | None], above_random: bool = False
) -> float | None:
    """J at one time; None if it means nothing because a normaliser is missing, negative or near zero."""
    total = 0.0
    for value, reference, norm in zip(point.returns, references, norms, strict=True):
        if value is None:
            continue
        zero = reference.low if above_random else 0.0
        if norm is None or norm - zero < NEGLIGIBLE * abs(reference.high - reference.low):
            return None
        total += (value - zero) / (norm - zero)
    return total


def cumulative_curve(
    points: Values[Point], references: Values[Reference], norms: Values[float | None], above_random: bool = False
) -> dict[float, float]:
    """J by time, where it means something."""
    found = {point.time: cumulative(point, references, norms, above_random) for point in points}
    return {time: value for time, value in found.items() if value is not None}


def cumulative_performance(point: Point, references: Values[Reference]) -> float:
    """sum_k p_k(t) over the tasks seen so far: what J shows, for returns of any sign."""
    parts = zip(point.returns, references, strict=True)
    return sum(reference.performance(value) for value, reference in parts if value is not None)


def average_performance(last: Point, references: Values[Reference]) -> float:
    """Mean performance over all tasks at the end."""
    return _mean([reference.performance(_there(value)) for value, reference in zip(last.returns, references, strict=True)])


def forgetting(last: Point, references: Values[Reference], norms: Values[float | None]) -> float:
    """Mean of what each task has lost since it was learned."""
    parts = zip(last.returns, references, norms, strict=True)
    return _mean([reference.performance(_there(norm)) - reference.performance(_there(value)) for value, reference, norm in parts])


def learning_area(points: Values[Point], task: int, reference: Reference) -> float:
    """AUC_i: mean performance in a task over the time of its learning."""
    values = [point.returns[task] for point in points if task < point.time <= task + 1]
    return _mean([reference.performance(_there(value)) for value in values])


def forward_transfer(areas: Values[float], scratch: Values[float]) -> float | None:
    """How much faster tasks were learned than from scratch; both lists hold AUC_i for every task.

    None where a task is learned perfectly from scratch (AUC of 1, or above the reference): there is nothing left to gain.
    """
    if len(areas) != len(scratch):
        raise InputError(f"forward transfer compares the same tasks, got {len(areas)} and {len(scratch)}")
    if max(scratch, default=0.0) >= 1:
        return None
    return _mean([(area - base) / (1 - base) for area, base in zip(areas, scratch, strict=True)])


def _mean(values: list[float]) -> float:
    if not values:
        raise InputError("a score needs at least one value")
    return sum(values) / len(values)


def _there(value: float | None) -> float:
    if value is None:
        raise InputError("a task was never evaluated: the run is not finished")
    return value
