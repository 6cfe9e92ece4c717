import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import hvcl
from hvcl.commands import stream as command
from hvcl.commands.main import main
from hvcl.runs.streaming import state_path

pandas = pytest.importorskip("pandas")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(rows, seed=0, shift=None):
    """Two numbers and a colour; the first number says which class; from row `shift` on the other way round."""
    random = np.random.default_rng(seed)
    y = random.choice(["ape", "bee"], rows)
    x = random.normal(size=(rows, 2)) + 3 * (y == "bee")[:, None] * np.array([1, 0])
    if shift is not None:
        x[shift:, 0] = 3 - x[shift:, 0]
    return pandas.DataFrame(
        {"day": np.arange(rows), "a": x[:, 0], "b": x[:, 1], "c": random.choice(["red", "blue"], rows), "y": y}
    )


def refused(capsys, *words):
    assert main(words) == 2
    found = capsys.readouterr().err.strip().splitlines()
    assert found[-1].startswith("hvcl: ")
    assert "Traceback" not in " ".join(found)
    return found[-1]


def result(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_file_is_predicted_learned_scored_and_reported(capsys, tmp_path):
    table(800, shift=500).to_csv("t.csv", index=False)
    assert main(["stream", "t.csv", "--label", "y", "--time", "day", "--save", "m", "--predictions", "p.jsonl", "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert found["rows"] == found["labelled"] == 800
    assert found["tested"] == 700
    assert found["columns"] == ["a", "b", "c"]
    assert found["accuracy"] > 0.7
    (event,) = found["drift"]
    assert event["expert"] == 2
    assert event["columns"] == []
    assert 500 < event["row"] <= 650
    assert f"{event['row']:>10,}  drift: " in out
    assert [event["row"], str(event["row"] - 1)] in found["times"]
    assert found["experts"] == 2
    assert f"accuracy {found['accuracy']:.3f}" in out
    # what was written
    predictions = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    labels = table(800, shift=500)["y"].tolist()
    assert [line["row"] for line in predictions] == list(range(1, 801))
    right = [line["predicted"] == label for line, label in zip(predictions[100:], labels[100:], strict=True)]
    assert sum(right) / 700 == pytest.approx(found["accuracy"])
    page = (tmp_path / found["report"]).read_text()
    assert "Experts over time" in page
    assert "labels follow another rule now: expert 2 is opened" in page
    model = hvcl.load("m")
    assert model.classes_.tolist() == ["ape", "bee"]
    assert (model.predict(table(800, shift=500)[["a", "b", "c"]][500:]) == labels[500:]).mean() > 0.9


def test_numbers_are_predicted_with_intervals(capsys):
    frame = table(400)
    frame["y"] = 2 * frame["a"] + frame["b"] + np.random.default_rng(1).normal(size=400) / 10
    frame.to_csv("t.csv", index=False)
    assert main(["stream", "t.csv", "--label", "y", "--drop", "day,c", "--json"]) == 0
    found = result(capsys)
    assert found["task"] == "regression"
    assert found["last"]["rmse"] < 0.5
    assert 0.75 < found["coverage"] <= 1
    assert found["reliability"] is None


@pytest.mark.parametrize("unit", [1e-7, 1e90])
def test_errors_are_shown_in_any_unit(capsys, unit):
    frame = table(250)
    frame["y"] = unit * (2 * frame["a"] + np.random.default_rng(1).normal(size=250))
    frame.to_csv("t.csv", index=False)
    assert main(["stream", "t.csv", "--label", "y", "--drop", "day,c", "--save", "m", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    found = json.loads(out[-1])
    assert 0.5 < found["mae"] / unit < 2
    assert f"mean absolute error {found['mae']:.3g}, " in "\n".join(out)
    assert max(map(len, out[:-1])) < 160


def test_rows_without_a_label_are_predicted_and_not_learned(capsys):
    frame = table(300)
    frame.loc[200:, "y"] = None
    frame.to_csv("t.csv", index=False)
    assert main(["stream", "t.csv", "--label", "y", "--predictions", "p.jsonl", "--json"]) == 0
    found = result(capsys)
    assert (found["rows"], found["labelled"], found["tested"]) == (300, 200, 100)
    with open("p.jsonl") as file:
        assert json.loads(file.readlines()[-1])["predicted"] in ("ape", "bee")


def test_an_interrupt_says_where_it_stopped_and_the_same_command_goes_on(capsys, monkeypatch):
    table(700, shift=400).to_csv("t.csv", index=False)
    words = ["stream", "t.csv", "--label", "y", "--time", "day", "--json", "--predictions"]
    assert main([*words, "whole.jsonl", "--save", "whole"]) == 0
    whole = result(capsys)

    learn, calls = hvcl.ContinualClassifier.partial_fit, []

    def learn_and_interrupt(self, *given, **named):
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)  # while a batch is learned: it is learned whole
        return learn(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(hvcl.ContinualClassifier, "partial_fit", learn_and_interrupt)
        assert main([*words, "parts.jsonl", "--save", "parts"]) == 130
    out = capsys.readouterr().out
    assert "interrupted after row 400 (line 401 of t.csv): go on with the same command" in out
    assert json.loads(out.splitlines()[-1])["interrupted"]
    assert main([*words, "parts.jsonl", "--save", "parts"]) == 0
    captured = capsys.readouterr()
    assert "goes on after row 400" in captured.err
    parts = json.loads(captured.out.splitlines()[-1])
    assert not parts["interrupted"]
    for name in ("rows", "tested", "accuracy", "log_loss", "drift", "windows", "reliability", "times"):
        assert parts[name] == whole[name], name
    with open("whole.jsonl") as one, open("parts.jsonl") as other:
        assert one.read() == other.read()
    # again: nothing is left to do; rows that were added are learned, others are refused
    assert main([*words, "parts.jsonl", "--save", "parts"]) == 0
    captured = capsys.readouterr()
    assert "no rows after these" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["rows"] == 700
    table(800, shift=400)[1:].to_csv("t.csv", index=False)
    assert "begins with other rows" in refused(capsys, *words, "parts.jsonl", "--save", "parts")
    assert "was learned with --time day" in refused(capsys, "stream", "t.csv", "--label", "y", "--save", "parts")
    assert main([*words, "parts.jsonl", "--save", "parts", "--again"]) == 0
    assert result(capsys)["rows"] == 799


def test_a_model_that_was_replaced_while_saving_finds_its_own_state(capsys, tmp_path):
    """A process that is killed between writing the state and the model leaves the older model with the older state."""
    table(300).to_csv("t.csv", index=False)
    words = ["stream", "t.csv", "--label", "y", "--save", "m", "--json"]
    assert main(words) == 0
    older = (tmp_path / "m").read_bytes()
    frame = pandas.concat([table(300), table(200, seed=5)])
    frame.to_csv("t.csv", index=False)
    assert main(words) == 0
    capsys.readouterr()
    (tmp_path / "m").write_bytes(older)
    assert len(json.loads(state_path(tmp_path / "m").read_text())["states"]) == 2
    assert main(words) == 0
    assert "goes on after row 300" in capsys.readouterr().err


def test_another_file_goes_on_with_the_model(capsys):
    table(300).to_csv("one.csv", index=False)
    frame = table(300, seed=3)
    frame.loc[:, "y"] = np.where(frame["y"] == "bee", "cat", "ape")
    frame.to_parquet("two.parquet")
    assert main(["stream", "one.csv", "--label", "y", "--save", "m"]) == 0
    capsys.readouterr()
    assert main(["stream", "two.parquet", "--label", "y", "--save", "m", "--json"]) == 0
    captured = capsys.readouterr()
    assert "the model in m goes on" in captured.err
    found = json.loads(captured.out.splitlines()[-1])
    assert (found["rows"], found["tested"]) == (300, 300)
    assert hvcl.load("m").classes_.tolist() == ["ape", "bee", "cat"]


def test_drift_stands_where_it_is_in_this_file_whatever_the_model_learned_before_and_which_rows_have_no_label(capsys):
    table(1000).to_csv("one.csv", index=False)
    frame = table(800, seed=3, shift=400)
    frame.loc[::2, "y"] = None
    frame.to_csv("two.csv", index=False)
    assert main(["stream", "one.csv", "--label", "y", "--drop", "day", "--save", "m"]) == 0
    capsys.readouterr()
    assert main(["stream", "two.csv", "--label", "y", "--drop", "day", "--save", "m", "--json"]) == 0
    (event,) = result(capsys)["drift"]
    assert 400 < event["row"] <= 700


def test_a_bad_row_ends_it_and_what_came_before_is_saved(capsys):
    frame = table(300)
    frame.to_csv("t.csv", index=False)
    with open("t.csv", "a") as file:
        file.write("9,much,1,red,ape\n")
    # read as numbers by the first rows, which is all that is looked at
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hvcl.streams.rows.LOOK", 200)
        line = refused(capsys, "stream", "t.csv", "--label", "y", "--save", "m")
    assert "line 302 of t.csv: 'a' is 'much'" in line
    assert "saved in m" in line
    assert hvcl.load("m").classes_.tolist() == ["ape", "bee"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.csv", "--label", "y"], "nothing.csv is missing"),
        ([".", "--label", "y"], "is a folder"),
        (["t.csv"], "--label"),
        (["t.csv", "--label", "z"], "no column 'z'"),
        (["t.csv", "--label", "y", "--drop", "q"], "no column 'q'"),
        (["t.csv", "--label", "y", "--method", "exactt"], "did you mean 'exact'"),
        (["t.csv", "--label", "y", "--batch", "0"], "at least 1"),
        (["t.csv", "--label", "a", "--method", "er"], "method exact"),
        (["t.csv", "--label", "y", "--answer", "now", "--method", "er"], "--answer"),
        (["t.csv", "--label", "y", "--save", "t.csv"], "t.csv is no estimator"),
        (["t.csv", "--label", "y", "--save", "models/m"], "there is no folder models: make it"),
        (["t.csv", "--label", "y", "--predictions", "out/p.jsonl"], "there is no folder out: make it"),
    ],
)
def test_mistakes_are_one_line(capsys, words, said):
    table(20).to_csv("t.csv", index=False)
    assert said in refused(capsys, "stream", *words)


def test_a_method_with_fixed_outputs_takes_the_labels_of_the_first_rows(capsys):
    frame = table(300).sort_values("y", kind="stable")
    frame.to_csv("t.csv", index=False)
    assert main(["stream", "t.csv", "--label", "y", "--method", "naive", "--batch", "260", "--json"]) == 0
    assert result(capsys)["method"] == "naive"


def test_standard_input_until_ctrl_c(tmp_path):
    """A real process, whose rows come one by one and which is stopped while it waits: all that came is learned."""
    frame = table(250)
    words = ["-m", "hvcl", "stream", "-", "--label", "y", "--batch", "50", "--save", "m", "--predictions", "p.jsonl", "--json"]
    process = subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for row in frame.to_dict("records"):
        process.stdin.write(json.dumps(row) + "\n")
    process.stdin.flush()
    deadline = time.monotonic() + 120
    out = tmp_path / "p.jsonl"
    while time.monotonic() < deadline and not (out.exists() and out.read_text().count("\n") >= 250):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    found, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    document = json.loads(found.splitlines()[-1])
    assert document["interrupted"]
    assert document["rows"] == 250
    assert "interrupted after row 250" in found
    assert "Traceback" not in said
    assert hvcl.load(tmp_path / "m").__sklearn_is_fitted__()


def test_the_running_table_has_a_line_for_every_part(capsys):
    table(400).to_csv("t.csv", index=False)
    assert main(["stream", "t.csv", "--label", "y", "--drop", "day", "--batch", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any("drift" in line for line in lines)
    shown = [int(line.split()[0].replace(",", "")) for line in lines[1:] if line.strip()[:1].isdigit() and "rows," not in line]
    assert shown == sorted(set(shown))
    assert len(shown) == command.LINES
    assert shown[-1] == 400
