from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hvcl.core.errors import RunError
from hvcl.report import find_runs

WriteRun = Callable[..., Path]
MATRIX = [[0.9, 0.5], [0.7, 0.8]]


def test_runs_are_found_below_a_folder_once_each(write_run: WriteRun, tmp_path: Path) -> None:
    deep = write_run("a/b/c", {1: MATRIX})
    flat = write_run("d", {1: MATRIX})
    write_run("1/2/3/4", {1: MATRIX})  # too deep
    write_run("d/copy", {1: MATRIX})  # within a run

    assert find_runs([tmp_path]) == [deep, flat]
    assert find_runs([flat, tmp_path]) == [flat, deep]


def test_seeds_without_configuration_are_not_passed_over(write_run: WriteRun, tmp_path: Path) -> None:
    (write_run("run", {1: MATRIX}) / "config.json").unlink()

    assert find_runs([tmp_path]) == [tmp_path / "run"]


def test_no_run_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        find_runs([tmp_path])
    with pytest.raises(RunError, match="is not a folder"):
        find_runs([tmp_path / "absent"])
