"""Two processes never write to one run, and none goes on without the one that started it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvcl.core.errors import InputError, InterruptedRun, RunError
from hvcl.core.lock import locked
from hvcl.runs import RunConfig, RunFolder, execute, execute_all, run_seed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs Unix")

RUN = ["run", "split-digits", "--method", "hvcl", "--hidden", "8", "--batch-size", "16"]


def config(seeds=(1,), method="naive"):
    return RunConfig.make("split-digits", method, seeds, {"epochs": 1, "batch_size": 64}, {"hidden": (8,)})


@contextmanager
def command(folder, *words):
    """``hvcl WORDS`` in a process of its own, which is gone at the end, however the test ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hvcl", *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition, seconds=240):
    """Wait for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def has_begun(seed):
    metrics = seed / "metrics.jsonl"
    return metrics.exists() and metrics.stat().st_size > 2000


def children(pid):
    """The workers of a process, by their numbers."""
    found = subprocess.run(["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "spawn_main" in line]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stopped_process_keeps_its_run_from_all_others(tmp_path):
    with command(tmp_path, *RUN, "--epochs", "5", "--out", "run") as first:
        until(lambda: has_begun(tmp_path / "run/seed-1"))
        first.send_signal(signal.SIGSTOP)
        with command(tmp_path, *RUN, "--epochs", "5", "--out", "run", "--resume") as second:
            error = second.communicate(timeout=60)[1]
        assert second.returncode == 2
        assert f"in use by process {first.pid}" in error
        assert len(error.strip().splitlines()) == 1
        with pytest.raises(RunError, match=f"in use by process {first.pid}"):
            execute(config(), tmp_path / "run", workers=1, force=True)
        first.send_signal(signal.SIGCONT)
        assert first.wait(timeout=120) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/seed-1/metrics.jsonl").read_bytes().splitlines()]
    assert [line["after"] for line in lines if line["kind"] == "evaluation"] == [0, 1, 2, 3, 4, 5]
    assert not list((tmp_path / "run").rglob(".lock"))


def test_a_lock_that_a_crash_left_behind_locks_nobody_out(tmp_path):
    child = os.fork()
    if not child:
        with RunFolder(tmp_path / "run").locked():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / "run/.lock").exists()
    (result,) = execute(config(), tmp_path / "run", workers=1)
    assert result["seed"] == 1


def test_a_seed_that_another_process_writes_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("hvcl.runs.folder.PATIENCE_SECONDS", 0.1)
    folder = RunFolder(tmp_path / "run")
    folder.prepare(config(), {"memory": "none", "task_names": []}, resume=False, force=False)
    with folder.seed(1).locked():
        with pytest.raises(RunError, match="seed-1 is in use by this process"):
            run_seed(folder, 1)
        with pytest.raises(RunError, match="seed-1 is in use by this process"):
            folder.prepare(config(method="joint"), {"memory": "", "task_names": []}, resume=False, force=True)
    assert run_seed(folder, 1)["seed"] == 1


def test_of_many_that_want_a_lock_one_has_it(tmp_path):
    """Files that are unlinked and made again at every turn: nobody is inside beside another, and everybody comes in."""
    (tmp_path / "count").write_text("0")
    people = []
    for _ in range(4):
        child = os.fork()
        people.append(child)
        if not child:
            try:
                for _ in range(25):
                    with locked(tmp_path / ".lock", "it", patience=60):
                        before = int((tmp_path / "count").read_text())
                        time.sleep(0.0005)
                        (tmp_path / "count").write_text(str(before + 1))
                os._exit(0)
            except BaseException:
                os._exit(1)
    assert [os.waitpid(child, 0)[1] for child in people] == [0] * 4
    assert (tmp_path / "count").read_text() == "100"
    assert not (tmp_path / ".lock").exists()


def test_two_runs_in_one_folder_are_refused(tmp_path, monkeypatch):
    (tmp_path / "same").symlink_to(tmp_path / "run")
    with pytest.raises(InputError, match="two runs in one folder"):
        execute_all([(config(), tmp_path / "run"), (config(), tmp_path / "same")], workers=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent_and_the_run_goes_on(ending, tmp_path):
    words = [*RUN, "--epochs", "40", "--seeds", "1,2"]
    seeds = [RunFolder(tmp_path / "run").seed(seed) for seed in (1, 2)]
    with command(tmp_path, *words, "--workers", "2", "--out", "run") as process:
        until(lambda: all(seed.checkpoint_path.exists() for seed in seeds))
        workers = children(process.pid)
        assert len(workers) == 2
        os.kill(process.pid, ending)  # the parent alone, as from another terminal
        until(lambda: not any(map(alive, workers)), seconds=60)
        error = process.communicate(timeout=60)[1]
    assert "Traceback" not in error
    assert not list(tmp_path.glob("run/seed-*/result.json"))
    if ending != signal.SIGKILL:
        assert process.returncode == 130
        assert "the run is saved" in error
    for number, seed in enumerate(seeds, 1):  # test_kill.py shows that such runs end as if nothing had happened
        before = seed.load_checkpoint()
        asked = iter([False] * 5)
        with pytest.raises(InterruptedRun):
            run_seed(RunFolder(tmp_path / "run"), number, stop=lambda asked=asked: next(asked, True))
        assert seed.load_checkpoint()["step"] > before["step"]
