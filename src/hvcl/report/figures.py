"""The figures of one group of runs: what is drawn, from which numbers. How lines are drawn is in `charts`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hvcl.report import words
from hvcl.report.charts import Axis, Point, Series, line_chart, nice_axis
from hvcl.report.run import Expert, Layer, Matrix, Seed
from hvcl.report.summary import (
    Entry,
    Group,
    Span,
    Statistic,
    accuracy_of_task,
    accuracy_over_seen,
    expert_spans,
    mean_matrix,
    statistic,
    terms_over_time,
)

Styles = Mapping[str, str]
"""The style of each label's line."""

_COLOURS = 7
_LONGEST_TASK_NAME = 8
_POINTS_OF_A_TERM = 100
_BARS_OF_A_LANE = 240
_OWN_EXPERTS = "gate"  # the layer as which a learner's own experts are measured


@dataclass(frozen=True)
class Cell:
    """A cell of a heat map: its text, how strongly it is coloured (0 to 1), what it says when pointed at."""

    text: str
    strength: float
    tip: str
    unseen: bool = False


@dataclass(frozen=True)
class AccuracyMatrix:
    """One method's heat map of accuracies, a row for each number of tasks finished."""

    entry: Entry
    seeds: int
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class Measure:
    """An information measure of a gate in bits, and its share of the most there can be."""

    name: str
    meaning: str
    text: str
    share: float


