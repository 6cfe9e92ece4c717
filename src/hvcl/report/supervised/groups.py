"""What is compared with what: runs in groups, the rows of the results table, where each method stands between the bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from hvcl.report.statistic import Statistic, statistic
from hvcl.report.supervised.run import QUANTITIES, Config, Quantity, SupervisedRun
from hvcl.report.words import distinct, memory_words

LOWER_BOUND = "naive"
UPPER_BOUND = "joint"
_SCENARIO_ORDER = ("task", "domain", "class")


class Row(TypedDict):
    """One row of the results table; a quantity that no finished seed gave is None. Accuracies are fractions."""

    benchmark: str
    scenario: str
    supervision: str
    evaluated_on: str
    tasks: int
    method: str
    label: str
    bound: str | None
    memory: str
    quantities: Mapping[Quantity, Statistic | None]
    seeds_finished: int
    seeds_planned: int


@dataclass(frozen=True)
class Entry:
    """A run in its group, with a label that is unique there."""

    run: SupervisedRun
    label: str

    @property
    def bound(self) -> str | None:
        """`"upper"` for joint, `"lower"` for naive, otherwise None."""
        return {UPPER_BOUND: "upper", LOWER_BOUND: "lower"}.get(self.run.config.method)


@dataclass(frozen=True)
class Group:
    """Runs whose numbers may be compared: same benchmark and tasks, scenario, supervision and evaluation data."""

    benchmark: str
    scenario: str
    supervision: str
    evaluated_on: str
    task_names: tuple[str, ...]
    entries: tuple[Entry, ...]


def results_table(runs: Sequence[SupervisedRun]) -> list[Row]:
    """The rows of the results table in the order of the page: by group, from the upper bound down to the lower."""
    return [row for group in group_runs(runs) for row in group_rows(group)]


def group_runs(runs: Sequence[SupervisedRun]) -> list[Group]:
    """Sort runs into groups that may be compared, and the entries of each from the upper bound to the lower."""
    members: dict[tuple[str, str, str, str, tuple[str, ...]], list[SupervisedRun]] = {}
    for run in runs:
        config = run.config
        key = (config.benchmark, config.scenario, config.supervision, config.evaluated_on, config.task_names)
        members.setdefault(key, []).append(run)
    groups = []
    for key, together in sorted(members.items(), key=lambda item: _group_order(item[0])):
        entries = [Entry(run, label) for run, label in zip(together, _labels(together), strict=True)]
        groups.append(Group(*key, entries=tuple(sorted(entries, key=_entry_order))))
    return groups


def group_rows(group: Group) -> list[Row]:
    """The rows of one group's table, in the order of its entries."""
    return [_row(group, entry) for entry in group.entries]


def standings(rows: Sequence[Row]) -> list[str]:
    """In words, where each method of one group stands between the lower and the upper bound; empty without both."""
    bounds: dict[str, Row] = {}
    for row in rows:
        if row["bound"] and row["quantities"]["average_accuracy"]:
            bounds.setdefault(row["bound"], row)
    if len(bounds) < 2:
        return []
    lower, upper = (_mean_accuracy(bounds[name]) for name in ("lower", "upper"))
    if upper <= lower:
        return [f"joint ({upper:.2%}) is not above naive ({lower:.2%}) here, so the bounds say nothing about other methods."]
    methods = [row for row in rows if row["bound"] is None and row["quantities"]["average_accuracy"]]
    return [f"{row['label']} ({memory_words(row['memory'])}) {_standing(_mean_accuracy(row), lower, upper)}" for row in methods]


def differing_stream_options(group: Group) -> list[str]:
    """The stream options in which the runs of a group differ: comparisons in the group must mention them."""
    return _differing([entry.run.config.stream for entry in group.entries])


def _row(group: Group, entry: Entry) -> Row:
    results = [seed.result for seed in entry.run.finished if seed.result]
    return Row(
        benchmark=group.benchmark,
        scenario=group.scenario,
        supervision=group.supervision,
        evaluated_on=group.evaluated_on,
        tasks=len(group.task_names),
        method=entry.run.config.method,
        label=entry.label,
        bound=entry.bound,
        memory=entry.run.config.memory,
        quantities={name: statistic(result.quantities[name] for result in results) for name in QUANTITIES},
        seeds_finished=len(results),
        seeds_planned=len(entry.run.seeds),
    )


def _mean_accuracy(row: Row) -> float:
    accuracy = row["quantities"]["average_accuracy"]
    return accuracy.mean if accuracy else math.nan


def _standing(accuracy: float, lower: float, upper: float) -> str:
    reaches = f"reaches {accuracy:.2%}"
    if accuracy < lower:
        return f"{reaches}, below the lower bound naive ({lower:.2%})."
    if accuracy > upper:
        return f"{reaches}, above the upper bound joint ({upper:.2%})."
    way = (accuracy - lower) / (upper - lower)
    return f"{reaches}: {way:.0%} of the way from naive ({lower:.2%}) to joint ({upper:.2%})."


def _group_order(key: tuple[str, str, str, str, tuple[str, ...]]) -> tuple[object, ...]:
    benchmark, scenario, supervision, evaluated_on, task_names = key
    place = _SCENARIO_ORDER.index(scenario) if scenario in _SCENARIO_ORDER else len(_SCENARIO_ORDER)
    return benchmark, place, scenario, supervision, evaluated_on, len(task_names), task_names


def _entry_order(entry: Entry) -> tuple[int, float, str]:
    place = {"upper": 0, None: 1, "lower": 2}[entry.bound]
    accuracy = statistic(seed.result.quantities["average_accuracy"] for seed in entry.run.finished if seed.result)
    return place, -accuracy.mean if accuracy else math.inf, entry.label


def _labels(runs: Sequence[SupervisedRun]) -> list[str]:
    """The method's name where it is unique; otherwise with the settings that tell its runs apart, or their folder."""
    by_method: dict[str, list[SupervisedRun]] = {}
    for run in runs:
        by_method.setdefault(run.config.method, []).append(run)
    labels = []
    for run in runs:
        together = by_method[run.config.method]
        labels.append(run.config.method if len(together) == 1 else _label_among(run, together))
    return distinct(labels)  # folders of the same name may still clash


def _label_among(run: SupervisedRun, together: Sequence[SupervisedRun]) -> str:
    def describe(config: Config) -> str:
        return ", ".join(f"{name} {_settings(config).get(name, 'unset')}" for name in differing)

    differing = _differing([_settings(other.config) for other in together])
    described = Counter(describe(other.config) for other in together)
    short = len(differing) <= 2 and all(len(description) <= 40 for description in described)
    if differing and short and max(described.values()) == 1:
        return f"{run.config.method}, {describe(run.config)}"
    return f"{run.config.method} ({run.folder.name})"


def _settings(config: Config) -> dict[str, object]:
    return {**config.stream, **config.learner, "memory": config.memory}


def _differing(settings: Sequence[Mapping[str, object]]) -> list[str]:
    names = dict.fromkeys(name for options in settings for name in options)
    return [name for name in names if any(options.get(name) != settings[0].get(name) for options in settings)]
