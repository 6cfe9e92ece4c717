"""The figures of one chain of tasks, laid out as the paper's: J over time, and the returns in every task below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hvcl.report.charts import Axis, Point, Series, extent, line_chart, nice_axis
from hvcl.report.reinforcement.groups import Entry, Group
from hvcl.report.statistic import over_seeds
from hvcl.rl.scores import cumulative_curve, cumulative_performance

Styles = Mapping[str, str]
"""The style of each label's line."""
Curves = Sequence[Mapping[float, float]]
"""A value by time, for each seed."""

WIDE, NARROW = (960, 340), (380, 280)
"""Sizes of a chart across the page, and of the same on a narrow screen."""


def reward_chart(group: Group, styles: Styles, size: tuple[int, int]) -> Markup | None:
    """J over time, of the finished seeds; None where it means nothing in any."""
    curves = {
        entry.label: [cumulative_curve(r.curve, r.references, r.returns_when_learned) for r in entry.run.results]
        for entry in group.entries
    }
    return _chart(group, styles, curves, size, "Cumulative normalised reward J over time")


def performance_chart(group: Group, styles: Styles, size: tuple[int, int]) -> Markup | None:
    """The sum of the performances in the tasks seen so far, over time, of all seeds as far as they came; None without any."""
    references = group.references or ()
    curves = {
        entry.label: [{e.returns.time: cumulative_performance(e.returns, references) for e in log} for log in entry.run.logs]
        for entry in group.entries
        if references
    }
    return _chart(group, styles, curves, size, "Sum of performances over time")


def return_charts(group: Group, styles: Styles) -> list[tuple[str, Markup | None]]:
    """Each task's returns over time (None without any), with its name, of all seeds as far as they came."""
    charts = []
    for task, name in enumerate(group.task_names):
        curves = {
            entry.label: [
                {e.returns.time: value for e in log if (value := e.returns.returns[task]) is not None} for log in entry.run.logs
            ]
            for entry in group.entries
        }
        charts.append((name, _chart(group, styles, curves, (300, 190), f"Returns in {name} over time")))
    return charts


@dataclass(frozen=True)
class UsageTable:
    """How one layer shares the tasks among its experts."""

    layer: str
    experts: int
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """For each task its name and the share of its observations that goes to each expert, in percent."""


def usage_tables(entry: Entry) -> list[UsageTable]:
    """A table for each layer with experts, at the end of the first seed."""
    if not entry.run.logs:
        return []
    last = entry.run.logs[0][-1].usage
    tables = []
    for layer in dict.fromkeys(layer for of_task in last for layer in of_task):
        shares = [tuple(f"{100 * share:.0f}" for share in of_task.get(layer, ())) for of_task in last]
        rows = tuple(zip(entry.run.task_names, shares, strict=True))
        tables.append(UsageTable(layer, max(map(len, shares)), rows))
    return tables


def _chart(group: Group, styles: Styles, curves: Mapping[str, Curves], size: tuple[int, int], description: str) -> Markup | None:
    tasks = len(group.task_names)
    series = [_series(label, styles[label], of_seeds) for label, of_seeds in curves.items()]
    values = extent(series)
    if not any(map(math.isfinite, values)):
        return None
    return line_chart(
        series,
        size=size,
        x=Axis(0.0, float(tasks), tuple((float(n), str(n)) for n in range(tasks + 1)), "tasks"),
        y=nice_axis(values),
        description=description,
        tip=lambda time: f"{time:.2f} tasks",
        value=lambda point: f"{point.y:.2f}",
        boundaries=[float(n) for n in range(1, tasks)],
        markers=False,
        direct_labels=size[0] > NARROW[0],
    )


def _series(label: str, style: str, curves: Curves) -> Series:
    """The mean over seeds where all of them have a value, with their standard deviation as band."""
    everywhere = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    found = over_seeds([{time: value for time, value in curve.items() if time in everywhere} for curve in curves])
    return Series(label, style, tuple(Point(time, value.mean, value.sd or 0.0) for time, value in found.items()))
