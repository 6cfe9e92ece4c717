"""Many seeds at once."""

import io

import pytest
from rich.console import Console

from hvcl.runs import RunConfig, RunFolder, run_seeds
from hvcl.runs.engine import Job


@pytest.mark.parametrize("workers", [1, 2])
def test_every_result_is_told_once_and_returned_in_order(workers, tmp_path):
    config = RunConfig.make("split-digits", "naive", (1, 2, 3), {"scenario": "domain", "epochs": 1}, {"hidden": (8,)})
    folder = RunFolder(tmp_path / "run")
    folder.prepare(config, {"memory": "none", "task_names": []}, resume=False, force=False)
    jobs = [Job(folder.path, seed, f"seed {seed}") for seed in config.seeds]
    told = {}
    results = run_seeds(jobs, Console(file=io.StringIO()), workers, lambda number, result: told.setdefault(number, result))
    assert [result["seed"] for result in results] == [1, 2, 3]
    assert [told[number] for number in range(3)] == results
