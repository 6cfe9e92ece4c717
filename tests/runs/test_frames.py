"""Nothing that a run folder names is imported unless the user names it."""

import json
import sys

import pytest

from hvcl.commands.main import main
from hvcl.core.errors import RunError
from hvcl.runs import execute
from hvcl.runs.frames import frames_of
from hvcl.runs.reinforcement import RLConfig

PROTOCOL = {"steps": 20, "evaluate_every": 10, "episodes": 1, "final_episodes": 1}
AGENT = {"hidden": (4,), "batch_size": 8, "warmup": 8, "capacity": 50}


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A run folder that names an environment of a module which lies in the current folder, and leaves a mark when imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evilmod.py").write_text("from pathlib import Path\nPath('mark').touch()\n")
    execute(RLConfig.make("Pendulum-v1", "naive", (1,), PROTOCOL, AGENT), "run", workers=1)
    config = tmp_path / "run/config.json"
    document = json.loads(config.read_text())
    del document["seal"]  # whoever made the folder may write what he likes
    config.write_text(json.dumps(document | {"sequence": "evilmod:Pendulum-v1"}))
    yield tmp_path
    sys.modules.pop("evilmod", None)


def test_a_module_that_a_folder_names_is_not_imported(foreign, capsys):
    assert main(["rl", "report", "run", "--frames"]) == 2
    error = capsys.readouterr().err
    assert "module 'evilmod'" in error
    assert "--import evilmod" in error
    assert main(["rl", "report", "run", "--frames", "--import", "evil"]) == 2
    with pytest.raises(RunError, match="evilmod"):
        frames_of(foreign / "run")
    assert not (foreign / "mark").exists()
    assert "evilmod" not in sys.modules


def test_a_module_that_the_user_names_is_imported(foreign):
    assert main(["rl", "report", "run", "--frames", "--import", "evilmod"]) == 0
    assert (foreign / "mark").exists()


def test_a_report_without_pictures_imports_nothing(foreign):
    assert main(["rl", "report", "run"]) == 0
    assert not (foreign / "mark").exists()
