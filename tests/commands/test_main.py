import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from hvcl.commands.main import COMMANDS, main
from hvcl.commands.options import parse_seeds
from hvcl.learners import known_methods
from hvcl.runs import RunConfig
from hvcl.streams import BENCHMARKS, StreamConfig

RESULTS = Path(__file__).parents[2] / "results"
QUICK = ["--epochs", "1", "--batch-size", "64", "--hidden", "8"]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HVCL_DATA", str(tmp_path / "no-data"))


def refused(capsys, *words):
    """Runs the command, which must fail with one clear line and exit code 2; returns that line."""
    assert main(words) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("hvcl: ")
    return lines[0]


def test_run_prints_a_table_and_leaves_a_run_folder(capsys, tmp_path):
    assert main(["run", "split-digits", "--method", "naive", "--seeds", "1", *QUICK]) == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "runs/split-digits-domain-naive/seed-1/result.json").read_text())
    assert f"{100 * result['average_accuracy']:.2f}" in out
    assert "Domain-IL" in out
    assert "boundaries" in out
    assert "none" in out


def test_json_is_the_last_line_and_complete(capsys):
    words = ["run", "split-digits", "--method", "hvcl", "--scenario", "class", "--task-free", "--seeds", "1,2", "--json", *QUICK]
    assert main([*words, "--experts", "3", "--workers", "1"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["benchmark"] == "split-digits"
    assert document["scenario"] == "class"
    assert document["supervision"] == "task-free"
    assert document["memory"] == "none"
    assert document["method"] == "hvcl"
    assert document["seeds"] == [1, 2]
    assert [result["seed"] for result in document["results"]] == [1, 2]
    for result in document["results"]:
        matrix = result["accuracy_matrix"]
        assert len(matrix) == 5
        assert {len(row) for row in matrix} == {5}
        assert result["average_accuracy"] == pytest.approx(sum(matrix[-1]) / 5)
        assert result["seconds"] > 0
        assert "forgetting" in result
        assert all(len(usage) == 3 for usage in result["layers"]["head"]["usage"])


def test_seeds_in_processes_give_the_same_numbers_as_one_by_one(capsys):
    words = ["run", "split-digits", "--method", "naive", "--seeds", "1,2", "--json", *QUICK]
    documents = []
    for workers in ("1", "2"):
        assert main([*words, "--workers", workers, "--out", f"out-{workers}"]) == 0
        documents.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    for one, two in zip(documents[0]["results"], documents[1]["results"], strict=True):
        assert one["accuracy_matrix"] == two["accuracy_matrix"]
        assert one["nll"] == two["nll"]


def test_a_second_run_needs_resume_or_force(capsys):
    words = ["run", "split-digits", "--method", "naive", "--json", "--out", "out", *QUICK]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "--resume" in refused(capsys, *words)
    assert main([*words, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == first
    assert "holds another run" in refused(capsys, *words, "--resume", "--learning-rate", "0.5")
    assert main([*words, "--force", "--learning-rate", "0.5"]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "split-digitz"], "did you mean 'split-digits'"),
        (["run", "split-digits", "--method", "hvlc"], "did you mean 'hvcl'"),
        (["run"], "which benchmark"),
        (["run", "split-digits", "--expertz", "3"], "did you mean --experts"),
        (["run", "split-digits", "--experts", "three"], "an integer"),
        (["run", "split-digits", "--experts", "0"], "experts"),
        (["run", "split-digits", "--experts"], "--experts: expected one argument"),
        (["run", "split-digits", "--scenario", "clas"], "one of task, domain, class"),
        (["run", "split-digits", "--seeds", "one"], "seeds"),
        (["run", "split-digits", "--seeds", "1,1"], "seeds"),
        (["run", "split-digits", "--workers", "0"], "workers"),
        # input that would never end, or that no machine has room for
        (["run", "split-digits", "--seeds", "0-99999999"], "at most 10,000 seeds"),
        (["run", "split-digits", "--seeds", "-".join(["1", "9" * 60])], "at most 10,000 seeds"),
        (["run", "split-digits", "--epochs", "99999999999999999999"], "epochs must lie between"),
        (["run", "split-digits", "--epochs", "999999999"], "days"),
        (["run", "split-digits", "--method", "joint", "--epochs", "50000000"], "days"),
        (["run", "split-digits", "--task-free", "--blur", "0.5", "--epochs", "10000000"], "of memory"),
        (["run", "split-digits", "--method", "naive", "--hidden", "2000000000,2000000000"], "memory"),
        (["run", "split-digits", "--experts", "1000000000"], "memory"),
        (["run", "split-digits", "--method", "exact", "--random-features", "2000000"], "memory"),
        (["run", "split-digits", "--beta-expert", "1e30"], "beta_expert must lie between"),
        (["run", "split-digits", "--beta-expert", "1" + "0" * 400], "--beta-expert must be a number"),
        (["run", "split-digits", "--method", "ewc", "--strength=-1e300"], "strength must lie between"),
        (["compare", "split-digits", "--methods", "naive,naive"], "naive twice"),
        (["rl", "run", "--environments", "99999999999"], "environments must lie between"),
        (["rl", "run", "--environments", "20000"], "environments must be at most"),
        (["rl", "run", "--steps", "2000000000"], "days"),
        (["rl", "run", "--evaluate-every", "1", "--episodes", "1000000"], "evaluate less often"),
        (["rl", "run", "--hidden", "2000000000,2000000000"], "memory"),
        (["rl", "run", "--capacity", "2000000000"], "memory"),
        (["check", "nowhere"], "nowhere"),
        (["check", str(RESULTS), "--seconds", "nan"], "--seconds"),
        (["check", str(RESULTS), "--seconds", "0"], "nothing was checked"),
        (["check", str(RESULTS), "--tolerance", "inf"], "--tolerance"),
        (["check", str(RESULTS.parent)], "no results"),
        (["run", "split-digits", "--blur", "0.5"], "task_free"),
        (["run", "split-digits", "--class-order", "1,2"], "class_order"),
        (["run", "split-digits", "--channels", "8", "--hidden", "8", "--device", "nowhere"], "nowhere"),
        (["run", "split-digits", "extra"], "extra"),
        (["report", "nowhere"], "nowhere"),
        (["report"], "DIR"),
        (["data", "get"], "which data set"),
        (["data", "get", "mnits"], "did you mean 'mnist'"),
        (["data", "verify", "mnist"], "mnist"),
        (["data", "fetch"], "fetch"),
        (["lisst"], "unknown command 'lisst': did you mean 'list'"),
        (["--nope"], "unknown option --nope"),
        (["-V"], "unknown option -V"),
        (["--version", "extra"], "unknown option --version"),
        (["run", "split-digits", "--validation=maybe"], "--validation must be"),
        (["run", "split-digits", "--task-free=maybe"], "--task-free must be true or false"),
        (["completion"], "shell"),
        (["completion", "csh"], "csh"),
        (["list", "--what"], "--what"),
    ],
)
def test_bad_use_is_one_clear_line_and_exit_code_2(capsys, tmp_path, words, expected):
    assert expected in refused(capsys, *words)
    assert not (tmp_path / "runs").exists()


def test_missing_data_without_network_says_which_files_to_put_where(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("requests.sessions.Session.send", _no_network)
    line = refused(capsys, "run", "split-mnist", "--method", "naive")
    assert "train-images-idx3-ubyte.gz" in line
    assert str(tmp_path / "no-data") in line
    assert not (tmp_path / "runs").exists()


def _no_network(*_, **__):
    import requests

    raise requests.ConnectionError("no network")


def test_a_damaged_checkpoint_is_one_clear_line(capsys, tmp_path):
    words = ["run", "split-digits", "--method", "naive", "--out", "out", *QUICK]
    assert main(words) == 0
    capsys.readouterr()
    (tmp_path / "out/seed-1/result.json").unlink()
    tensors = next((tmp_path / "out/seed-1").glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:100])
    assert tensors.name in refused(capsys, *words, "--resume")


def test_a_damaged_result_is_one_clear_line(capsys, tmp_path):
    words = ["run", "split-digits", "--method", "naive", "--out", "out", *QUICK]
    assert main(words) == 0
    capsys.readouterr()
    (tmp_path / "out/seed-1/result.json").write_text("{")
    assert "result.json" in refused(capsys, *words, "--resume")


def test_list_names_every_benchmark_and_method(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*BENCHMARKS, *known_methods()))
    assert main(["list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["methods"]) == set(known_methods())


@pytest.mark.parametrize("method", sorted(known_methods()))
def test_help_shows_every_setting_of_the_method_with_its_text(capsys, method):
    assert main(["run", "--method", method, "--help"]) == 0
    out = capsys.readouterr().out
    for config in (StreamConfig, known_methods()[method].config):
        for field in config.__dataclass_fields__:
            assert f"--{field.replace('_', '-')}" in out


@pytest.mark.parametrize(("word", "value"), [("--no-restart", False), ("--restart=false", False), ("--restart", True)])
def test_booleans_can_be_negated(word, value, monkeypatch):
    seen = []
    monkeypatch.setattr("hvcl.commands.run.execute", lambda config, *_, **__: seen.append(config) or sys.exit())
    with pytest.raises(SystemExit):
        main(["run", "split-digits", "--method=joint", word, *QUICK])
    assert seen[0].learner.restart is value


def test_hvcl_alone_is_help_and_knows_its_version(capsys):
    for words in ([], ["--help"], ["-h"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"  {name} " in shown for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("hvcl")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"usage: hvcl {name}" in capsys.readouterr().out


def test_data_list_says_what_is_missing(capsys, tmp_path):
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert str(tmp_path / "no-data") in out
    assert "embedded" in out
    assert "missing" in out


def test_report_is_written_beside_the_run(capsys, tmp_path):
    assert main(["run", "split-digits", "--method", "naive", "--out", "out", *QUICK]) == 0
    assert main(["report", "out"]) == 0
    page = (tmp_path / "out/report.html").read_text()
    result = json.loads((tmp_path / "out/seed-1/result.json").read_text())
    assert f"{100 * result['average_accuracy']:.2f}" in page
    assert main(["run", "split-digits", "--method", "naive", "--out", "out", "--resume", *QUICK]) == 0


def test_seeds_as_lists_and_ranges():
    assert parse_seeds("1,2,3") == (1, 2, 3)
    assert parse_seeds("1-3,7") == (1, 2, 3, 7)


def test_ctrl_c_saves_and_the_run_goes_on(tmp_path):
    """In a process of its own, as from a terminal: interrupt, exit code 130, resume to the same end as an undisturbed run."""
    command = [sys.executable, "-m", "hvcl", "run", "split-digits", "--method", "hvcl", "--hidden", "8", "--epochs", "6"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--out", "broken"], stderr=subprocess.PIPE, text=True, env=environment)
    metrics = tmp_path / "broken/seed-1/metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 2000):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    error = process.communicate()[1]
    assert process.returncode == 130, error
    assert "--resume" in error
    assert "Traceback" not in error
    assert not (tmp_path / "broken/seed-1/result.json").exists()
    assert main([*command[3:], "--out", "broken", "--resume"]) == 0
    assert main([*command[3:], "--out", "whole"]) == 0
    assert metrics.read_bytes() == (tmp_path / "whole/seed-1/metrics.jsonl").read_bytes()


def test_compare_runs_every_method_alike_and_goes_on_where_it_stopped(capsys, tmp_path):
    command = ["compare", "split-digits", "--methods", "naive,exact", "--seeds", "1", "--budget", "quick", "--results", "cells"]
    command += ["--workers", "1"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "naive (lower)" in first
    assert "exact" in first
    assert "Domain-IL" in first
    folder = tmp_path / "runs/compare-split-digits-domain-quick"
    epochs = {m: json.loads((folder / m / "config.json").read_text())["stream"]["epochs"] for m in ("naive", "exact")}
    assert epochs == {"naive": 2, "exact": 1}  # one pass is all that an exact learner takes
    before = (folder / "naive/seed-1/result.json").stat().st_mtime_ns
    assert main(command) == 0
    assert (folder / "naive/seed-1/result.json").stat().st_mtime_ns == before

    assert main(["table", "cells"]) == 0
    table = capsys.readouterr().out
    accuracy = json.loads((folder / "naive/seed-1/result.json").read_text())["average_accuracy"]
    assert f"| naive | none | 2 | {100 * accuracy:.2f} |" in table
    assert main(["table", "cells", "--html", "page.html"]) == 0
    assert f"{100 * accuracy:.2f}" in (tmp_path / "page.html").read_text()

    assert main(["table", "cells", "--overview", "--budget", "quick"]) == 0
    assert f"| naive | boundaries | none | {100 * accuracy:.2f} |" in capsys.readouterr().out

    assert main(["check", "cells", "--sample", "1"]) == 0
    assert "the same" in capsys.readouterr().out
    cell = tmp_path / "cells/split-digits/domain-naive-quick.json"
    (tmp_path / "cells/split-digits/domain-exact.json").unlink()  # one pass: no budget in its name
    cell.write_text(cell.read_text().replace(f'"average_accuracy": {accuracy}', '"average_accuracy": 0.01'))
    assert main(["check", "cells", "--sample", "1"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_compare_goes_on_where_a_method_diverges_and_says_so(capsys, monkeypatch, tmp_path):
    make = RunConfig.make
    wild = {"hidden": (4, 4, 4), "learning_rate": 1e15}
    monkeypatch.setattr(
        RunConfig, "make", lambda b, m, s, c, budget: make(b, m, s, c, wild if m == "naive" else {}, budget=budget)
    )
    command = ["compare", "split-digits", "--methods", "naive,exact", "--seeds", "1", "--budget", "quick", "--workers", "1"]
    assert main([*command, "--results", "cells"]) == 1
    printed = capsys.readouterr().out
    assert "naive seed 1: not finished: the learner has diverged" in printed
    assert [path.name for path in (tmp_path / "cells").rglob("*.json")] == ["domain-exact.json"]


def test_compare_refuses_what_it_does_not_know(capsys):
    assert "budget must be one of quick" in refused(capsys, "compare", "split-digits", "--budget", "huge")
    assert "ewv" in refused(capsys, "compare", "split-digits", "--methods", "ewv")
    assert "split-digit" in refused(capsys, "compare", "split-digit")
    assert "scenario" in refused(capsys, "compare", "split-digits", "--scenario", "all")
    assert "nowhere" in refused(capsys, "table", "nowhere")
    assert "--budget" in refused(capsys, "table", str(Path(__file__).parents[2] / "results"), "--budget", "huge")
    assert "--sample" in refused(capsys, "check", ".", "--sample", "0")


def test_an_empty_folder_has_no_table(capsys, tmp_path):
    assert "hvcl compare" in refused(capsys, "table", str(tmp_path))


def test_a_check_of_nothing_is_an_error(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 2
    assert "no results in" in capsys.readouterr().err


def test_going_on_and_replacing_contradict_each_other(tmp_path, capsys):
    assert main(["run", "split-digits", "--method", "naive", "--resume", "--force", "--out", str(tmp_path / "run")]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_options_that_are_on_or_off_take_no_word(capsys):
    assert main(["run", "split-digits", "--task-free", "true"]) == 2
    assert "--name or --no-name" in capsys.readouterr().err


def test_compare_with_each_methods_own_epochs(tmp_path, monkeypatch):
    """The benchmark's ten epochs, not those of a budget; and the cell names none."""
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "split-digits", "--methods", "naive", "--seeds", "1", "--budget", "own", "--results", "cells"]) == 0
    cell = json.loads((tmp_path / "cells/split-digits/domain-naive.json").read_text())
    assert cell["stream"]["epochs"] == 10
    assert "budget" not in cell


def test_the_gate_of_hvcl_chooses_the_method_and_its_settings(capsys):
    assert main(["run", "split-digits", "--gate", "generative", "--filters", "9", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "--filters              9           command line" in shown
    assert main(["run", "split-digits", "--method", "hvcl-growing", "--gate=softmax", "--experts", "3", "--explain"]) == 0
    assert "--filters" not in capsys.readouterr().out
    assert "--filters" in refused(capsys, "run", "split-digits", "--gate", "softmax", "--filters", "9")
