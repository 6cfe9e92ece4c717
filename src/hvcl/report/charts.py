"""Line charts as inline SVG. Colours and fonts come from the page's style sheet, so that light and dark both work."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from hvcl.report.words import decimal

_COLOURS = 7  # of lines in the style sheet
_FONT_WIDTH = 6.4  # of one character at the charts' 11 px, for margins that hold their labels
_LABEL_WIDTH = 7.5  # the same at the 12 px bold of the labels beside lines
_LABEL_HEIGHT = 14.0
_LONGEST_LABEL = 26


@dataclass(frozen=True)
class Point:
    """A value and, if it has a spread, the band around it."""

    x: float
    y: float
    spread: float = 0.0


@dataclass(frozen=True)
class Series:
    """A line; `style` is the class that gives it its colour and dashes."""

    label: str
    style: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Axis:
    """A range of values with its ticks and their labels."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    title: str = ""

    def fraction(self, value: float) -> float:
        """Where a value lies between the ends: 0 at the low one, 1 at the high one."""
        return (value - self.low) / (self.high - self.low)


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """An SVG element; text and attribute values are escaped, `class_` stands for class and `_` for a hyphen."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_coordinate(value))}"' for name, value in attributes.items()
    )
    content = "".join(escape(child) for child in children)
    return Markup(f"<{tag}{written}>{content}</{tag}>")


def nice_axis(values: Iterable[float], count: int = 4) -> Axis:
    """An axis over the values whose ticks are multiples of 1, 2 or 5 times a power of ten, about `count` of them."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(high) / 2 or 0.5
        low, high = low - margin, high + margin
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((number * step, _tick(number * step, step)) for number in range(first, last + 1))
    return Axis(first * step, last * step, ticks)


def series_style(number: int) -> str:
    """The style of the line with this number, from 0; beyond the colours there are, dashes tell lines apart."""
    return f"series-{number % _COLOURS + 1} dashes-{number // _COLOURS % 3}"


def extent(series: Iterable[Series]) -> list[float]:
    """The values that an axis should cover: the ends of every band."""
    points = [point for line in series for point in line.points]
    return [value for point in points for value in (point.y - point.spread, point.y + point.spread)]


def line_chart(
    series: Sequence[Series],
    *,
    size: tuple[int, int],
    x: Axis,
    y: Axis,
    description: str,
    tip: Callable[[float], str],
    value: Callable[[Point], str],
    boundaries: Sequence[float] = (),
    marks: Sequence[tuple[float, str]] = (),
    dimmed_until: float | None = None,
    markers: bool = True,
    direct_labels: bool = False,
) -> Markup:
    """Lines with bands.

    Args:
        series: The lines, the most important last: it is drawn on top.
        size: Width and height in CSS pixels before scaling.
        x: The horizontal axis.
        y: The vertical axis.
        description: What a reader who cannot see the chart is told.
        tip: The heading of the tooltip at a place on the horizontal axis.
        value: A point's value in the tooltip.
        boundaries: Places on the horizontal axis to mark with a vertical line.
        marks: Places on the horizontal axis to mark with a vertical line and a short label above it.
        dimmed_until: Shade the chart up to here.
        markers: Whether each point gets a dot.
        direct_labels: Whether each line's label stands at its end.
    """
    width, height = size
    drawn = [line for line in series if any(math.isfinite(point.y) for point in line.points)]
    label_width = max((min(len(line.label), _LONGEST_LABEL) for line in drawn), default=0) * _LABEL_WIDTH + 14
    left = max((len(label) for _, label in y.ticks), default=1) * _FONT_WIDTH + 10
    right = width - (label_width if direct_labels else 8)
    top, bottom = 20.0 if marks else 10.0, height - (38 if x.title else 22)

    def across(place: float) -> float:
        return left + x.fraction(place) * (right - left)

    def down(place: float) -> float:
        # Bands may reach beyond the axis (an accuracy of 99 ± 2 %), but are not drawn there.
        return bottom - min(max(y.fraction(place), 0.0), 1.0) * (bottom - top)

    parts: list[Markup] = []
    if dimmed_until is not None:
        parts.append(element("rect", class_="unseen", x=left, y=top, width=across(dimmed_until) - left, height=bottom - top))
    for place, label in y.ticks:
        parts.append(element("line", class_="grid", x1=left, x2=right, y1=down(place), y2=down(place)))
        parts.append(element("text", label, class_="tick", x=left - 6, y=down(place) + 4, text_anchor="end"))
    for place in boundaries:
        parts.append(element("line", class_="boundary", x1=across(place), x2=across(place), y1=top, y2=bottom))
    for place, label in marks:
        parts.append(element("line", class_="mark", x1=across(place), x2=across(place), y1=top, y2=bottom))
        parts.append(element("text", label, class_="mark-label", x=across(place), y=top - 5, text_anchor="middle"))
    for place, label in x.ticks:
        parts.append(element("text", label, class_="tick", x=across(place), y=bottom + 16, text_anchor="middle"))
    if x.title:
        parts.append(element("text", x.title, class_="title", x=(left + right) / 2, y=height - 4, text_anchor="middle"))
    for line in drawn:
        parts.append(_line(line, across, down, markers))
    if direct_labels:
        parts.extend(_direct_labels(drawn, right + 8, down, top, bottom))
    parts.extend(_probes(drawn, across, (left, right, top, bottom), tip, value))
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {width} {height}", role="img", aria_label=description)


