from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest

from hvcl.report.charts import Axis
from hvcl.report.dots import Dot, DotRow, Named, dot_plot, named_points, spread_out

AXIS = Axis(0.0, 100.0, ((0.0, "0"), (100.0, "100")), "accuracy")


def test_a_row_has_its_points_at_their_values_and_rings_for_those_of_others() -> None:
    rows = [DotRow("a", (Dot(25.0, 5.0), Dot(75.0, ring=True))), DotRow("b", (Dot(math.nan),))]
    chart = ElementTree.fromstring(dot_plot(rows, width=400, x=AXIS, description="dots"))
    filled, hollow = chart.findall(".//circle")
    assert (filled.attrib["class"], hollow.attrib["class"]) == ("dot", "ring")
    low, high = (float(line.attrib["x1"]) for line in chart.findall("./line"))
    assert float(filled.attrib["cx"]) == pytest.approx(low + (high - low) / 4, abs=0.1)
    assert len(chart.findall(".//line[@class='whisker']")) == 1


def test_names_never_cover_each_other_and_stay_in_the_picture() -> None:
    points = [Named(f"method {number}", 10.0, 97.0 + 0.01 * number) for number in range(20)]
    chart = ElementTree.fromstring(named_points(points, size=(640, 400), x=AXIS, y=AXIS, description="plane"))
    places = sorted(float(text.attrib["y"]) for text in chart.iter("text") if text.text and text.text.startswith("method"))
    assert len(places) == 20
    assert all(after - before >= 12.9 for before, after in itertools.pairwise(places))
    assert 0 < places[0] < places[-1] < 400


def test_places_are_moved_no_further_than_needed() -> None:
    assert spread_out([10.0, 50.0, 51.0], 10.0, 0.0, 100.0) == [10.0, 50.0, 60.0]
    assert spread_out([95.0, 99.0], 10.0, 0.0, 100.0) == [90.0, 100.0]
    assert spread_out([], 10.0, 0.0, 100.0) == []
