"""`execute` for both kinds of experiment, and what it says of a changed environment."""

import json
import logging

import pytest

from hvcl.core.errors import HvclError, InputError, RunError
from hvcl.runs import InterruptedRun, RunConfig, RunFolder, execute, execute_all, run_seed
from hvcl.runs.reinforcement import RLConfig

PROTOCOL = {"steps": 20, "evaluate_every": 10, "episodes": 1, "final_episodes": 1}
AGENT = {"hidden": (4,), "batch_size": 8, "warmup": 8, "capacity": 50}


def supervised(method="naive", seeds=(1,)):
    return RunConfig.make("split-digits", method, seeds, {"epochs": 1, "batch_size": 64}, {"hidden": (4,)})


def reinforcement(method="naive", seeds=(1,)):
    return RLConfig.make("classic", method, seeds, PROTOCOL, AGENT)


DIVERGES = RunConfig.make(
    "split-digits", "naive", (1,), {"epochs": 2, "batch_size": 8}, {"hidden": (4, 4, 4), "learning_rate": 1e15}
)
KINDS = pytest.mark.parametrize("make", [supervised, reinforcement])


def stopped(config, path, steps=15):
    """A run that has a checkpoint of its first seed and no result."""
    folder = RunFolder(path)
    folder.prepare(config, config.facts(), resume=False, force=False)
    asked = iter([False] * steps)
    with pytest.raises(InterruptedRun):
        run_seed(folder, config.seeds[0], stop=lambda: next(asked, True))
    assert folder.seed(config.seeds[0]).checkpoint_path.exists()
    return folder


@KINDS
def test_one_call_runs_every_seed_of_either_kind(make, tmp_path):
    results = execute(make(), tmp_path / "run", seeds=(2, 1), workers=1)
    assert [result["seed"] for result in results] == [2, 1]
    document = json.loads((tmp_path / "run/config.json").read_text())
    assert document["kind"] == make.__name__
    assert document["seeds"] == [2, 1]
    assert document["task_names"]
    assert RunFolder(tmp_path / "run").config() == make(seeds=(2, 1))
    with pytest.raises(RunError, match="--resume"):
        execute(make(), tmp_path / "run", workers=1)
    assert execute(make(), tmp_path / "run", workers=1, resume=True) == results[1:]


@KINDS
def test_folders_from_before_kinds_were_named_are_resumed(make, tmp_path):
    whole = execute(make(), tmp_path / "whole", workers=1)
    folder = stopped(make(), tmp_path / "broken")
    document = json.loads(folder.config_path.read_text())
    del document["kind"], document["seal"]
    folder.config_path.write_text(json.dumps(document))
    again = execute(make(), folder.path, workers=1, resume=True)
    assert [result | {"seconds": 0} for result in again] == [result | {"seconds": 0} for result in whole]


def test_a_run_of_the_other_kind_is_refused(tmp_path):
    execute(supervised(), tmp_path / "run", workers=1)
    with pytest.raises(RunError, match="kind supervised, not reinforcement"):
        execute(reinforcement(), tmp_path / "run", workers=1, resume=True)


@pytest.mark.parametrize("document", [{}, [], {"kind": "unheard"}, {"kind": "reinforcement"}, {"kind": "supervised"}])
def test_what_is_no_configuration_is_named(document, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match=r"config\.json"):
        RunFolder(tmp_path).config()


def test_a_learner_that_diverges_is_said_to(tmp_path):
    with pytest.raises(HvclError, match="diverged"):
        execute(DIVERGES, tmp_path / "run", workers=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_others_go_on_where_one_diverges(tmp_path, workers):
    finished, failed = [], []
    runs = [(DIVERGES, tmp_path / "bad"), (supervised(), tmp_path / "good")]
    results = execute_all(
        runs,
        workers=workers,
        on_finished=lambda folder, found: finished.append((folder.name, found)),
        on_failed=lambda folder, seed, error: failed.append((folder.name, seed, str(error))),
    )
    assert results[0] == []
    assert finished == [("good", results[1])]
    assert [(name, seed) for name, seed, _ in failed] == [("bad", 1)]
    assert "diverged" in failed[0][2]


def test_nothing_is_written_for_a_run_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match="workers"):
        execute(supervised(), tmp_path / "run", workers=0)
    with pytest.raises(InputError, match="seeds"):
        execute(supervised(), tmp_path / "run", seeds=(1, 1))
    good, bad = supervised(), RLConfig.make("Nothing-v0", "naive", (1,), PROTOCOL, AGENT)
    with pytest.raises(InputError, match="Nothing-v0"):
        execute_all([(good, tmp_path / "good"), (bad, tmp_path / "bad")])
    assert not list(tmp_path.iterdir())
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(RunError, match="taken is a file"):
        execute_all([(good, tmp_path / "good"), (good, tmp_path / "taken")])
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_each_run_is_announced_when_its_seeds_are_done(tmp_path):
    finished = []
    runs = [(supervised(seeds=(1, 2)), tmp_path / "a"), (reinforcement(), tmp_path / "b")]
    results = execute_all(runs, workers=1, on_finished=lambda folder, found: finished.append((folder.name, found)))
    assert finished == [("a", results[0]), ("b", results[1])]


@KINDS
def test_the_environment_names_the_compiled_code(make, tmp_path, monkeypatch):
    monkeypatch.setattr("hvcl.ops.library.facts", lambda: {"kernels": "x86-64-v3", "compiler": "gcc 12"})
    execute(make(), tmp_path / "run", workers=1)
    recorded = json.loads((tmp_path / "run/seed-1/environment.json").read_text())
    assert recorded["kernels"] == "x86-64-v3"
    assert recorded["compiler"] == "gcc 12"


@KINDS
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernels": "x86-64-v9"}, "instead of x86-64-v9"),
        ({"kernels": "x86-64-v9", "compiler": "tcc 1", "torch": "0.1"}, "instead of x86-64-v9, compiler"),
        ({"torch": "0.1"}, "instead of 0.1"),
        ({"commit": "another", "seed": 7}, None),
        ({"kernels": ...}, None),  # a record from before it was named
    ],
)
def test_a_resume_under_other_compiled_code_warns_once_and_goes_on(make, change, said, tmp_path, caplog):
    folder = stopped(make(), tmp_path / "run")
    files = folder.seed(1)
    recorded = json.loads(files.environment_path.read_text()) | {"seal": ...} | change
    files.environment_path.write_text(json.dumps({name: value for name, value in recorded.items() if value is not ...}))
    with caplog.at_level(logging.WARNING, "hvcl"):
        (result,) = execute(make(), folder.path, workers=1, resume=True)
        execute(make(), folder.path, workers=1, resume=True)  # nothing is left to be computed
    lines = [record.getMessage() for record in caplog.records if record.name == "hvcl"]
    assert len(lines) == (0 if said is None else 1)
    assert said is None or (said in lines[0] and "seed 1" in lines[0] and "\n" not in lines[0])
    assert result["seed"] == 1