def _tick(value: float, step: float) -> str:
    """A tick with as many decimals as its step needs."""
    if 1e-3 <= step < 1e5:
        return decimal(value, max(0, -math.floor(math.log10(step) + 1e-9)))
    return f"{value:.0e}".replace("-", "−") if value else "0"


def _coordinate(value: object) -> str:
    # A tenth of a pixel is enough, and keeps the page small.
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def _line(line: Series, across: Callable[[float], float], down: Callable[[float], float], markers: bool) -> Markup:
    parts: list[Markup] = []
    # A value that is missing interrupts the line instead of being drawn over.
    for finite, run in itertools.groupby(line.points, key=lambda point: math.isfinite(point.y)):
        if not finite:
            continue
        points = list(run)
        if any(point.spread > 0 for point in points):
            upper = [(across(point.x), down(point.y + point.spread)) for point in points]
            lower = [(across(point.x), down(point.y - point.spread)) for point in reversed(points)]
            parts.append(element("polygon", class_="band", points=_path(upper + lower)))
        places = [(across(point.x), down(point.y)) for point in points]
        parts.append(element("polyline", class_="line", points=_path(places)))
        if markers or len(points) == 1:
            parts.extend(element("circle", class_="dot", cx=cx, cy=cy, r=2.5) for cx, cy in places)
    return element("g", *parts, class_=line.style)


def _path(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_coordinate(across)},{_coordinate(down)}" for across, down in places)


def _direct_labels(
    series: Sequence[Series], left: float, down: Callable[[float], float], top: float, bottom: float
) -> list[Markup]:
    ends = []
    for line in series:
        last = [point for point in line.points if math.isfinite(point.y)][-1]
        ends.append((down(last.y), line))
    ends.sort(key=lambda end: end[0])
    places: list[float] = []
    for place, _ in ends:
        places.append(max(place, places[-1] + _LABEL_HEIGHT) if places else max(place, top))
    # What was pushed below the chart pushes the ones above it back up.
    limit = bottom
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - _LABEL_HEIGHT
    return [
        element("text", _shortened(line.label), class_=f"label {line.style}", x=left, y=place + 4)
        for place, (_, line) in zip(places, ends, strict=True)
    ]


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


def _probes(
    series: Sequence[Series],
    across: Callable[[float], float],
    frame: tuple[float, float, float, float],
    tip: Callable[[float], str],
    value: Callable[[Point], str],
) -> list[Markup]:
    """Invisible strips around each place on the horizontal axis, which carry the tooltips."""
    left, right, top, bottom = frame
    by_place: dict[float, list[tuple[float, str]]] = {}
    for line in series:
        for point in line.points:
            if math.isfinite(point.y):
                by_place.setdefault(point.x, []).append((-point.y, f"{line.label}  {value(point)}"))
    places = sorted(by_place)
    middles = [(across(before) + across(after)) / 2 for before, after in itertools.pairwise(places)]
    edges = [left, *middles, right]
    probes = []
    for place, start, end in zip(places, edges, edges[1:], strict=False):
        text = "\n".join([tip(place), *(text for _, text in sorted(by_place[place]))])
        area = element("rect", element("title", text), x=start, y=top, width=end - start, height=bottom - top)
        guide = element("line", class_="guide", x1=across(place), x2=across(place), y1=top, y2=bottom)
        probes.append(element("g", guide, area, class_="probe"))
    return probes
