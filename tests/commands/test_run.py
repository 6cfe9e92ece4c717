"""hvcl run --explain."""

import json

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
