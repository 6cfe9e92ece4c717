"""One loader for both kinds of run folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hvcl.core.errors import RunError
from hvcl.report import ReinforcementRun, SupervisedRun, load_run

WriteRun = Callable[..., Path]
MATRIX = [[0.9, 0.5], [0.7, 0.8]]


def test_a_folder_says_what_kind_of_run_it_holds(write_run: WriteRun, write_reinforcement_run: WriteRun) -> None:
    assert isinstance(load_run(write_run("a", {1: MATRIX}, kind="supervised")), SupervisedRun)
    assert isinstance(load_run(write_reinforcement_run("b", {1: [80.0, 60.0]}, kind="reinforcement")), ReinforcementRun)


def test_older_folders_are_known_by_what_they_hold(write_run: WriteRun, write_reinforcement_run: WriteRun) -> None:
    assert isinstance(load_run(write_run("a", {1: MATRIX})), SupervisedRun)
    assert isinstance(load_run(write_reinforcement_run("b", {1: [80.0, 60.0]})), ReinforcementRun)


@pytest.mark.parametrize("kind", ["robots", 3, ["supervised"], {}])
def test_a_kind_that_is_none_is_named(write_run: WriteRun, kind: object) -> None:
    folder = write_run("run", {1: MATRIX}, kind=kind)

    with pytest.raises(RunError, match=r"config\.json is damaged: 'kind' is .*, not one of supervised, reinforcement"):
        load_run(folder)


def test_a_kind_that_the_folder_does_not_hold_is_damage(write_run: WriteRun) -> None:
    with pytest.raises(RunError, match="has format 1, but"):
        load_run(write_run("run", {1: MATRIX}, kind="reinforcement"))


def test_no_number_is_too_large_to_be_named(write_run: WriteRun) -> None:
    folder = write_run("run", {1: MATRIX})
    result = folder / "seed-1" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "nll": 10**400}))

    with pytest.raises(RunError, match=r"result\.json is damaged: 'nll' is not a number"):
        load_run(folder)
