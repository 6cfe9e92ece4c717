"""Rows of points on one scale, and points in a plane with their names: inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hvcl.report.charts import Axis, element

_CHARACTER = 6.6  # width at 11 px, for margins that hold their labels
_ROW = 17.0
_LABEL = 13.0  # height that a label beside a plane takes


@dataclass(frozen=True)
class Dot:
    """A value with its spread; `style` gives its colour, `ring` makes it hollow: the value of someone else."""

    value: float
    spread: float = 0.0
    style: str = "series-1"
    ring: bool = False


@dataclass(frozen=True)
class DotRow:
    """A line of a dot plot: a name, and the points on it; no points make it a heading."""

    label: str
    dots: tuple[Dot, ...] = ()


def dot_plot(rows: Sequence[DotRow], *, width: int, x: Axis, description: str) -> Markup:
    """A line for each row, the values across."""
    left = max((len(row.label) for row in rows), default=1) * _CHARACTER + 12
    right, bottom = width - 14.0, 6 + len(rows) * _ROW
    height = bottom + (36 if x.title else 20)

    def across(value: float) -> float:
        return left + min(max(x.fraction(value), 0.0), 1.0) * (right - left)

    parts = []
    for place, label in x.ticks:
        parts.append(element("line", class_="grid", x1=across(place), x2=across(place), y1=2.0, y2=bottom))
        parts.append(element("text", label, class_="tick", x=across(place), y=bottom + 14, text_anchor="middle"))
    for number, row in enumerate(rows):
        y = 6 + (number + 0.5) * _ROW
        if not row.dots:
            parts.append(element("text", row.label, class_="heading", x=0.0, y=y + 4))
            continue
        parts.append(element("text", row.label, class_="row-label", x=left - 8, y=y + 4, text_anchor="end"))
        for dot in (dot for dot in row.dots if math.isfinite(dot.value)):
            marks = []
            if dot.spread:
                ends = {"x1": across(dot.value - dot.spread), "x2": across(dot.value + dot.spread)}
                marks.append(element("line", class_="whisker", y1=y, y2=y, **ends))
            marks.append(element("circle", class_="ring" if dot.ring else "dot", cx=across(dot.value), cy=y, r=4.0))
            parts.append(element("g", *marks, class_=dot.style))
    if x.title:
        parts.append(element("text", x.title, class_="title", x=(left + right) / 2, y=height - 6, text_anchor="middle"))
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {width} {height:.0f}", role="img", aria_label=description)


@dataclass(frozen=True)
class Named:
    """A point in a plane."""

    label: str
    x: float
    y: float
    style: str = "series-1"


def named_points(points: Sequence[Named], *, size: tuple[int, int], x: Axis, y: Axis, description: str) -> Markup:
    """Points whose names stand in a column beside the plane, each with a thin line to its point: names never cover each other."""
    width, height = size
    left = max((len(label) for _, label in y.ticks), default=1) * _CHARACTER + 12
    names = max((len(point.label) for point in points), default=1) * _CHARACTER + 12
    right, top, bottom = width - names - 34, 22.0, height - 38.0

    def across(value: float) -> float:
        return left + min(max(x.fraction(value), 0.0), 1.0) * (right - left)

    def down(value: float) -> float:
        return bottom - min(max(y.fraction(value), 0.0), 1.0) * (bottom - top)

    parts = []
    for place, label in y.ticks:
        parts.append(element("line", class_="grid", x1=left, x2=right, y1=down(place), y2=down(place)))
        parts.append(element("text", label, class_="tick", x=left - 6, y=down(place) + 4, text_anchor="end"))
    for place, label in x.ticks:
        parts.append(element("line", class_="grid", x1=across(place), x2=across(place), y1=top, y2=bottom))
        parts.append(element("text", label, class_="tick", x=across(place), y=bottom + 15, text_anchor="middle"))
    parts.append(element("text", x.title, class_="title", x=(left + right) / 2, y=height - 5, text_anchor="middle"))
    parts.append(element("text", y.title, class_="title", x=0.0, y=11))
    ordered = sorted(points, key=lambda point: (down(point.y), -across(point.x)))
    places = spread_out([down(point.y) for point in ordered], _LABEL, 10.0, height - 8.0)
    for point, place in zip(ordered, places, strict=True):
        elbow = f"{across(point.x):.1f},{down(point.y):.1f} {right + 8:.1f},{place:.1f} {right + 28:.1f},{place:.1f}"
        parts.append(element("polyline", class_="leader", points=elbow))
    for point, place in zip(ordered, places, strict=True):
        parts.append(
            element("g", element("circle", class_="dot", cx=across(point.x), cy=down(point.y), r=4.5), class_=point.style)
        )
        parts.append(element("text", point.label, class_=f"point-label {point.style}", x=right + 31, y=place + 4))
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {width} {height}", role="img", aria_label=description)


def spread_out(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places in the order of `wanted`, at least `apart` from each other and, if there is room, between `low` and `high`."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + apart) if places else max(place, low))
    limit = high
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - apart
    return places
