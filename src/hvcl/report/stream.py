"""The page about a stream of one's own rows: scores over the stream with drift marks, reliability, experts over time."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from hvcl.core.errors import RunError
from hvcl.core.files import write_atomically
from hvcl.evaluation.prequential import ClassTotals, Window
from hvcl.report import words
from hvcl.report.charts import Axis, Point, Series, element, line_chart, nice_axis
from hvcl.report.part import Part, asset, template
from hvcl.runs.streaming import LEVEL, StreamRecord

SIZES = {"wide": (1060, 300), "narrow": (430, 260)}
"""Of charts over the stream, by the kind of screen."""

_MOST_EVENTS = 200
_MARKED = 40
"""Drift events that have a mark in the chart; more would hide the line."""


@dataclass(frozen=True)
class Event:
    """A row of the table of drift events."""

    mark: int
    row: str
    time: str
    text: str


@dataclass(frozen=True)
class Bar:
    """A stretch in which an expert learned: places in percent, the strength is its share of the rows."""

    left: float
    width: float
    strength: float
    tip: str


@dataclass(frozen=True)
class Lane:
    """One expert over time."""

    number: int
    opened: str
    rows: str
    bars: tuple[Bar, ...]


def stream_page(record: StreamRecord, title: str | None = None) -> str:
    """The page, which needs nothing but itself."""
    classes = record.task == "classification"
    events = [
        Event(mark, words.whole(event.row), _time_of(record, event.row), event.text)
        for mark, event in enumerate(record.events[:_MOST_EVENTS], 1)
    ]
    courses = _class_courses(record) if classes else _number_courses(record)
    lanes = _lanes(record)
    links = [("result", "Result"), *((id, heading) for id, heading, _, _ in courses), ("drift", "Drift")]
    links += [("experts", "Experts over time")] if lanes else []
    axis = nice_axis([0.0, float(record.rows)], count=6)
    content = template(
        "stream.html",
        interrupted=_interrupted(record),
        figures=_figures(record),
        notes=record.notes,
        courses=courses,
        events=events,
        more_events=max(0, len(record.events) - _MOST_EVENTS),
        timed=bool(record.times),
        lanes=lanes,
        lanes_description="; ".join(f"expert {lane.number} {lane.opened}, learned {lane.rows}" for lane in lanes),
        ticks=[(round(100 * place / record.rows, 2), label) for place, label in axis.ticks if 0 <= place <= record.rows],
        settings=_settings(record),
    )
    lead = f"{words.whole(record.rows)} row{'' if record.rows == 1 else 's'}, one after another: predicted first, then learned."
    name = title or f"{Path(record.source).name}: {record.label}"
    part = Part("stream", name, name, (record.source,), lead, tuple(links), content)
    return template("page.html", title=name, lead=lead, parts=[part], style=asset("page.css"), script=asset("page.js"))


def write_stream_report(record: StreamRecord, output: Path, title: str | None = None) -> Path:
    """Write the page to a file, which appears whole or not at all; returns its path."""
    if output.is_dir():
        raise RunError(f"{output} is a folder: give the name of the HTML file to write, such as {output / 'stream.html'}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, stream_page(record, title))
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror}") from None
    return output


# -- numbers ---------------------------------------------------------------------------------------------------------------


def _figures(record: StreamRecord) -> list[tuple[str, str, str, str]]:
    """Name, value, the same of the last part, and meaning."""
    total, last = record.scores.total, record.scores.last()
    scores, late = total.scores(), last.scores()
    rows: list[tuple[str, str, str, str]] = [
        ("Rows", words.whole(record.rows), f"{words.whole(total.rows)} predicted", "Rows so far, and those that were tested")
    ]
    names = {
        "accuracy": ("Accuracy", 100.0, " %", "Share of the rows whose most probable class was right"),
        "log_loss": ("Log loss", 1.0, "", "Mean negative log probability of the labels, in nats"),
        "calibration_error": (
            "Calibration error",
            100.0,
            " %",
            "Mean distance of confidence and accuracy, over bins of confidence",
        ),
        "mae": ("Mean absolute error", 1.0, "", "In the unit of the labels"),
        "rmse": ("Root mean squared error", 1.0, "", "In the unit of the labels"),
        "coverage": (
            f"In {100 * LEVEL:.0f} % interval",
            100.0,
            " %",
            f"Share of the labels in their {100 * LEVEL:.0f} % interval",
        ),
    }
    for name, value in scores.items():
        heading, factor, unit, meaning = names[name]

        def shown(value: float, factor: float = factor, unit: str = unit) -> str:
            return (words.decimal(factor * value, 1) if unit else words.significant(value)) + unit

        note = f"last {words.whole(last.rows)}: {shown(late[name])}" if 0 < last.rows < total.rows else ""
        rows.append((heading, shown(value), note, meaning))
    experts = {number for window in record.scores.windows for number in window.experts}
    rows.append(("Drift events", words.whole(len(record.events)), words.counted(len(experts), "expert") if experts else "", ""))
    return rows


def _settings(record: StreamRecord) -> list[tuple[str, str]]:
    listed = ", ".join(record.columns[:40]) + (f" and {len(record.columns) - 40} more" if len(record.columns) > 40 else "")
    return [
        ("Source", record.source),
        ("Label", f"{record.label} ({record.task})"),
        ("Time", record.time or words.MISSING),
        ("Method", record.method),
        ("Columns", listed),
        ("Rows with a label", words.whole(record.labelled)),
        ("Learning and predicting", words.duration(record.seconds)),
    ]


def _interrupted(record: StreamRecord) -> str:
    return f"Interrupted after row {words.whole(record.rows)}: the stream goes on." if record.interrupted else ""


def _time_of(record: StreamRecord, row: int) -> str:
    if not record.times:
        return ""
    place = bisect.bisect_left(record.times, row, key=lambda mark: mark[0])
    return record.times[min(place, len(record.times) - 1)][1]


# -- charts ----------------------------------------------------------------------------------------------------------------


def _tested(record: StreamRecord) -> list[tuple[float, Window[Any]]]:
    """The windows with tested rows, each with the middle of its rows."""
    found, start = [], 0
    for window in record.scores.windows:
        if window.totals.rows:
            found.append(((start + window.end) / 2, window))
        start = window.end
    return found


def _rows_axis(record: StreamRecord, count: int) -> Axis:
    ticks = nice_axis([0.0, float(record.rows)], count=count).ticks
    return Axis(0.0, float(record.rows), tuple(tick for tick in ticks if 0 <= tick[0] <= record.rows), "row")


def _course(record: StreamRecord, lines: Sequence[Series], y: Axis, description: str, value: Any) -> Markup:
    windows = dict(_tested(record))

    def tip(place: float) -> str:
        window = windows[place]
        time = _time_of(record, window.end)
        return f"row {words.whole(window.end)}{f', {time}' if time else ''}"

    marks = [(float(event.row), str(mark)) for mark, event in enumerate(record.events[:_MARKED], 1)]
    charts = [
        element(
            "div",
            line_chart(
                lines,
                size=size,
                x=_rows_axis(record, 6 if screen == "wide" else 3),
                y=y,
                description=description,
                tip=tip,
                value=value,
                marks=marks,
                markers=False,
            ),
            class_=screen,
        )
        for screen, size in SIZES.items()
    ]
    return Markup("").join(charts)


def _line(record: StreamRecord, name: str, label: str, style: str, factor: float = 1.0) -> Series:
    points = tuple(Point(place, factor * window.totals.scores()[name]) for place, window in _tested(record))
    return Series(label, style, points)


def _percent_axis(lines: Sequence[Series]) -> Axis:
    low = min((point.y for line in lines for point in line.points), default=0.0)
    axis = nice_axis([max(0.0, min(low, 90.0)), 100.0])
    return Axis(max(axis.low, 0.0), 100.0, tuple(tick for tick in axis.ticks if 0 <= tick[0] <= 100))


def _class_courses(record: StreamRecord) -> list[tuple[str, str, str, Markup]]:
    total = record.scores.total
    if not total.rows or not isinstance(total, ClassTotals):
        return []
    width = f"{words.whole(record.scores.width)} rows"
    lines = [_line(record, "accuracy", "accuracy", "series-1 dashes-0", 100.0)]
    accuracy = _course(
        record, lines, _percent_axis(lines), "Accuracy in percent over the rows of the stream",
        lambda point: f"{words.decimal(point.y, 1)} %",
    )  # fmt: skip
    caption = f"In percent, over windows of {width}. Dashed: drift, numbered as below."
    return [
        ("accuracy", "Accuracy over the stream", caption, accuracy),
        (
            "reliability",
            "Reliability",
            "Of the predictions with a certain confidence, the share that was right, in percent: on the dashed line, a model is "
            "as sure as it is right. Shaded: one standard error.",
            _reliability(total),
        ),
    ]


def _reliability(total: ClassTotals) -> Markup:
    filled = [(count, sure / count, right / count) for count, sure, right in total.bins.tolist() if count]
    counts = {100 * sure: count for count, sure, _ in filled}
    # one standard error of a share, of at least one row's weight: a bin with few rows says little
    spread = [math.sqrt(max(right * (1 - right), 1 / count) / count) for count, _, right in filled]
    points = tuple(Point(100 * sure, 100 * right, 100 * e) for (_, sure, right), e in zip(filled, spread, strict=True))
    axis = Axis(0.0, 100.0, tuple((float(tick), str(tick)) for tick in range(0, 101, 20)))
    ideal = Series("as sure as right", "upper", (Point(0.0, 0.0), Point(100.0, 100.0)))

    def tip(place: float) -> str:
        return f"confidence {words.decimal(place, 0)} %" + (f", {words.whole(counts[place])} rows" if place in counts else "")

    return line_chart(
        [ideal, Series("right", "series-1 dashes-0", points)],
        size=(430, 400),
        x=Axis(0.0, 100.0, axis.ticks, "confidence in percent"),
        y=axis,
        description="Share of right predictions against their confidence, in percent",
        tip=tip,
        value=lambda point: f"{words.decimal(point.y, 1)} %",
    )


def _number_courses(record: StreamRecord) -> list[tuple[str, str, str, Markup]]:
    if not record.scores.total.rows:
        return []
    width = f"{words.whole(record.scores.width)} rows"
    error = [_line(record, "mae", "mean absolute error", "series-1 dashes-0")]
    inside = [_line(record, "coverage", "in their interval", "series-1 dashes-0", 100.0)]
    axis = nice_axis([0.0, *(point.y for line in error for point in line.points)])
    return [
        (
            "error",
            "Error over the stream",
            f"Mean absolute error, over windows of {width}. Dashed: drift, numbered as below.",
            _course(record, error, axis, "Mean absolute error over the rows", lambda point: words.significant(point.y)),
        ),
        (
            "coverage",
            "Intervals",
            f"Share of the labels that lie in their {100 * LEVEL:.0f} % interval, in percent, over windows of {width}.",
            _course(
                record, inside, _percent_axis(inside), "Share of the labels in their intervals, in percent",
                lambda point: f"{words.decimal(point.y, 1)} %",
            ),
        ),
    ]  # fmt: skip


# -- experts ---------------------------------------------------------------------------------------------------------------


def _lanes(record: StreamRecord) -> list[Lane]:
    """One lane for each expert, if there are any."""
    windows = record.scores.windows
    starts = [0, *(window.end for window in windows)]
    lanes = []

    opening = next(((place, min(window.experts)) for place, window in enumerate(windows) if window.experts), None)

    def start(place: int, number: int) -> int:
        if (place, number) == opening:
            return 0
        # the first rows are kept until there are enough of them, and then learned at once; of a block, at its end
        return max(0, min(starts[place], windows[place].end - windows[place].experts.get(number, 0)))

    for number in sorted({number for window in windows for number in window.experts}):
        shares = [window.experts.get(number, 0) / max(sum(window.experts.values()), 1) for window in windows]
        bars = []
        for percent, run in itertools.groupby(range(len(windows)), key=lambda place: round(100 * shares[place])):
            places = list(run)
            if not percent:
                continue
            first, end = start(places[0], number), windows[places[-1]].end
            tip = f"rows {words.whole(first + 1)} to {words.whole(end)}: {percent} % of what was learned"
            left, width = 100 * first / record.rows, 100 * (end - first) / record.rows
            bars.append(Bar(round(left, 3), round(width, 3), percent / 100, tip))
        first_window = next(place for place, window in enumerate(windows) if number in window.experts)
        opened = f"from row {words.whole(start(first_window, number) + 1)} on"
        rows = f"{words.whole(sum(window.experts.get(number, 0) for window in windows))} rows"
        lanes.append(Lane(number + 1, opened, rows, tuple(bars)))
    return lanes
