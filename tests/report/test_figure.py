from __future__ import annotations

import re
from xml.etree import ElementTree

from markupsafe import Markup

from hvcl.report.figure import Key, Panel, across_of, figure, inside, size_of

CHART = Markup('<svg class="chart" viewBox="0 0 300 100"><text x="1" y="2">in it</text></svg>')


def test_panels_stand_beside_and_below_each_other() -> None:
    drawn = ElementTree.fromstring(figure([[Panel("a", CHART), Panel("b", CHART)], [Panel("c", CHART)]], [], 640, "all"))
    moves = [re.fullmatch(r"translate\((\d+) (\d+)\)", g.attrib["transform"]) for g in drawn.findall("g")]
    places = [(int(move[1]), int(move[2])) for move in moves if move]
    assert places[0][1] == places[1][1] < places[2][1] - 100
    assert places[1][0] >= 300
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    assert (width, places[2][1] + 100 <= height) == (640, True)


def test_a_legend_that_is_too_long_goes_on_in_the_next_line() -> None:
    keys = [Key(f"a rather long name {number}", "series-1") for number in range(6)]
    drawn = ElementTree.fromstring(figure([[Panel("a", CHART)]], keys, 640, "all"))
    names = [text for text in drawn.findall("text") if text.attrib["class"] == "key-label"]
    assert len({text.attrib["y"] for text in names}) > 1
    assert max(float(text.attrib["x"]) for text in names) < 600


def test_what_is_known_of_a_chart() -> None:
    assert size_of(CHART) == (300.0, 100.0)
    assert inside(CHART) == '<text x="1" y="2">in it</text>'
    assert 2 * across_of(2, 640) <= 640 - 22