@dataclass(frozen=True)
class LayerFigure:
    """One layer's heat maps of experts, a row for each task."""

    name: str
    experts: int
    measures: tuple[Measure, ...]
    rows: tuple[tuple[str, tuple[Cell, ...], tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class ExpertFigure:
    """The layers of one method for each finished seed, and the layers that have but one expert."""

    entry: Entry
    seeds: tuple[tuple[int, tuple[LayerFigure, ...]], ...]
    single: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """Steps in which an expert learned: places are percentages of the lane, the strength is its share of the examples."""

    left: float
    width: float
    strength: float
    tip: str


@dataclass(frozen=True)
class Lane:
    """One expert of a timeline: when it opened and learned, from what, and what it answers for."""

    number: int
    """From 1."""
    place: float
    """Where it opened, in percent of the lane."""
    opened: str
    step: str
    after: str
    change: str
    """When it opened against the nearest change of task, if those are known."""
    bars: tuple[Bar, ...]
    examples: str
    labels: str
    answers: str
    """The tasks with the fraction of their examples whose first choice it is, if that was measured."""


@dataclass(frozen=True)
class Timeline:
    """One seed's lanes on a common axis of steps; places are percentages of its width."""

    seed: int
    lead: str
    description: str
    lanes: tuple[Lane, ...]
    tasks: tuple[tuple[str, float, float], ...]
    """Name, place and width of each task's part of the stream; empty if they are not known."""
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class DriftFigure:
    """When the experts of one method opened and learned, in each finished seed."""

    entry: Entry
    style: str
    blend: str
    """How neighbouring tasks blend in its stream, if they do."""
    timelines: tuple[Timeline, ...]


@dataclass(frozen=True)
class Strip:
    """A row of the overview: places are percentages of its width."""

    entry: Entry
    style: str
    text: str
    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]


@dataclass(frozen=True)
class Overview:
    """Average accuracies on one line each, on a common axis, with the span between the bounds."""

    strips: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    bounds: tuple[float, float] | None


def line_styles(groups: Sequence[Group]) -> Styles:
    """A style for each label, the same in all groups; beyond the colours there are, dashes tell lines apart."""
    styles: dict[str, str] = {}
    methods = 0
    for entry in (entry for group in groups for entry in group.entries):
        if entry.label in styles:
            continue
        if entry.bound:
            styles[entry.label] = entry.bound
        else:
            styles[entry.label] = f"series-{methods % _COLOURS + 1} dashes-{methods // _COLOURS % 3}"
            methods += 1
    return styles


def short_task_names(task_names: Sequence[str]) -> list[str]:
    """The names of the tasks if all are short enough for an axis, otherwise their numbers."""
    if all(len(name) <= _LONGEST_TASK_NAME for name in task_names):
        return list(task_names)
    return [str(number) for number in range(1, len(task_names) + 1)]


def overview(group: Group, styles: Styles) -> Overview | None:
    """Each method's average accuracy with its seeds; None if no run has finished."""
    finished = []
    for entry in group.entries:
        values = [seed.result.average_accuracy for seed in entry.run.finished if seed.result]
        summary = statistic(values)
        if summary:
            finished.append((entry, summary, [value for value in values if math.isfinite(value)]))
    if not finished:
        return None
    axis = _accuracy_axis([value for _, summary, values in finished for value in [*values, *_ends(summary)]])

    def place(value: float) -> float:
        return round(100 * min(max(axis.fraction(value), 0.0), 1.0), 2)

    strips = []
    means: dict[str | None, float] = {}
    for entry, summary, values in finished:
        low, high = _ends(summary)
        means.setdefault(entry.bound, place(summary.mean))
        strips.append(
            Strip(
                entry=entry,
                style=styles[entry.label],
                text=statistic_text(summary),
                mean=place(summary.mean),
                low=place(low),
                high=place(high),
                seeds=tuple(place(value) for value in values) if len(values) > 1 else (),
            )
        )
    both = "lower" in means and "upper" in means and means["lower"] < means["upper"]
    return Overview(
        strips=tuple(strips),
        ticks=tuple((place(value), label) for value, label in axis.ticks),
        bounds=(means["lower"], means["upper"]) if both else None,
    )


def accuracy_over_time(group: Group, styles: Styles, size: tuple[int, int], direct_labels: bool) -> Markup:
    """The average accuracy over the tasks seen so far, one line a method, labelled at its end if there is room."""
    tasks = len(group.task_names)
    series = _series(group, styles, {entry.label: accuracy_over_seen(entry.run.shown) for entry in group.entries})
    ticks = tuple((float(after), str(after)) for after in _spaced(1, tasks))
    # Half a task to either side, so that a stream of one task has a width as well.
    x = Axis(0.8, tasks + 0.2, ticks, "tasks finished")
    return line_chart(
        series,
        size=size,
        x=x,
        y=_accuracy_axis(_extent(series), "%"),
        description="Average accuracy over the tasks seen so far, by tasks finished. " + _in_words(series),
        tip=lambda after: f"after {after:.0f} of {tasks} tasks",
        value=_accuracy_value,
        direct_labels=direct_labels,
    )


def accuracy_numbers(group: Group) -> list[tuple[str, list[str]]]:
    """The numbers of `accuracy_over_time` as rows of text, one for each method."""
    rows = []
    for entry in group.entries:
        curve = accuracy_over_seen(entry.run.shown)
        rows.append((entry.label, [statistic_text(curve.get(after)) for after in range(1, len(group.task_names) + 1)]))
    return rows


def task_charts(group: Group, styles: Styles) -> list[tuple[str, Markup]]:
    """Each task's accuracy over time, with its heading; shaded until the task has been learned."""
    tasks = len(group.task_names)
    lines = [
        _series(group, styles, {entry.label: accuracy_of_task(entry.run.shown, task) for entry in group.entries})
        for task in range(tasks)
    ]
    # One axis for all, or a task that is hardly forgotten would look like one that is lost.
    y = _accuracy_axis([value for series in lines for value in _extent(series)], "%", count=4)
    x = Axis(0.0, tasks + 0.15, tuple((float(after), str(after)) for after in _spaced(0, tasks, 6)))
    charts = []
    for task, series in enumerate(lines):
        chart = line_chart(
            series,
            size=(300, 170),
            x=x,
            y=y,
            description=f"Accuracy on task {task + 1} by tasks finished. " + _in_words(series),
            tip=lambda after: f"after {after:.0f} of {tasks} tasks" if after else "before training",
            value=_accuracy_value,
            dimmed_until=task + 1.0,
        )
        charts.append((_task_title(group, task), chart))
    return charts


def term_charts(group: Group, styles: Styles) -> list[tuple[str, Markup]]:
    """Each loss term over time, with its heading, one line a method that has it; the tasks' boundaries are marked."""
    tasks = len(group.task_names)
    bins = max(4, _POINTS_OF_A_TERM // tasks)
    shown = {entry.label: entry.run.shown for entry in group.entries}
    names = [name for seeds in shown.values() for seed in seeds for record in seed.terms for name in record.values]
    x = Axis(0.0, float(tasks), tuple((task - 0.5, str(task)) for task in _spaced(1, tasks)))
    charts = []
    for name in words.term_order(names):
        curves = {label: terms_over_time(seeds, name, tasks, bins) for label, seeds in shown.items()}
        series = _series(group, styles, curves)
        chart = line_chart(
            series,
            size=(300, 170),
            x=x,
            y=nice_axis(_extent(series), count=3),
            description=f"{words.term_title(name)} over the tasks. " + _in_words(series, _term_value),
            tip=lambda place: f"task {math.floor(place) + 1}, {place % 1:.0%} through",
            value=_term_value,
            boundaries=[float(task) for task in range(1, tasks)],
            markers=False,
        )
        charts.append((words.term_title(name), chart))
    return charts


def accuracy_matrices(group: Group) -> list[AccuracyMatrix]:
    """The heat maps of all methods that have been evaluated."""
    tasks = len(group.task_names)
    matrices = []
    for entry in group.entries:
        rows = [
            (str(after), tuple(_accuracy_cell(group, after, task, value) for task, value in enumerate(row)))
            for after, row in enumerate(mean_matrix(entry.run.shown, tasks), start=1)
        ]
        if rows:
            matrices.append(AccuracyMatrix(entry, len(entry.run.shown), tuple(rows)))
    return matrices


def drift_figures(group: Group, styles: Styles) -> list[DriftFigure]:
    """For every method that opens experts as it goes: which opened when and what it answers for, in each finished seed."""
    figures = []
    for entry in group.entries:
        timelines = [
            _timeline(seed, seed.result.experts, group) for seed in entry.run.finished if seed.result and seed.result.experts
        ]
        if timelines:
            blur = entry.run.config.stream.get("blur")
            blend = f"Neighbouring tasks blend into each other over {words.setting(blur)} of a task" if blur else ""
            figures.append(DriftFigure(entry, styles[entry.label], blend, tuple(timelines)))
    return figures


def expert_figures(group: Group) -> list[ExpertFigure]:
    """For every method with a layer of several experts: who serves which task, in each finished seed."""
    names = short_task_names(group.task_names)
    figures = []
    for entry in group.entries:
        seeds = []
        single: dict[str, None] = {}
        for seed in entry.run.finished:
            layers = seed.result.layers if seed.result else {}
            single |= dict.fromkeys(name for name, layer in layers.items() if layer.experts < 2)
            several = [_layer_figure(name, layer, names) for name, layer in layers.items() if layer.experts > 1]
            if several:
                seeds.append((seed.seed, tuple(several)))
        if seeds:
            figures.append(ExpertFigure(entry, tuple(seeds), tuple(single)))
    return figures


def statistic_text(value: Statistic | None) -> str:
    """An accuracy over seeds in percent: "97.50 ± 0.33"."""
    if value is None:
        return words.MISSING
    spread = "" if value.sd is None else f" ± {words.percent(value.sd)}"
    return words.percent(value.mean) + spread


def _timeline(seed: Seed, experts: Sequence[Expert], group: Group) -> Timeline:
    names = short_task_names(group.task_names)
    result = seed.result
    assert result is not None
    told = int(result.steps) if math.isfinite(result.steps) else 0
    steps = max(told, 1, *(1 + last for expert in experts for _, last, _ in expert.stretches))
    starts = seed.task_starts()
    if len(starts) != len(names) or starts[-1] > steps:
        starts = ()  # the log is not whole
    routed = _padded(result.layers[_OWN_EXPERTS].routed) if _OWN_EXPERTS in result.layers else ()

    def place(step: int) -> float:
        return round(100 * min(step / steps, 1.0), 2)

    lanes = []
    for expert, spans in zip(experts, expert_spans(experts, steps, _BARS_OF_A_LANE), strict=True):
        opened = f"opened at step {words.whole(expert.opened_step)}"
        opened += f", after {_examples(expert.opened_after)}" if expert.opened_after else ""
        lanes.append(
            Lane(
                number=expert.number + 1,
                place=place(expert.opened_step),
                opened=opened,
                step=words.whole(expert.opened_step),
                after=words.whole(expert.opened_after),
                change=_nearest_change(expert.opened_step, starts, names),
                bars=tuple(_bar(span, place) for span in spans),
                examples=_examples(expert.examples),
                labels=", ".join(f"{label}: {words.whole(expert.labels[label])}" for label in _label_order(expert.labels)),
                answers=_answers([row[expert.number] if expert.number < len(row) else 0.0 for row in routed], names),
            )
        )
    count = f"{len(lanes)} expert{'' if len(lanes) == 1 else 's'}"
    described = [f"expert {lane.number} {lane.opened}, and learned from {lane.examples}" for lane in lanes]
    axis = nice_axis([0.0, float(steps)], count=6)
    ends = (*starts[1:], steps)
    return Timeline(
        seed=seed.seed,
        lead=f"{count} for {len(names)} task{'' if len(names) == 1 else 's'}.",
        description=f"{count}: {'; '.join(described)}.",
        lanes=tuple(lanes),
        tasks=tuple((name, place(a), round(place(b) - place(a), 2)) for name, a, b in zip(names, starts, ends, strict=False)),
        ticks=tuple((place(int(value)), label) for value, label in axis.ticks if value == int(value) <= steps),
    )


def _bar(span: Span, place: Callable[[int], float]) -> Bar:
    steps = f"step {words.whole(span.first)}"
    if span.end - span.first > 1:
        steps = f"steps {words.whole(span.first)} to {words.whole(span.end - 1)}"
    return Bar(
        left=place(span.first),
        width=round(place(span.end) - place(span.first), 2),
        strength=span.share,
        tip=f"{steps}: {_examples(span.examples)}, {words.percent(span.share, 0)} % of all",
    )


def _examples(number: float) -> str:
    return "1 example" if round(number) == 1 else f"{words.whole(number)} examples"


def _label_order(labels: Mapping[str, int]) -> list[str]:
    """Numbers by their value, before all else."""
    return sorted(labels, key=lambda label: (not label.isdecimal(), int(label) if label.isdecimal() else 0, label))


def _nearest_change(step: int, starts: Sequence[int], names: Sequence[str]) -> str:
    """How far a step is from the nearest beginning of a task, in words."""
    if not starts:
        return words.MISSING
    start, name = min(zip(starts, names, strict=True), key=lambda task: abs(task[0] - step))
    if step == start:
        return f"as {name} begins"
    away = f"{words.whole(abs(step - start))} step{'' if abs(step - start) == 1 else 's'}"
    return f"{away} into {name}" if step > start else f"{away} before {name}"


def _answers(shares: Sequence[float], names: Sequence[str]) -> str:
    """The tasks of which an expert answers for one percent or more, the largest share first."""
    of_tasks = sorted((-share, task) for task, share in enumerate(shares) if share >= 0.01)
    return ", ".join(f"{names[task]} ({words.percent(-share, 0)} %)" for share, task in of_tasks) or words.MISSING


def _layer_figure(name: str, layer: Layer, names: Sequence[str]) -> LayerFigure:
    most = math.log2(layer.experts)
    measures = [
        ("H(M)", "entropy of the choice of expert over all data", layer.marginal_entropy),
        ("H(M|X)", "entropy of the choice once the example is known", layer.conditional_entropy),
        ("I(M;X)", "what the choice of expert tells about the example", layer.information),
    ]
    return LayerFigure(
        name=name,
        experts=layer.experts,
        measures=tuple(
            Measure(symbol, meaning, words.decimal(bits, 2), _clipped(bits / most)) for symbol, meaning, bits in measures
        ),
        rows=tuple(
            (task, _shares(usage, task, "mean gate probability"), _shares(routed, task, "first choice of"))
            for task, usage, routed in zip(names, _padded(layer.usage), _padded(layer.routed), strict=True)
        ),
    )


def _padded(rows: Matrix) -> Matrix:
    # A layer that grew may have shorter rows for earlier tasks.
    width = max((len(row) for row in rows), default=0)
    return tuple(row + (math.nan,) * (width - len(row)) for row in rows)


def _shares(values: Sequence[float], task: str, what: str) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            text=words.percent(value, 0),
            strength=_clipped(value),
            tip=f"task {task}, expert {expert}: {what} {words.percent(value)} %",
        )
        for expert, value in enumerate(values, start=1)
    )


