import csv
import io
import json
import math
import sys

from markupsafe import Markup

from hvcl.report.statistic import Statistic
from hvcl.reproduce import REPRODUCTIONS, Column, Finding, Outcome, Row, Scale
from hvcl.reproduce.write import document, table, write

ONE = REPRODUCTIONS["table-mnist"]
PICTURE = Markup('<svg class="chart" viewBox="0 0 10 10"><text x="1" y="2">in the picture</text></svg>')
ROWS = [
    Row("ours <b>", "b", "Domain-IL", "boundaries", "none", 3, {"a": Statistic(90.0, 1.0, 3)}, {"a": Statistic(97.5, 0.3, 10)}),
    Row("quoted", "b", "Task-IL", "not stated", "not stated", 0, {}, {"a": Statistic(80.0, None, 10)}, "quoted"),
    Row("no figure", "b", "Domain-IL", "task-free", "500 examples", 1, {"a": None}),
]
OUTCOME = Outcome(
    ROWS, {"a": Column("accuracy %")}, PICTURE, [Finding("claim", "in part", "because")], ["a note"], {"x": math.nan}
)
SCALE = Scale("quick", (1, 2))


def test_the_table_has_ours_and_the_papers_side_by_side():
    rows = list(csv.DictReader(io.StringIO(table(OUTCOME))))
    assert [(row["a"], row["a_sd"], row["paper_a"]) for row in rows] == [("90.0", "1.0", "97.5"), ("", "", "80.0"), ("", "", "")]
    assert rows[1]["source"] == "quoted"
    assert rows[2]["memory"] == "500 examples"


def test_the_document_is_json_with_all_that_is_shown():
    found = json.loads(json.dumps(document(ONE, OUTCOME, SCALE), allow_nan=False))
    assert found["rows"][0]["values"]["a"] == {"mean": 90.0, "sd": 1.0, "seeds": 3}
    assert found["findings"] == [{"claim": "claim", "verdict": "in part", "because": "because"}]
    assert found["data"] == {"x": None}
    assert found["budget"] == "quick"


def test_the_page_needs_nothing_else_and_shows_setting_and_source_of_every_row(tmp_path):
    text = write(ONE, OUTCOME, SCALE, tmp_path).page.read_text()
    assert "in the picture" in text
    assert "ours &lt;b&gt;" in text
    for words in ("Task-IL", "task-free", "500 examples", "quoted", "97.50", "in part", "no evidence for or against", "a note"):
        assert words in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_a_mean_of_some_seeds_says_so(tmp_path):
    row = Row("agent", "chain", "task not given", "boundaries", "none", 3, {"a": Statistic(2.5, None, 1)})
    text = write(ONE, Outcome([row], {"a": Column("J")}, PICTURE, []), SCALE, tmp_path).page.read_text()
    assert "1 of 3 seeds" in text


def test_without_pillow_all_but_the_png_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    written = write(ONE, OUTCOME, SCALE, tmp_path)
    assert "hvcl[pictures]" in written.missing
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".json", ".csv", ".svg"}
