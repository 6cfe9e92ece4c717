"""Charts beside and below each other as one figure, with one legend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hvcl.report.charts import element

_CHARACTER = 6.8  # width at 12 px
_BETWEEN = 22
_TITLE = 20


@dataclass(frozen=True)
class Panel:
    """A chart (an SVG with a viewBox that begins at 0 0), and what stands above it."""

    title: str
    chart: Markup


@dataclass(frozen=True)
class Key:
    """An entry of the legend; a `ring` is a hollow point, `dot` a filled one, else it is a line."""

    label: str
    style: str
    mark: str = "line"


def figure(rows: Sequence[Sequence[Panel]], legend: Sequence[Key], width: int, description: str) -> Markup:
    """Rows of panels, each as wide as its chart says, below a legend."""
    parts, top = _legend(legend, width)
    for row in rows:
        left, tallest = 0.0, 0.0
        for panel in row:
            across, down = size_of(panel.chart)
            parts.append(element("text", panel.title, class_="heading", x=left, y=top + 12))
            parts.append(element("g", inside(panel.chart), transform=f"translate({left:.0f} {top + _TITLE:.0f})"))
            left, tallest = left + across + _BETWEEN, max(tallest, down)
        top += _TITLE + tallest + _BETWEEN
    height = f"{top - _BETWEEN + 4:.0f}"
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {width} {height}", role="img", aria_label=description)


def across_of(count: int, width: int) -> int:
    """The width of each of `count` panels in a row."""
    return (width - (count - 1) * _BETWEEN) // count


def size_of(chart: Markup) -> tuple[float, float]:
    """Width and height of a chart."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart)
    assert found is not None
    return float(found[1]), float(found[2])


def inside(chart: Markup) -> Markup:
    """What is inside an SVG element."""
    return Markup(str(chart)[chart.index(">") + 1 : -len("</svg>")])


def _legend(keys: Sequence[Key], width: int) -> tuple[list[Markup], float]:
    """The legend from the top on, in as many lines as it needs, and where it ends."""
    parts: list[Markup] = []
    x, y = 0.0, 0.0
    for key in keys:
        needed = 30 + len(key.label) * _CHARACTER + 18
        if x and x + needed > width:
            x, y = 0.0, y + 18
        mark = (
            element("line", class_="line", x1=x, x2=x + 24, y1=y + 8, y2=y + 8)
            if key.mark == "line"
            else element("circle", class_=key.mark, cx=x + 12, cy=y + 8, r=4.0)
        )
        parts.append(element("g", mark, class_=key.style))
        parts.append(element("text", key.label, class_="key-label", x=x + 30, y=y + 12))
        x += needed
    return parts, y + 28 if keys else 0.0
