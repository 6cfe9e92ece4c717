"""`execute`: what "run it" means, for both kinds of experiment."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from hvcl.core.errors import HvclError, InputError
from hvcl.core.files import read_json
from hvcl.core.manifest import is_finished
from hvcl.runs.engine import Job, MakeView, run_seeds
from hvcl.runs.environment import decisive_changes
from hvcl.runs.experiment import Experiment
from hvcl.runs.folder import RunFolder

_log = logging.getLogger("hvcl")

Results = list[dict[str, Any]]
"""The results of one run, in the order of its seeds."""


def execute(
    config: Experiment,
    out: str | Path,
    *,
    seeds: Sequence[int] | None = None,
    workers: int | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Console | None = None,
) -> Results:
    """Run every seed of an experiment into the folder `out`, and return their results in the order of seeds.

    ::

        from hvcl.runs import RunConfig, execute
        config = RunConfig.make("split-digits", "ewc", stream={"scenario": "class"}, learner={"strength": 100.0})
        results = execute(config, "runs/ewc", seeds=(1, 2, 3), workers=1)

    An experiment is a `hvcl.runs.RunConfig`, or a `hvcl.runs.reinforcement.RLConfig` for agents. Missing data, settings that
    do not fit and a folder that holds another run, or that another process writes to, raise an `HvclError` before anything is
    written. A run that was interrupted (`InterruptedRun`) or killed goes on bit-identically with ``resume=True``; a warning in
    one line says if the compiled code or torch has changed since.

    Args:
        config: what to run.
        out: the run folder.
        seeds: in place of those of the configuration.
        workers: number of processes (one per core). More than one start new Python processes, so a script must keep its own code
            under ``if __name__ == "__main__":``.
        resume: go on with the same run in the folder, and return what is finished.
        force: replace the run in the folder.
        progress: where progress is shown, e.g. ``rich.console.Console(stderr=True)``; None: nowhere.
    """
    if seeds is not None:
        config = dataclasses.replace(config, seeds=tuple(seeds))  # type: ignore[type-var]
    return execute_all([(config, Path(out))], workers=workers, resume=resume, force=force, progress=progress)[0]


def execute_all(
    runs: Sequence[tuple[Experiment, Path]],
    *,
    workers: int | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Console | MakeView | None = None,
    on_finished: Callable[[Path, Results], None] = lambda folder, results: None,
    on_failed: Callable[[Path, int, HvclError], None] | None = None,
) -> list[Results]:
    """`execute` for many (experiment, folder) at once, which share the cores; results by run.

    `on_finished` is called with the folder and the results of a run as soon as all of its seeds are there. `on_failed` is called
    with the folder, the seed and the error of one that cannot be finished, e.g. since its learner has diverged; the others go on,
    and its results are left out. Without it the first such error is raised, and ends all.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    facts = [config.facts() for config, _ in runs]
    folders = [path.resolve() for _, path in runs]
    for (_, path), folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise InputError(f"two runs in one folder, {path}: give each a folder of its own")
    for config, path in runs:  # all of them before anything is written
        RunFolder(path).check(config, resume=resume, force=force)
    with ExitStack() as locks:
        for _, path in runs:
            locks.enter_context(RunFolder(path).locked())
        for (config, path), written in zip(runs, facts, strict=True):
            RunFolder(path).prepare(config, written, resume=resume, force=force)
            _warn_of_changes(RunFolder(path), config.seeds)
        return _run(runs, workers, progress, on_finished, on_failed)


def _run(
    runs: Sequence[tuple[Experiment, Path]],
    workers: int | None,
    progress: Console | MakeView | None,
    on_finished: Callable[[Path, Results], None],
    on_failed: Callable[[Path, int, HvclError], None] | None,
) -> list[Results]:
    """Run all seeds, in folders that are prepared and locked."""
    jobs = [Job(path, seed, f"{config.method} seed {seed}") for config, path in runs for seed in config.seeds]
    results: dict[Path, dict[int, dict[str, Any]]] = {path: {} for _, path in runs}

    def on_result(path: Path, seed: int, result: dict[str, Any]) -> None:
        results[path][seed] = result
        config = next(config for config, other in runs if other == path)
        if len(results[path]) == len(config.seeds):
            on_finished(path, [results[path][seed] for seed in config.seeds])

    pending: list[Job] = []
    for job in jobs:  # what is finished needs no process
        done = RunFolder(job.folder).seed(job.seed).result()
        if done is None:
            pending.append(job)
        else:
            on_result(job.folder, job.seed, done)
    failed = None if on_failed is None else lambda n, error: on_failed(pending[n].folder, pending[n].seed, error)
    if pending:
        run_seeds(pending, progress, workers, lambda n, result: on_result(pending[n].folder, pending[n].seed, result), failed)
    return [[results[path][seed] for seed in config.seeds if seed in results[path]] for config, path in runs]


def _warn_of_changes(folder: RunFolder, seeds: Sequence[int]) -> None:
    """One line if seeds will go on under other compiled code or another torch than they began with."""
    changed: dict[str, list[int]] = {}
    for seed in seeds:
        files = folder.seed(seed)
        if files.checkpoint_path.exists() and files.environment_path.exists() and not is_finished(files.path):
            recorded = read_json(files.environment_path)
            changes = ", ".join(decisive_changes(recorded)) if isinstance(recorded, dict) else ""
            if changes:
                changed.setdefault(changes, []).append(seed)
    for changes, numbers in changed.items():
        named = f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        _log.warning("hvcl: %s, %s: goes on with %s; an uninterrupted run may give other figures", folder.path, named, changes)