def _accuracy_cell(group: Group, after: int, task: int, value: Statistic | None) -> Cell:
    seen = task < after
    note = "" if seen else ", not seen yet"
    return Cell(
        text=words.percent(value.mean, 1) if value else words.MISSING,
        # Bent, so that what is kept (95 %) and what is half lost (60 %) look as different as they are.
        strength=_clipped(value.mean) ** 1.5 if value else 0.0,
        tip=f"{_task_title(group, task)} after {after}: {statistic_text(value)} %{note}",
        unseen=not seen,
    )


def _task_title(group: Group, task: int) -> str:
    name = group.task_names[task]
    return f"Task {task + 1}" if name == str(task + 1) else f"Task {task + 1}: {name}"


def _series(group: Group, styles: Styles, curves: Mapping[str, Mapping[float, Statistic]]) -> list[Series]:
    # Bounds first, so that the methods are drawn over them.
    entries = sorted(group.entries, key=lambda entry: entry.bound is None)
    return [
        Series(
            entry.label,
            styles[entry.label],
            tuple(Point(float(x), value.mean, value.sd or 0.0) for x, value in curves[entry.label].items()),
        )
        for entry in entries
        if curves[entry.label]
    ]


def _extent(series: Sequence[Series]) -> list[float]:
    points = [point for line in series for point in line.points]
    return [value for point in points for value in (point.y - point.spread, point.y + point.spread)]


