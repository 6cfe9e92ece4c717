from __future__ import annotations

from xml.etree import ElementTree

from markupsafe import Markup

from hvcl.report.present import MARGIN, colours, presented, svg_file

CHART = Markup(
    '<svg class="chart" viewBox="0 0 100 50"><g class="series-2 dashes-1"><polyline class="line" points="0,0 9,9"></polyline></g>'
    '<text class="label series-1" x="1" y="2">a &lt; b</text>'
    '<g class="probe"><rect x="0" y="0" width="9" height="9"><title>tip</title></rect></g></svg>'
)


def test_classes_become_attributes() -> None:
    root = presented(CHART)
    assert not [element for element in root.iter() if "class" in element.attrib]
    (line,) = root.iter("polyline")
    assert line.attrib["stroke"] == colours()["series-2"] == "#c44e00"
    assert line.attrib["stroke-dasharray"] == "10 3"
    assert line.attrib["fill"] == "none"
    (text,) = root.iter("text")
    assert text.attrib["fill"] == colours()["series-1"]


def test_what_answers_to_a_pointer_is_left_out() -> None:
    assert "tip" not in svg_file(CHART)
    assert len(list(presented(CHART).iter("rect"))) == 1, "the paper alone"


def test_the_file_is_an_svg_with_a_margin() -> None:
    root = ElementTree.fromstring(svg_file(CHART))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["viewBox"] == f"0 0 {100 + 2 * MARGIN} {50 + 2 * MARGIN}"
    assert "a &lt; b" in svg_file(CHART)
