"""hvcl rl: run, list, report."""

import base64
import json
import re
import shutil
import struct
import zlib

import numpy as np
import pytest

from hvcl.commands.main import main
from hvcl.report import load_run, render
from hvcl.rl.classic import Reach

RUN = ["rl", "run", "--sequence", "classic", "--workers", "1", "--steps", "20", "--evaluate-every", "10", "--episodes", "1"]
RUN += ["--final-episodes", "1", "--hidden", "4", "--batch-size", "8", "--warmup", "10", "--capacity", "50"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("reset", "hvcl"):
        assert main([*RUN, "--method", method, "--out", str(folder / method)]) == 0
    return folder


def test_a_run_leaves_its_scores(runs, capsys):
    result = json.loads((runs / "hvcl" / "seed-1" / "result.json").read_text())
    assert result["task_names"] == ["Reach", "Pendulum", "CartPole"]
    assert [point[0] for point in result["curve"]] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert result["curve"][1][2] is None  # the second task has not been seen yet
    assert result["returns_when_learned"][2] == result["curve"][-1][3]
    assert set(result["usage"][0]) == {"layer 1", "layer 2"}
    assert main([*RUN, "--method", "hvcl", "--out", str(runs / "hvcl"), "--resume", "--json"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["results"] == [result]


def test_the_report_has_the_papers_figure(runs, capsys):
    assert main(["rl", "report", str(runs), "--out", str(runs / "page.html")]) == 0
    page = (runs / "page.html").read_text()
    for text in ("Cumulative normalised reward", "Returns in CartPole over time", "Forward transfer", "layer 2"):
        assert text in page
    assert page == render([load_run(runs / name) for name in ("hvcl", "reset")])
    assert "NaN" not in page


def test_frames_on_request(runs):
    assert main(["rl", "report", str(runs / "hvcl"), "--out", str(runs / "frames.html"), "--frames"]) == 0
    page = (runs / "frames.html").read_text()
    images = re.findall(r'src="data:image/png;base64,([^"]+)" width="150" alt="hvcl in Reach', page)
    assert len(images) == 6
    png = base64.b64decode(images[0])
    assert struct.unpack(">II", png[16:24]) == (120, 120)
    length = struct.unpack(">I", png[33:37])[0]
    pixels = np.frombuffer(zlib.decompress(png[41 : 41 + length]), np.uint8).reshape(120, 361)[:, 1:].reshape(120, 120, 3)
    assert (pixels == (200, 40, 40)).all(2).sum() == 49  # the point


def test_a_task_that_cannot_be_rendered_says_why(runs, monkeypatch):
    def fail(self):
        raise RuntimeError("no OpenGL\n here")

    monkeypatch.setattr(Reach, "render", fail)
    assert main(["rl", "report", str(runs / "hvcl"), "--out", str(runs / "frames.html"), "--frames"]) == 0
    assert "This task cannot be rendered here (no OpenGL here)." in (runs / "frames.html").read_text()


def test_supervised_runs_may_lie_beside(runs, tmp_path):
    shutil.copytree(runs / "hvcl", tmp_path / "robots")
    words = ["--method", "naive", "--epochs", "1", "--hidden", "4", "--workers", "1", "--out", str(tmp_path / "digits")]
    assert main(["run", "split-digits", *words]) == 0
    assert main(["rl", "report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "Average accuracy after the last task" in page
    assert "Returns in CartPole over time" in page
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_text() == page


def test_an_unfinished_run_knows_what_its_returns_are_scaled_with(runs, tmp_path):
    shutil.copytree(runs / "hvcl", tmp_path / "run")
    (tmp_path / "run" / "seed-1" / "result.json").unlink()
    assert load_run(tmp_path / "run").references == load_run(runs / "hvcl").references


def test_runs_of_one_method_are_told_apart(runs, tmp_path):
    for name in ("one", "other"):
        shutil.copytree(runs / "hvcl", tmp_path / name)
    assert main(["rl", "report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "hvcl (one)" in page
    assert "hvcl (other)" in page


def test_a_damaged_configuration_is_named(runs, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"format": "rl-1", "method": "hvcl"}))
    assert main(["rl", "report", str(tmp_path)]) == 2
    assert "config.json is damaged: 'task_names' is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rl", "run", "--sequence", "classik"], "did you mean 'classic'"),
        (["rl", "run", "--method", "hvcl-growin"], "did you mean 'hvcl-growing'"),
        (["rl", "run", "--step", "5"], "did you mean --steps"),
        (["rl", "run", "--steps", "0"], "at least 1"),
        (["rl", "run", "--seeds", "1,1"], "different"),
        (["rl", "report"], "DIR"),
        (["rl", "report", "x", "--bogus"], "unknown option --bogus"),
        (["rl", "rnu"], "rnu"),
        (["rl", "--nope"], "unknown option --nope"),
        (["rl", "list", "bogus"], "'bogus'"),
        (["rl", "run", "--sequnce", "classic"], "did you mean --sequence"),
        (["rl", "run", "--frames"], "unknown option --frames"),
        (["rl", "run", "--sequence", "Pendulum-v1,CartPole-v1"], "CartPole-v1 has actions of kind Discrete"),
        (["rl", "run", "--sequence", "nosuchmodule:Own-v0"], "nosuchmodule"),
        (["rl", "run", "--out", "/dev/null/runs"], "directory"),
        (["rl", "run", "--seeds", "18446744073709551616"], "below 4294967296"),
        (["rl", "run", "--method", "ewc-ppo", "--hidden", "0"], "hidden"),
        (["rl", "run", "--method", "ewc-ppo", "--heads", "2"], "heads for 2 tasks"),
        (["rl", "run", "--method", "hvcl", "--experts", "0"], "experts must be at least 1"),
        (["rl", "run", "--method", "naive", "--correction", "1.5"], "correction"),
        (["rl", "run", "--method", "naive", "--capacity", "1000000000000000"], "capacity"),
    ],
)
def test_bad_use_is_told_in_one_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["rl"], ["rl", "--help"]])
def test_help_says_what_can_be_done(words, capsys):
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "hvcl rl report DIR" in shown
    assert "hvcl rl run" in shown


