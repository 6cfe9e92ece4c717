"""A file of a run that is damaged anywhere is noticed, or the damage changes nothing: there are never other numbers."""

import json
import logging
import random
import shutil

import pytest

from hvcl.core import manifest
from hvcl.core.errors import RunError
from hvcl.report.load import load_run
from hvcl.runs import InterruptedRun, RunConfig, RunFolder, execute, run_seed
from hvcl.runs.reinforcement import RLConfig

PROTOCOL = {"steps": 20, "evaluate_every": 10, "episodes": 1, "final_episodes": 1}
AGENT = {"hidden": (4,), "batch_size": 8, "warmup": 8, "capacity": 50}

CONFIGS = {
    "supervised": RunConfig.make("split-digits", "naive", (1,), {"epochs": 1, "batch_size": 128}, {"hidden": (4,)}),
    "reinforcement": RLConfig.make("classic", "naive", (1,), PROTOCOL, AGENT),
}


@pytest.fixture(scope="module", params=CONFIGS)
def runs(request, tmp_path_factory):
    """A run that is finished, and one that was stopped shortly before its end; the same otherwise."""
    place, config = tmp_path_factory.mktemp("runs"), CONFIGS[request.param]
    whole, stopped = RunFolder(place / "whole"), RunFolder(place / "stopped")
    execute(config, whole.path, workers=1)
    stopped.prepare(config, config.facts(), resume=False, force=False)
    steps = {"supervised": 13, "reinforcement": 45}[request.param]
    asked = iter([False] * steps)
    with pytest.raises(InterruptedRun):
        run_seed(stopped, 1, stop=lambda: next(asked, True))
    return whole, stopped


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def damages(content):
    """(name, damaged content): digits, letters and marks here and there, a piece missing, zeros."""
    places = random.Random(3)
    for wanted, others in (
        (b"0123456789", b"0123456789"),
        (b"abcdefghijklmnopqrstuvwxyz", b"abcdefghijklmnopqrstuvwxyz"),
        (b'{}[]":,', b'{}[]":,. '),
    ):
        found = [place for place, byte in enumerate(content) if byte in wanted]
        for place in places.sample(found, min(4, len(found))):
            other = places.choice([byte for byte in others if byte != content[place]])
            yield f"byte {place}", content[:place] + bytes([other]) + content[place + 1 :]
    middle = len(content) // 2
    yield "cut", content[:middle]
    yield "a piece missing", content[:middle] + content[middle + 7 :]
    yield "zeros", bytes(len(content))
    yield "zeros at the end", content[:middle] + bytes(len(content) - middle)
    yield "empty", b""


def numbers(folder):
    result = {name: value for name, value in folder.seed(1).result().items() if name != "seconds"}
    return result, folder.seed(1).metrics_path.read_bytes()


def test_a_finished_run_gives_its_numbers_or_says_that_it_is_damaged(runs, tmp_path):
    whole = runs[0]
    expected, shown = whole.seed(1).result(), load_run(whole.path).seeds
    noticed = 0
    for name in files_of(whole.path):
        content = (whole.path / name).read_bytes()
        for damage, damaged in [*damages(content), ("missing", None)]:
            broken = RunFolder(shutil.copytree(whole.path, tmp_path / "broken"))
            if damaged is None:
                (broken.path / name).unlink()
            else:
                (broken.path / name).write_bytes(damaged)
            try:
                result = broken.seed(1).result()
                assert result is None or result == expected, (name, damage)
                for seed, other in zip(load_run(broken.path).seeds, shown, strict=True):
                    assert seed.result is None or seed == other, (name, damage)
            except RunError as error:
                noticed += str(broken.path) in str(error)
            shutil.rmtree(broken.path)
    assert noticed > 40


