"""The numbers of the report: what is compared with what, means and standard deviations over seeds, and the bounds."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from hvcl.report.run import Config, Expert, Run, Seed
from hvcl.report.words import memory_words

LOWER_BOUND = "naive"
UPPER_BOUND = "joint"

_SCENARIO_ORDER = ("task", "domain", "class")


class Statistic(NamedTuple):
    """A quantity over seeds: its mean, its sample standard deviation (None for one seed), and how many seeds gave it."""

    mean: float
    sd: float | None
    seeds: int


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
    average_accuracy: Statistic | None
    learning_accuracy: Statistic | None
    forgetting: Statistic | None
    backward_transfer: Statistic | None
    forward_transfer: Statistic | None
    nll: Statistic | None
    calibration_error: Statistic | None
    parameters: Statistic | None
    stored_bytes: Statistic | None
    seconds: Statistic | None
    seeds_finished: int
    seeds_planned: int


class Span(NamedTuple):
    """Steps from `first` to before `end` in which an expert learned: from how many examples, and their share of all then."""

    first: int
    end: int
    examples: float
    share: float


@dataclass(frozen=True)
class Entry:
    """A run in its group, with a label that is unique there."""

    run: Run
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


def statistic(values: Iterable[float]) -> Statistic | None:
    """Mean and sample standard deviation (n - 1) of the finite values; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    mean = math.fsum(finite) / len(finite)
    if len(finite) == 1:
        return Statistic(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in finite)
    return Statistic(mean, math.sqrt(squares / (len(finite) - 1)), len(finite))


def results_table(runs: Sequence[Run]) -> list[Row]:
    """The rows of the results table in the order of the page: by group, from the upper bound down to the lower."""
    return [row for group in group_runs(runs) for row in group_rows(group)]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Sort runs into groups that may be compared, and the entries of each from the upper bound to the lower."""
    members: dict[tuple[str, str, str, str, tuple[str, ...]], list[Run]] = {}
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
        if row["bound"] and row["average_accuracy"]:
            bounds.setdefault(row["bound"], row)
    if len(bounds) < 2:
        return []
    lower, upper = (_mean_accuracy(bounds[name]) for name in ("lower", "upper"))
    if upper <= lower:
        return [f"joint ({upper:.2%}) is not above naive ({lower:.2%}) here, so the bounds say nothing about other methods."]
    methods = [row for row in rows if row["bound"] is None and row["average_accuracy"]]
    return [f"{row['label']} ({memory_words(row['memory'])}) {_standing(_mean_accuracy(row), lower, upper)}" for row in methods]


def mean_matrix(seeds: Sequence[Seed], tasks: int) -> list[list[Statistic | None]]:
    """The accuracy matrix over seeds: row t after task t + 1, for as many rows as some seed has come to."""
    rows = [seed.accuracy_after() for seed in seeds]
    return [
        [statistic(row[after][task] for row in rows if after in row) for task in range(tasks)]
        for after in range(1, tasks + 1)
        if any(after in row for row in rows)
    ]


def accuracy_of_task(seeds: Sequence[Seed], task: int) -> dict[float, Statistic]:
    """The accuracy on one task by the number of tasks finished, 0 being before training."""
    return _over_seeds([{after: row[task] for after, row in seed.accuracy_after().items()} for seed in seeds])


def accuracy_over_seen(seeds: Sequence[Seed]) -> dict[float, Statistic]:
    """The average accuracy over the tasks seen so far, by the number of tasks finished, from 1."""
    return _over_seeds(
        [{after: math.fsum(row[:after]) / after for after, row in seed.accuracy_after().items() if after > 0} for seed in seeds]
    )


def terms_over_time(seeds: Sequence[Seed], name: str, tasks: int, bins: int) -> dict[float, Statistic]:
    """A loss term by progress through the stream, which is measured in tasks so that methods with more steps align.

    Every task is cut into `bins` equal parts; a value is the mean over the records of a part, and then over seeds.
    """
    return _over_seeds([_binned_terms(seed, name, tasks, bins) for seed in seeds])


def expert_spans(experts: Sequence[Expert], steps: int, most: int) -> list[list[Span]]:
    """When each expert learned, in at most `most` spans each, whatever the number of its stretches.

    The steps are cut into equal parts, over which the examples of a stretch are spread evenly; neighbouring parts with the same
    share, to a percent, are one span.
    """
    width = max(1, math.ceil(steps / most))
    amounts: list[dict[int, float]] = [{} for _ in experts]
    totals: dict[int, float] = {}
    for expert, mine in zip(experts, amounts, strict=True):
        for first, last, examples in expert.stretches:
            for part in range(first // width, last // width + 1):
                inside = min(last, (part + 1) * width - 1) - max(first, part * width) + 1
                amount = examples * inside / (last - first + 1)
                mine[part] = mine.get(part, 0.0) + amount
                totals[part] = totals.get(part, 0.0) + amount
    return [_joined(mine, totals, width, steps) for mine in amounts]


def differing_stream_options(group: Group) -> list[str]:
    """The stream options in which the runs of a group differ: comparisons in the group must mention them."""
    return _differing([entry.run.config.stream for entry in group.entries])


def _joined(amounts: Mapping[int, float], totals: Mapping[int, float], width: int, steps: int) -> list[Span]:
    def alike(numbered: tuple[int, int]) -> tuple[int, int]:
        place, part = numbered
        return part - place, round(100 * amounts[part] / totals[part])  # the difference is the same for consecutive parts

    spans = []
    for _, run in itertools.groupby(enumerate(sorted(part for part in amounts if amounts[part])), key=alike):
        parts = [part for _, part in run]
        examples = math.fsum(amounts[part] for part in parts)
        share = examples / math.fsum(totals[part] for part in parts)
        spans.append(Span(parts[0] * width, min((parts[-1] + 1) * width, steps), examples, share))
    return spans


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
        average_accuracy=statistic(result.average_accuracy for result in results),
        learning_accuracy=statistic(result.learning_accuracy for result in results),
        forgetting=statistic(result.forgetting for result in results),
        backward_transfer=statistic(result.backward_transfer for result in results),
        forward_transfer=statistic(result.forward_transfer for result in results),
        nll=statistic(result.nll for result in results),
        calibration_error=statistic(result.calibration_error for result in results),
        parameters=statistic(result.parameters for result in results),
        stored_bytes=statistic(result.stored_bytes for result in results),
        seconds=statistic(result.seconds for result in results),
        seeds_finished=len(results),
        seeds_planned=len(entry.run.seeds),
    )


def _mean_accuracy(row: Row) -> float:
    accuracy = row["average_accuracy"]
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
    accuracy = statistic(seed.result.average_accuracy for seed in entry.run.finished if seed.result)
    return place, -accuracy.mean if accuracy else math.inf, entry.label


def _labels(runs: Sequence[Run]) -> list[str]:
    """The method's name where it is unique; otherwise with the settings that tell its runs apart, or their folder."""
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.config.method, []).append(run)
    labels = []
    for run in runs:
        together = by_method[run.config.method]
        labels.append(run.config.method if len(together) == 1 else _label_among(run, together))
    # Folders of the same name may still clash.
    clashes = Counter(labels)
    return [f"{label} #{labels[:place].count(label) + 1}" if clashes[label] > 1 else label for place, label in enumerate(labels)]


