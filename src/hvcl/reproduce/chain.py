"""What the figures of continual reinforcement learning share: protocol, measures, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hvcl.core.errors import InputError
from hvcl.report.charts import Axis
from hvcl.report.statistic import Statistic, statistic
from hvcl.reproduce.base import Budget, Finished, Planned, Scale
from hvcl.reproduce.lines import Curve, chart, series
from hvcl.reproduce.outcome import Column
from hvcl.rl import scores

if TYPE_CHECKING:
    from hvcl.runs.reinforcement import RLConfig

SEQUENCES: Mapping[Budget, str] = {"quick": "classic", "standard": "bullet", "paper": "bullet"}
PROTOCOLS: Mapping[Budget, dict[str, int]] = {
    "quick": {"steps": 2_000, "evaluate_every": 500, "episodes": 2, "final_episodes": 5},
    "standard": {"steps": 60_000, "evaluate_every": 20_000, "episodes": 3, "final_episodes": 10},
    "paper": {"steps": 1_000_000, "evaluate_every": 50_000, "episodes": 3, "final_episodes": 10},
}
AGENTS: Mapping[Budget, dict[str, Any]] = {
    "quick": {"updates_per_step": 0.5, "warmup": 500, "capacity": 2_000},
    "standard": {"updates_per_step": 0.5, "warmup": 1_000, "capacity": 60_000},
    "paper": {"updates_per_step": 0.5, "warmup": 1_000, "capacity": 1_000_000},
}
FOUND: Mapping[str, dict[str, Any]] = {"ucl": {"strength": 0.1}}
"""Settings that a search on the robots found, where they are not the default (experiments/rl)."""

SEEDS: Mapping[Budget, int] = {"quick": 1, "standard": 3, "paper": 3}
EFFORT = 25.0
"""Of a run beside a supervised one."""

COLUMNS = {
    "reward": Column("J at the end"),
    "above_random": Column("J above random"),
    "performance": Column("average performance", 3),
    "when_learned": Column("performance when learned", 3),
    "forgetting": Column("forgetting", 3),
}

NOTES = (
    "J sums, over tasks, the return at the end over that right after the task was learned: as many as there are tasks means "
    "nothing was forgotten. It is left out where a return right after learning is negative or next to nothing. Performances are "
    "returns scaled by stated references (0 random, 1 good).",
    "The paper trains for a million steps a task and says that it updates every 5,000 steps; the authors' code makes 50 updates "
    "then (0.01 a step), samples experts and weights them by 1, and has betas of 1e-5 in the first task. Here it is one update "
    "for two steps, and the betas are the same in all tasks.",
)


def agent(scale: Scale, key: str, method: str, settings: Mapping[str, Any] | None = None) -> Planned:
    """One run on the chain of the budget: three small tasks (quick), or the paper's five robots."""
    config, budget = _config(), scale.budget
    chosen = AGENTS[budget] | FOUND.get(method, {}) | dict(settings or {})
    if method == "hvcl-growing" and budget != "standard":
        chosen["horizon"] = PROTOCOLS[budget]["steps"]
    made = config.make(SEQUENCES[budget], method, scale.seeds, PROTOCOLS[budget], chosen)
    return Planned(key, made, EFFORT)


def _config() -> type[RLConfig]:
    try:
        from hvcl.runs.reinforcement import RLConfig
    except ModuleNotFoundError as error:
        raise InputError(f"this figure needs more packages: pip install 'hvcl[rl]' ({error})") from None
    return RLConfig


def measures(run: Finished) -> dict[str, Statistic | None]:
    """The scores of a run by column."""
    return {
        "reward": run.over_seeds("cumulative_reward"),
        "above_random": run.over_seeds("cumulative_above_random"),
        "performance": run.over_seeds("average_performance"),
        "when_learned": statistic(map(_when_learned, run.results)),
        "forgetting": run.over_seeds("forgetting"),
    }


def _when_learned(result: Mapping[str, Any]) -> float:
    """Mean performance in each task right after it was learned."""
    pairs = zip(result["returns_when_learned"], _references(result), strict=True)
    found = [reference.performance(value) for value, reference in pairs]
    return sum(found) / len(found)


def _references(result: Mapping[str, Any]) -> list[scores.Reference]:
    return [scores.Reference(*pair) for pair in result["references"]]


def _points(result: Mapping[str, Any]) -> list[scores.Point]:
    return [scores.Point(time, tuple(returns)) for time, *returns in result["curve"]]


def rewards(run: Finished) -> list[Curve]:
    """J over time, by seed, where it means something."""
    return [scores.cumulative_curve(_points(r), _references(r), r["returns_when_learned"]) for r in run.results]


def performances(run: Finished) -> list[Curve]:
    """The sum of the performances in the tasks seen so far over time, by seed."""
    return [{p.time: scores.cumulative_performance(p, _references(r)) for p in _points(r)} for r in run.results]


def returns(run: Finished, task: int) -> list[Curve]:
    """The return in one task over time, by seed."""
    return [{p.time: value for p in _points(r) if (value := p.returns[task]) is not None} for r in run.results]


def _everywhere(curves: Sequence[Curve]) -> list[Curve]:
    """The curves at the places that all of them have."""
    places = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return [{place: value for place, value in curve.items() if place in places} for curve in curves]


def tasks_of(run: Finished) -> list[str]:
    """Names of the tasks of a run's chain."""
    return [str(name) for name in run.results[0]["task_names"]]


def over_time(curves: Mapping[str, Sequence[Curve]], tasks: int, size: tuple[int, int], description: str) -> Markup:
    """Curves over the time of the chain, in tasks, where all seeds have a value: a mean of some of them would mislead."""
    curves = {label: _everywhere(of_seeds) for label, of_seeds in curves.items()}
    x = Axis(0.0, float(tasks), tuple((float(n), str(n)) for n in range(tasks + 1)), "tasks learned")
    boundaries = [float(n) for n in range(1, tasks)]
    return chart(series(curves), x, size, description, boundaries=boundaries, markers=False)
