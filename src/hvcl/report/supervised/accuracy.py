"""Accuracies: each method's at the end, over time, and every task after every task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hvcl.report import words
from hvcl.report.charts import Axis, Point, extent, line_chart, nice_axis
from hvcl.report.statistic import Statistic, statistic
from hvcl.report.supervised.curves import accuracy_of_task, accuracy_over_seen, mean_matrix
from hvcl.report.supervised.figures import Cell, Styles, clipped, in_words, series_of, spaced, task_title
from hvcl.report.supervised.groups import Entry, Group


@dataclass(frozen=True)
class AccuracyMatrix:
    """One method's heat map of accuracies, a row for each number of tasks finished."""

    entry: Entry
    seeds: int
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


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


def overview(group: Group, styles: Styles) -> Overview | None:
    """Each method's average accuracy with its seeds; None if no run has finished."""
    finished = []
    for entry in group.entries:
        values = [seed.result.quantities["average_accuracy"] for seed in entry.run.finished if seed.result]
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
    series = series_of(group, styles, {entry.label: accuracy_over_seen(entry.run.shown) for entry in group.entries})
    ticks = tuple((float(after), str(after)) for after in spaced(1, tasks))
    # Half a task to either side, so that a stream of one task has a width as well.
    x = Axis(0.8, tasks + 0.2, ticks, "tasks finished")
    return line_chart(
        series,
        size=size,
        x=x,
        y=_accuracy_axis(extent(series), "%"),
        description="Average accuracy over the tasks seen so far, by tasks finished. " + in_words(series, _accuracy_value),
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
        series_of(group, styles, {entry.label: accuracy_of_task(entry.run.shown, task) for entry in group.entries})
        for task in range(tasks)
    ]
    # One axis for all, or a task that is hardly forgotten would look like one that is lost.
    y = _accuracy_axis([value for series in lines for value in extent(series)], "%", count=4)
    x = Axis(0.0, tasks + 0.15, tuple((float(after), str(after)) for after in spaced(0, tasks, 6)))
    charts = []
    for task, series in enumerate(lines):
        chart = line_chart(
            series,
            size=(300, 170),
            x=x,
            y=y,
            description=f"Accuracy on task {task + 1} by tasks finished. " + in_words(series, _accuracy_value),
            tip=lambda after: f"after {after:.0f} of {tasks} tasks" if after else "before training",
            value=_accuracy_value,
            dimmed_until=task + 1.0,
        )
        charts.append((task_title(group, task), chart))
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


def statistic_text(value: Statistic | None) -> str:
    """An accuracy over seeds in percent: "97.50 ± 0.33"."""
    if value is None:
        return words.MISSING
    spread = "" if value.sd is None else f" ± {words.percent(value.sd)}"
    return words.percent(value.mean) + spread


def _accuracy_cell(group: Group, after: int, task: int, value: Statistic | None) -> Cell:
    seen = task < after
    note = "" if seen else ", not seen yet"
    return Cell(
        text=words.percent(value.mean, 1) if value else words.MISSING,
        # Bent, so that what is kept (95 %) and what is half lost (60 %) look as different as they are.
        strength=clipped(value.mean) ** 1.5 if value else 0.0,
        tip=f"{task_title(group, task)} after {after}: {statistic_text(value)} %{note}",
        unseen=not seen,
    )


def _accuracy_axis(values: Sequence[float], unit: str = "", count: int = 5) -> Axis:
    """An axis that ends at 100 % and begins below the lowest value; bands may reach beyond what an accuracy can be."""
    inside = [clipped(value) for value in values if math.isfinite(value)]
    axis = nice_axis([100 * min([*inside, 0.9]), 100.0], count)
    return Axis(axis.low / 100, 1.0, tuple((place / 100, label + unit) for place, label in axis.ticks if place <= 100))


def _accuracy_value(point: Point) -> str:
    return words.percent(point.y) + (f" ± {words.percent(point.spread)} %" if point.spread else " %")


def _ends(value: Statistic) -> tuple[float, float]:
    spread = value.sd or 0.0
    return value.mean - spread, value.mean + spread