def _accuracy_axis(values: Sequence[float], unit: str = "", count: int = 5) -> Axis:
    """An axis that ends at 100 % and begins below the lowest value; bands may reach beyond what an accuracy can be."""
    inside = [_clipped(value) for value in values if math.isfinite(value)]
    axis = nice_axis([100 * min([*inside, 0.9]), 100.0], count)
    return Axis(axis.low / 100, 1.0, tuple((place / 100, label + unit) for place, label in axis.ticks if place <= 100))


def _accuracy_value(point: Point) -> str:
    return words.percent(point.y) + (f" ± {words.percent(point.spread)} %" if point.spread else " %")


def _in_words(series: Sequence[Series], value: Callable[[Point], str] = _accuracy_value) -> str:
    return " ".join(f"{line.label}: from {value(line.points[0])} to {value(line.points[-1])}." for line in series)


def _term_value(point: Point) -> str:
    return words.significant(point.y) + (f" ± {words.significant(point.spread)}" if point.spread else "")


def _spaced(first: int, last: int, most: int = 12) -> range:
    """Whole numbers from first to last, with gaps if there would be more than an axis can hold."""
    return range(first, last + 1, max(1, math.ceil((last - first + 1) / most)))


def _ends(value: Statistic) -> tuple[float, float]:
    spread = value.sd or 0.0
    return value.mean - spread, value.mean + spread


def _clipped(value: float) -> float:
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
