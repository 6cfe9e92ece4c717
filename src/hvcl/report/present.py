"""A chart as an SVG file of its own: what the page's style sheet says of its classes, written into every element.

Colours are those of `page.css`, for light paper: figures in files look like those on the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from xml.etree import ElementTree

from markupsafe import Markup

from hvcl.report.part import asset

MARGIN = 10
"""Around the chart."""
FONT = "Helvetica Neue, Liberation Sans, DejaVu Sans, Arial, sans-serif"

_RULES: Mapping[str, Mapping[str, str]] = {
    "grid": {"stroke": "rule", "stroke-width": "1"},
    "boundary": {"stroke": "muted", "stroke-width": "1", "opacity": "0.35"},
    "mark": {"stroke": "accent", "stroke-width": "1", "stroke-dasharray": "3 3"},
    "mark-label": {"fill": "accent", "font-weight": "600"},
    "unseen": {"fill": "ink", "opacity": "0.05"},
    "line": {"fill": "none", "stroke": "line", "stroke-width": "2", "stroke-linejoin": "round", "stroke-dasharray": "dashes"},
    "band": {"fill": "line", "opacity": "0.14"},
    "dot": {"fill": "line"},
    "ring": {"fill": "paper", "stroke": "line", "stroke-width": "1.6"},
    "whisker": {"stroke": "line", "stroke-width": "1.6"},
    "leader": {"fill": "none", "stroke": "muted", "stroke-width": "0.7", "opacity": "0.45"},
    "cell-ground": {"fill": "raised"},
    "cell": {"fill": "heat"},
    "cell-text": {"fill": "heat-ink"},
    "heading": {"fill": "ink", "font-size": "12", "font-weight": "600"},
    "row-label": {"fill": "ink"},
    "key-label": {"fill": "ink", "font-size": "12"},
    "point-label": {"fill": "line"},
    "label": {"fill": "line", "font-size": "12", "font-weight": "600"},
}
"""By class, as in the style sheet; values that name a colour of the page stand for it, `line` for that of the series."""

_DROPPED = {"probe", "guide"}


@cache
def colours() -> Mapping[str, str]:
    """The page's colours on light paper, by name."""
    first = str(asset("page.css")).partition("@media")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-fA-F]{6});", first))


def presented(chart: Markup) -> ElementTree.Element:
    """The chart with attributes in place of classes, without what only answers to a pointer."""
    root = ElementTree.fromstring(str(chart))
    _present(root, {"line": colours()["ink"], "dashes": "none"})
    _, _, inner_width, inner_height = root.attrib["viewBox"].split()
    width, height = (f"{float(side) + 2 * MARGIN:.0f}" for side in (inner_width, inner_height))
    moved = ElementTree.Element("g", {"transform": f"translate({MARGIN} {MARGIN})"})
    moved.extend(list(root))
    size = {"width": width, "height": height}
    whole = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", **size})
    whole.attrib |= {name: root.attrib[name] for name in ("role", "aria-label") if name in root.attrib} | {"font-family": FONT}
    whole.append(ElementTree.Element("rect", {"x": "0", "y": "0", **size, "fill": "#ffffff"}))
    whole.append(moved)
    return whole


def svg_file(chart: Markup) -> str:
    """The chart as the text of an SVG file."""
    return ElementTree.tostring(presented(chart), encoding="unicode") + "\n"


def _present(element: ElementTree.Element, inherited: Mapping[str, str]) -> None:
    names = element.attrib.pop("class", "").split()
    values = dict(inherited)
    for name in names:
        if name in colours() and (name.startswith("series-") or name in ("upper", "lower")):
            values["line"] = colours()[name]
        values["dashes"] = {"dashes-1": "10 3", "dashes-2": "6 3 1 3", "upper": "7 4", "lower": "2 3.5"}.get(
            name, values["dashes"]
        )
    wanted = {"fill": "muted", "font-size": "11"} if element.tag == "text" else {}
    for name in names:
        wanted |= _RULES.get(name, {})
    for attribute, value in wanted.items():
        resolved = values.get(value) or colours().get(value, value)
        if resolved != "none" or attribute == "fill":
            element.attrib.setdefault(attribute, resolved)
    for child in list(element):
        if child.tag == "title" or _DROPPED & set(child.attrib.get("class", "").split()):
            element.remove(child)
        else:
            _present(child, values)
