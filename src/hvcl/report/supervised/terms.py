"""The loss terms over time."""

from __future__ import annotations

import math

from markupsafe import Markup

from hvcl.report import words
from hvcl.report.charts import Axis, Point, extent, line_chart, nice_axis
from hvcl.report.supervised.curves import terms_over_time
from hvcl.report.supervised.figures import Styles, in_words, series_of, spaced
from hvcl.report.supervised.groups import Group

_POINTS_OF_A_TERM = 100


def term_charts(group: Group, styles: Styles) -> list[tuple[str, Markup]]:
    """Each loss term over time, with its heading, one line a method that has it; the tasks' boundaries are marked."""
    tasks = len(group.task_names)
    bins = max(4, _POINTS_OF_A_TERM // tasks)
    shown = {entry.label: entry.run.shown for entry in group.entries}
    names = [name for seeds in shown.values() for seed in seeds for record in seed.terms for name in record.values]
    x = Axis(0.0, float(tasks), tuple((task - 0.5, str(task)) for task in spaced(1, tasks)))
    charts = []
    for name in words.term_order(names):
        curves = {label: terms_over_time(seeds, name, tasks, bins) for label, seeds in shown.items()}
        series = series_of(group, styles, curves)
        chart = line_chart(
            series,
            size=(300, 170),
            x=x,
            y=nice_axis(extent(series), count=3),
            description=f"{words.term_title(name)} over the tasks. " + in_words(series, _term_value),
            tip=lambda place: f"task {math.floor(place) + 1}, {place % 1:.0%} through",
            value=_term_value,
            boundaries=[float(task) for task in range(1, tasks)],
            markers=False,
        )
        charts.append((words.term_title(name), chart))
    return charts


def _term_value(point: Point) -> str:
    return words.significant(point.y) + (f" ± {words.significant(point.spread)}" if point.spread else "")
