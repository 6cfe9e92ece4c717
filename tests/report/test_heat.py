from __future__ import annotations

from xml.etree import ElementTree

from hvcl.report.heat import Shade, heat_map, shades


def test_the_smallest_value_is_palest_and_the_largest_strongest() -> None:
    (first,), (second,) = shades([[2.0], [6.0]], [["2"], ["6"]])
    assert (first.strength, second.strength) == (0.0, 1.0)
    assert shades([[3.0, 3.0]], [["3", "3"]])[0][1].strength == 0.5


def test_cells_stand_in_their_row_and_column_and_do_not_overlap() -> None:
    cells = [[Shade("a", 0.0), None], [Shade("b", 0.5), Shade("c", 2.0)]]
    chart = ElementTree.fromstring(heat_map(cells, ["one", "two"], ["left", "right"], width=200, description="grid"))
    boxes = [rect.attrib for rect in chart.iter("rect") if rect.attrib["class"] == "cell"]
    assert len(boxes) == 3
    assert boxes[2]["fill-opacity"] == "1.00", "strength ends at 1"
    assert float(boxes[0]["y"]) < float(boxes[1]["y"]) == float(boxes[2]["y"])
    assert float(boxes[1]["x"]) + float(boxes[1]["width"]) < float(boxes[2]["x"])
    assert float(boxes[2]["x"]) + float(boxes[2]["width"]) <= 200
