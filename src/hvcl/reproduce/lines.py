"""Line charts of the reproductions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from hvcl.report.charts import Axis, Point, Series, extent, line_chart, nice_axis, series_style
from hvcl.report.statistic import over_seeds

Curve = Mapping[float, float]
"""A value by place."""

WIDTH = 640
"""Of a figure, in pixels before scaling: a page's column."""


def series(curves: Mapping[str, Sequence[Curve]], gap_before: float | None = None, bands: bool = True) -> list[Series]:
    """A line for each label: the mean over seeds, with their standard deviation as band if there are to be `bands`.

    The line is broken before the place `gap_before`: what stands there is no next step, but a summary.
    """
    found = []
    for number, (label, of_seeds) in enumerate(curves.items()):
        points = [
            Point(place, value.mean, (value.sd or 0.0) if bands else 0.0) for place, value in over_seeds(list(of_seeds)).items()
        ]
        if gap_before is not None:
            gap = Point(gap_before - 0.5, math.nan)
            points = [*(p for p in points if p.x < gap_before), gap, *(p for p in points if p.x >= gap_before)]
        found.append(Series(label, series_style(number), tuple(points)))
    return found


def chart(
    lines: Sequence[Series],
    x: Axis,
    size: tuple[int, int],
    description: str,
    *,
    floor: float | None = None,
    ceiling: float | None = None,
    boundaries: Sequence[float] = (),
    markers: bool = True,
) -> Markup:
    """Lines with bands; the vertical axis covers them from `floor` to `ceiling`, which values cannot pass, only bands."""
    ends = [end for end in (floor, ceiling) if end is not None]
    low, high = -math.inf if floor is None else floor, math.inf if ceiling is None else ceiling
    covered = [min(max(value, low), high) for value in extent(lines)]
    return line_chart(
        lines,
        size=size,
        x=x,
        y=nice_axis([*covered, *ends]),
        description=description,
        tip=lambda place: f"{x.title} {place:g}",
        value=lambda point: f"{point.y:.3g}" + (f" ± {point.spread:.2g}" if point.spread else ""),
        boundaries=boundaries,
        markers=markers,
    )


def counted_axis(last: int, title: str, first: int = 1) -> Axis:
    """Whole numbers from `first` to `last`, half a step of room at the ends."""
    return Axis(first - 0.3, last + 0.3, tuple((float(n), str(n)) for n in range(first, last + 1)), title)