def _label_among(run: Run, together: Sequence[Run]) -> str:
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


def _over_seeds(curves: Sequence[Mapping[float, float]]) -> dict[float, Statistic]:
    statistics = {
        place: statistic(curve[place] for curve in curves if place in curve)
        for place in sorted({place for curve in curves for place in curve})
    }
    return {place: value for place, value in statistics.items() if value}


def _binned_terms(seed: Seed, name: str, tasks: int, bins: int) -> dict[float, float]:
    parts: dict[int, list[float]] = {}
    for record, progress in zip(seed.terms, _progress(seed), strict=True):
        value = record.values.get(name, math.nan)
        if math.isfinite(value):
            # A record averages the steps up to its own, so that one exactly on a boundary belongs to the task before.
            part = min(max(math.ceil(progress * bins) - 1, 0), tasks * bins - 1)
            parts.setdefault(part, []).append(value)
    return {(part + 0.5) / bins: math.fsum(values) / len(values) for part, values in parts.items()}


def _progress(seed: Seed) -> list[float]:
    """For each record of loss terms, how many tasks had been worked through by then, fractions included."""
    ends = {0: 0} | {evaluation.after: evaluation.step for evaluation in seed.evaluations}
    last_step = max((record.step for record in seed.terms), default=0)
    finished = max(ends)
    if last_step > ends[finished]:
        # The task that a killed run was in: as long as the one before, if that can be.
        length = ends[finished] - ends.get(finished - 1, 0)
        ends[finished + 1] = max(ends[finished] + length, last_step)
    knots = sorted(ends.items())
    places = []
    for record in seed.terms:
        place = float(knots[-1][0])
        for (task, start), (next_task, end) in itertools.pairwise(knots):
            if start <= record.step <= end and end > start:
                place = task + (next_task - task) * (record.step - start) / (end - start)
                break
        places.append(place)
    return places
