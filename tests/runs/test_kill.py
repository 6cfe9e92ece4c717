"""A run that is killed at any moment and resumed ends bit-identically to one that was never killed."""

import json
import os
import random
import signal
import time
from dataclasses import replace

import pytest

from hvcl.core.storage import load_state
from hvcl.runs import RunConfig, RunFolder
from hvcl.runs.seed import run_seed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def start(folder):
    """A child process that works on the run and saves after every event; forked, so that it is at work at once."""
    child = os.fork()
    if child:
        return child
    try:
        run_seed(folder, 1, checkpoint_seconds=0.0)
        os._exit(0)
    except BaseException:  # the parent must see that something other than the kill went wrong
        import traceback

        traceback.print_exc()
        os._exit(1)


def prepare(path, config):
    folder = RunFolder(path)
    folder.prepare(config, {"memory": "none", "task_names": []}, resume=False, force=False)
    return folder


def flat(state, place=""):
    if isinstance(state, dict):
        for key, value in state.items():
            yield from flat(value, f"{place}/{key}")
    elif isinstance(state, list):
        for i, value in enumerate(state):
            yield from flat(value, f"{place}/{i}")
    else:
        yield place, state


@pytest.mark.parametrize(
    ("method", "stream"),
    [
        ("hvcl", {}),
        ("hvcl", {"task_free": True, "blur": 0.5}),
        ("joint", {"scenario": "task"}),
        ("naive", {"scenario": "class"}),
    ],
)
def test_killed_at_many_random_moments(tmp_path, method, stream):
    learner = {"hidden": (16,)} | ({"schedule": "target", "dropout": 0.1} if method == "hvcl" else {})
    config = RunConfig.make("split-digits", method, [1], {"epochs": 2, "batch_size": 64} | stream, learner)
    whole, broken = prepare(tmp_path / "whole", config), prepare(tmp_path / "broken", config)
    begin = time.monotonic()
    child = start(whole)
    assert os.waitpid(child, 0)[1] == 0
    duration = time.monotonic() - begin

    moments = random.Random(7)
    kills = 0
    for _ in range(100):
        child = start(broken)
        wait = moments.uniform(0.0, duration / 4)
        end = time.monotonic() + wait
        status = None
        while time.monotonic() < end:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = code
                break
            time.sleep(0.001)
        if status is not None:
            assert status == 0
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    else:  # a machine that has become much slower since the first run never gets to the end in time: the last one is left alone
        assert os.waitpid(start(broken), 0)[1] == 0
    assert broken.seed(1).result() is not None
    assert kills >= 5

    assert broken.seed(1).metrics_path.read_bytes() == whole.seed(1).metrics_path.read_bytes()
    results = [json.loads(folder.seed(1).result_path.read_text()) for folder in (whole, broken)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
    states = [load_state(folder.seed(1).checkpoint_path) for folder in (whole, broken)]
    for (place, one), (other_place, other) in zip(*(flat(s) for s in states), strict=True):
        assert place == other_place
        if place == "/seconds":
            continue
        assert one.equal(other) if hasattr(one, "equal") else one == other, place


def test_another_seed_gives_other_numbers(tmp_path):
    """The comparison above could not fail if metrics did not depend on what was learned."""
    config = RunConfig.make("split-digits", "hvcl", [1, 2], {"epochs": 1, "batch_size": 64}, {"hidden": (8,)})
    folder = prepare(tmp_path / "run", config)
    for seed in (1, 2):
        run_seed(folder, seed)
    assert folder.seed(1).metrics_path.read_bytes() != folder.seed(2).metrics_path.read_bytes()
    assert replace(config, seeds=(1,)) != config
