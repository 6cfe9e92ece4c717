"""What the figures of a group share: the style of each label's line, names of tasks, cells of heat maps, lines over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hvcl.report.charts import Point, Series, series_style
from hvcl.report.fields import Matrix
from hvcl.report.statistic import Statistic
from hvcl.report.supervised.groups import Group

Styles = Mapping[str, str]
"""The style of each label's line."""
_LONGEST_TASK_NAME = 8


@dataclass(frozen=True)
class Cell:
    """A cell of a heat map: its text, how strongly it is coloured (0 to 1), what it says when pointed at."""

    text: str
    strength: float
    tip: str
    unseen: bool = False


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
            styles[entry.label] = series_style(methods)
            methods += 1
    return styles


def short_task_names(task_names: Sequence[str]) -> list[str]:
    """The names of the tasks if all are short enough for an axis, otherwise their numbers."""
    if all(len(name) <= _LONGEST_TASK_NAME for name in task_names):
        return list(task_names)
    return [str(number) for number in range(1, len(task_names) + 1)]


def task_title(group: Group, task: int) -> str:
    """The heading of a task: its number, and its name if that says more."""
    name = group.task_names[task]
    return f"Task {task + 1}" if name == str(task + 1) else f"Task {task + 1}: {name}"


def padded(rows: Matrix) -> Matrix:
    """Rows of equal length: a layer that grew may have shorter ones for earlier tasks, which are filled up with NaN."""
    width = max((len(row) for row in rows), default=0)
    return tuple(row + (math.nan,) * (width - len(row)) for row in rows)


def series_of(group: Group, styles: Styles, curves: Mapping[str, Mapping[float, Statistic]]) -> list[Series]:
    """The lines of a chart from each label's curve, without those that are empty."""
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


def in_words(series: Sequence[Series], value: Callable[[Point], str]) -> str:
    """Where every line begins and ends, for readers who cannot see them."""
    return " ".join(f"{line.label}: from {value(line.points[0])} to {value(line.points[-1])}." for line in series)


def spaced(first: int, last: int, most: int = 12) -> range:
    """Whole numbers from first to last, with gaps if there would be more than an axis can hold."""
    return range(first, last + 1, max(1, math.ceil((last - first + 1) / most)))


def clipped(value: float) -> float:
    """A fraction between 0 and 1; 0 for what is not a number."""
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
