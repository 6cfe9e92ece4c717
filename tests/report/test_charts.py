from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from hvcl.report.charts import Axis, Point, Series, element, line_chart, nice_axis


def draw(*series: Series, direct_labels: bool = False) -> ElementTree.Element:
    axis = Axis(0.0, 10.0, ((0.0, "0"), (10.0, "10")))
    return ElementTree.fromstring(
        line_chart(
            series,
            size=(300, 200),
            x=axis,
            y=axis,
            description="a chart",
            tip=lambda x: f"at {x:.0f}",
            value=lambda point: f"{point.y:.1f}",
            direct_labels=direct_labels,
        )
    )


def line(*values: float, label: str = "a") -> Series:
    return Series(label, "series-1", tuple(Point(float(x), y) for x, y in enumerate(values)))


def test_elements_escape_text_and_attributes() -> None:
    assert element("text", "<b>&", class_='"x"', text_anchor="end") == (
        '<text class="&#34;x&#34;" text-anchor="end">&lt;b&gt;&amp;</text>'
    )


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.0, 1.0], ["0.0", "0.5", "1.0"]),
        ([-0.55, -0.02], ["−0.6", "−0.4", "−0.2", "0.0"]),
        ([120.0, 880.0], ["0", "500", "1,000"]),
        ([3.0, 3.0], ["1", "2", "3", "4", "5"]),
        ([], ["0.0", "0.5", "1.0"]),
        ([math.nan, 0.0, 3e-7], ["0", "1e−07", "2e−07", "3e−07"]),
    ],
)
def test_ticks_are_round(values: list[float], labels: list[str]) -> None:
    axis = nice_axis(values, count=3)

    assert [label for _, label in axis.ticks] == labels
    assert all(axis.low <= value <= axis.high for value in values if math.isfinite(value))


def test_a_missing_value_interrupts_the_line() -> None:
    lines = draw(line(1.0, 2.0, math.nan, 4.0, 5.0)).findall(".//polyline")

    assert [len(part.attrib["points"].split()) for part in lines] == [2, 2]


def test_tooltips_tell_each_line_at_each_place() -> None:
    titles = [title.text for title in draw(line(1.0, 2.0), line(3.0, label="b")).findall(".//title")]

    assert titles == ["at 0\nb  3.0\na  1.0", "at 1\na  2.0"]


def test_labels_at_the_ends_do_not_overlap_or_leave_the_chart() -> None:
    chart = draw(*(line(0.0, 0.1, label=f"method {number}") for number in range(8)), direct_labels=True)
    places = sorted(float(text.attrib["y"]) for text in chart.findall(".//text[@class='label series-1']"))

    assert len(places) == 8
    assert all(after - before >= 13.9 for before, after in itertools.pairwise(places))
    assert 0 < places[0] < places[-1] < 200


def test_points_stay_inside_the_chart() -> None:
    chart = draw(Series("a", "series-1", (Point(0.0, 9.0, 5.0), Point(10.0, 1.0, 5.0))))
    (band,) = chart.findall(".//polygon")

    heights = [float(height) for height in re.findall(r",([-\d.]+)", band.attrib["points"])]
    assert min(heights) >= 10
    assert max(heights) <= 178