def test_a_chain_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = [*RUN, "--sequence", "Pendulum-v1,MountainCarContinuous-v0"]
    assert main([*own, "--method", "naive"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "rl-Pendulum-v1-MountainCarContinuous-v0-naive"
    result = json.loads((folder / "seed-1" / "result.json").read_text())
    assert result["task_names"] == ["1 Pendulum-v1", "2 MountainCarContinuous-v0"]
    assert result["average_performance"] == pytest.approx(np.mean(result["returns_at_the_end"]))  # nobody stated references
    assert main(["rl", "report", str(folder)]) == 0
    assert "Returns in 2 MountainCarContinuous-v0 over time" in (folder / "report.html").read_text()


def test_a_task_that_is_too_short_to_learn_from_is_told(tmp_path, capsys):
    assert main([*RUN, "--method", "naive", "--warmup", "30", "--out", str(tmp_path / "run")]) == 0
    assert "nothing is learned before step 30 of a task, and there are 20" in capsys.readouterr().err


def test_lists_and_help_know_every_method(capsys):
    assert main(["rl", "list"]) == 0
    listed = capsys.readouterr().out
    for name in ("naive", "ewc", "ucl", "hvcl", "hvcl-growing", "reset", "multitask", "ewc-ppo", "ucl-ppo", "bullet", "mujoco"):
        assert f"  {name} " in listed
    assert main(["rl", "run", "--method", "ewc", "--help"]) == 0
    assert "--updates-per-step" in (text := capsys.readouterr().out)
    assert "--strength" in text
