import pytest

from hvcl.core.errors import RunError
from hvcl.evaluation.prequential import ClassTotals, NumberTotals, Prequential
from hvcl.report.stream import stream_page, write_stream_report
from hvcl.runs.drift import DriftEvent
from hvcl.runs.streaming import StreamRecord

BINS = [[0.0, 0.0, 0.0]] * 14 + [[100.0, 95.0, 90.0]]


def record(task="classification", source="payments.csv"):
    totals = ClassTotals.from_state([100, 90, 30.0, BINS]) if task == "classification" else NumberTotals(100, 50.0, 36.0, 88)
    scores = Prequential(type(totals)(), 100)
    scores.add(100, None)
    scores.add(100, totals, {0: 192})
    scores.add(100, totals, {0: 25, 1: 75})
    times = [(100, "2024-01-01"), (200, "2024-02-01"), (300, "2024-03-01")]
    event = DriftEvent(300, "the stream has shifted: expert 2 is opened", 2)
    return StreamRecord(source, task, "kind", "day", "exact", ["a", "b"], scores, 300, 300, [event], times, 1.5)


def test_the_page_shows_the_scores_the_drift_and_the_experts():
    page = stream_page(record())
    assert "90.0 %" in page
    assert "0.300" in page
    assert '2024-03-01</td><td class="text">the stream has shifted: expert 2 is opened' in page
    assert 'class="mark-label"' in page
    assert "rows 201 to 300: 75 % of what was learned" in page
    assert "from row 1 on" in page, "rows that were kept until there were enough are learned late, and belong to the first expert"
    assert "confidence 95 %, 200 rows" in page
    assert page == stream_page(record())


def test_the_page_of_numbers_has_errors_and_intervals():
    page = stream_page(record("regression"))
    assert "Mean absolute error" in page
    assert "88.0 %" in page
    assert "Reliability" not in page


def test_names_are_escaped():
    page = stream_page(record(source="<script>alert(1)</script>.csv"))
    assert "<script>alert(1)" not in page


def test_a_stream_that_tested_nothing_has_a_page():
    short = record()
    short.scores, short.rows, short.events = Prequential(ClassTotals(), 100), 20, []
    short.scores.add(20, None)
    assert "None was noticed" in stream_page(short)


def test_a_folder_is_no_page(tmp_path):
    with pytest.raises(RunError, match="is a folder"):
        write_stream_report(record(), tmp_path)
