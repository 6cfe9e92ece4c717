"""hvcl run --explain."""

import json

import numpy as np
import pytest

from hvcl.commands.main import main
from hvcl.learners import known_methods
from hvcl.streams import StreamConfig

EXPLAIN = ["run", "split-mnist", "--method", "ewc", "--explain"]


def test_explain_shows_every_setting_with_its_origin_and_runs_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*EXPLAIN, "--budget", "quick", "--hidden", "8,9"]) == 0
    head, *lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert head == ["setting", "value", "origin"]
    shown = {option: (value, origin) for option, value, origin in lines}
    fields = [*StreamConfig.__dataclass_fields__, *known_methods()["ewc"].config.__dataclass_fields__]
    assert list(shown) == [f"--{field.replace('_', '-')}" for field in fields]
    assert shown["--epochs"] == ("1", "budget quick")
    assert shown["--hidden"] == ("8,9", "command line")
    assert shown["--strength"] == ("10000000.0", "settings/ewc.json (searched)")
    assert shown["--scenario"] == ("domain", "default of the stream")
    assert shown["--channels"] == ("none", "default of the method")
    assert not list(tmp_path.iterdir())


def test_explain_as_json(capsys):
    assert main([*EXPLAIN, "--json", "--task-free"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stream"]["task_free"] == {"value": True, "origin": "command line"}
    assert document["method"]["hidden"] == {"value": [256, 256], "origin": "settings/every-method.json"}


def test_settings_that_do_not_fit_are_refused_before_they_are_explained(capsys):
    assert main([*EXPLAIN, "--epochs", "0"]) == 2
    assert main([*EXPLAIN, "--budget", "huge"]) == 2
    assert "budget must be one of quick" in capsys.readouterr().err


def test_a_folder_of_pictures_is_run_like_a_benchmark(capsys, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for place, name in enumerate(["ape", "bee", "cat", "dog"]):
        folder = tmp_path / "animals" / name
        folder.mkdir(parents=True)
        for number in range(20):
            levels = np.clip(random.normal(60 * place, 8, (9 + place, 8, 3)), 0, 255).astype(np.uint8)
            image.fromarray(levels).save(folder / f"{number}.png")
    words = [
        "run",
        "folder:animals",
        "--classes-per-task",
        "2",
        "--method",
        "exact",
        "--scenario",
        "class",
        "--random-features",
        "64",
    ]
    assert main(words) == 2
    assert "--size 32" in capsys.readouterr().err
    assert main([*words, "--size", "8", "--features", "random", "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["benchmark"] == "folder:animals"
    assert document["task_names"] == ["ape/bee", "cat/dog"]
    assert document["mean_accuracy"] > 0.9  # of four classes that differ in brightness by seven deviations
    assert document["out"] == "runs/folder-animals-class-exact"
    assert main(["report", "runs"]) == 0
    assert "folder:animals" in (tmp_path / "runs/report.html").read_text()
    capsys.readouterr()
    (tmp_path / "animals/bee/bad.png").write_bytes(b"GIF89a")
    assert main([*words, "--size", "8", "--force"]) == 2
    assert "animals/bee/bad.png cannot be read" in capsys.readouterr().err
    assert main(["run", "folder:nowhere", "--classes-per-task", "2"]) == 2
    assert capsys.readouterr().err.strip() == "hvcl: nowhere is missing: give a folder that has a folder a class"