def test_a_run_that_goes_on_ends_as_it_would_have_or_says_that_it_is_damaged(runs, tmp_path):
    whole, stopped = runs
    config, expected = whole.config(), numbers(whole)
    noticed = 0
    for name in files_of(stopped.path):
        content = (stopped.path / name).read_bytes()
        for damage, damaged in damages(content):
            broken = RunFolder(shutil.copytree(stopped.path, tmp_path / "broken"))
            (broken.path / name).write_bytes(damaged)
            try:
                execute(config, broken.path, workers=1, resume=True)
                assert numbers(broken) == expected, (name, damage)
            except RunError as error:
                noticed += str(broken.path) in str(error)
            shutil.rmtree(broken.path)
    assert noticed > 40


def test_a_report_of_an_unfinished_run_shows_what_its_checkpoint_vouches_for(runs):
    folder = runs[1]
    metrics = folder.seed(1).metrics_path
    content = metrics.read_bytes()
    shown = load_run(folder.path).seeds
    assert shown[0].evaluations
    try:
        metrics.write_bytes(content + content.splitlines(keepends=True)[-1].replace(b"1", b"2"))
        assert load_run(folder.path).seeds == shown
    finally:
        metrics.write_bytes(content)


def test_a_result_without_its_manifest_is_made_again(runs, tmp_path):
    """Killed between the two."""
    whole = runs[0]
    killed = RunFolder(shutil.copytree(whole.path, tmp_path / "killed"))
    (killed.seed(1).path / "manifest.json").unlink()
    killed.seed(1).result_path.write_text("{}")
    assert killed.seed(1).result() is None
    run_seed(killed, 1)
    assert numbers(killed) == numbers(whole)


def legacy(folder, path):
    """The run as it was written before there were checksums."""
    old = RunFolder(shutil.copytree(folder.path, path))
    (old.seed(1).path / "manifest.json").unlink(missing_ok=True)
    for file in (old.config_path, old.seed(1).environment_path, old.seed(1).checkpoint_path):
        document = json.loads(file.read_text())
        del document["seal"]
        document.get("state", {}).pop("metrics_sha256", None)
        file.write_text(json.dumps(document))
    return old


def test_runs_from_before_there_were_checksums_are_read_with_one_warning(runs, tmp_path, caplog, monkeypatch):
    whole, stopped = runs
    for place, run in (("whole", whole), ("stopped", stopped)):
        monkeypatch.setattr(manifest, "_noted", False)
        caplog.clear()
        old = legacy(run, tmp_path / place)
        with caplog.at_level(logging.WARNING, "hvcl"):
            seeds = load_run(old.path).seeds
            execute(whole.config(), old.path, workers=1, resume=True)
        assert [record for record in caplog.messages if "cannot be checked" in record] == caplog.messages
        assert len(caplog.messages) == 1
        assert seeds == load_run(run.path).seeds
        assert numbers(old) == numbers(whole)


def test_figures_that_contradict_each_other_are_no_run(runs, tmp_path):
    whole = runs[0]
    if "accuracy_matrix" not in whole.seed(1).result():
        pytest.skip("of supervised runs")
    for change in ({"average_accuracy": 0.99}, {"accuracy_matrix": [[0.5] * 5] * 5, "average_accuracy": 0.5}):
        old = legacy(whole, tmp_path / "old")
        result = json.loads(old.seed(1).result_path.read_text())
        old.seed(1).result_path.write_text(json.dumps(result | change))
        with pytest.raises(RunError, match="damaged"):
            load_run(old.path)
        shutil.rmtree(old.path)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "checkpoint-1.safetensors/../../x", "", "x.safetensors"])
def test_a_checkpoint_names_no_file_but_its_own(runs, tmp_path, name):
    old = legacy(runs[1], tmp_path / "old")
    document = json.loads(old.seed(1).checkpoint_path.read_text())
    old.seed(1).checkpoint_path.write_text(json.dumps(document | {"tensors": name}))
    with pytest.raises(RunError, match=r"checkpoint\.json is damaged"):
        run_seed(old, 1)
