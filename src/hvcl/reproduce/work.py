"""Doing it: all runs of any number of tables and figures together, each shown as soon as its own are done."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hvcl.core.errors import HvclError
from hvcl.core.files import read_json
from hvcl.reproduce.base import SEEDS, Budget, Finished, Found, Planned, Reproduction, Scale
from hvcl.reproduce.committed import Committed
from hvcl.reproduce.progress import Together
from hvcl.reproduce.write import Written, write
from hvcl.runs import Experiment, execute_all


@dataclass
class _Part:
    """One table or figure: its runs that are to be executed, and those that are known."""

    reproduction: Reproduction
    scale: Scale
    pending: dict[Path, Planned]
    known: dict[str, Finished]


@dataclass(frozen=True)
class Skipped:
    """A table or figure that cannot be made here, and why."""

    name: str
    reason: str


def reproduce(
    chosen: Sequence[Reproduction],
    out: Path,
    *,
    budget: Budget = "quick",
    seeds: int | None = None,
    workers: int | None = None,
    results: Path | None = None,
    console: Console | None = None,
    on_written: Callable[[Written], None] = lambda written: None,
    on_skipped: Callable[[Skipped], None] | None = None,
) -> list[Written]:
    """Run and write tables and figures, or go on with them.

    Args:
        chosen: which.
        out: the folder; a folder for each of them, and `runs`, which they share.
        budget: how much is run.
        seeds: how many, from 1 on; None: as many as each of them has by itself.
        workers: number of processes (one per core).
        results: a folder of committed results, which take the place of runs of the same settings.
        console: where progress is shown; None: nowhere.
        on_written: called with each as soon as it is written.
        on_skipped: called with one that cannot be made here: data or packages are missing, or a run of it has diverged; None:
            that raises.
    """
    committed = None if results is None else Committed(results)
    parts = []
    for one in chosen:
        try:
            parts.append(_part(one, _scale(one, budget, seeds), out, committed))
        except HvclError as error:
            if on_skipped is None:
                raise
            on_skipped(Skipped(one.name, str(error)))
    runs: dict[Path, Planned] = {}
    for part in parts:
        for folder, planned in part.pending.items():
            runs.setdefault(folder, planned)
    written: list[Written] = []
    done: dict[Path, list[dict[str, Any]]] = {}

    def finish() -> None:
        for part in [part for part in parts if part.pending.keys() <= done.keys()]:
            parts.remove(part)
            ran = {planned.key: _finished(planned, folder, done[folder]) for folder, planned in part.pending.items()}
            found = Found(part.scale, part.known | ran)
            written.append(write(part.reproduction, part.reproduction.read(found), part.scale, out / part.reproduction.name))
            on_written(written[-1])

    def on_finished(folder: Path, found: list[dict[str, Any]]) -> None:
        done[folder] = found
        finish()

    def on_failed(folder: Path, seed: int, error: HvclError) -> None:
        for part in [part for part in parts if folder in part.pending]:
            parts.remove(part)
            assert on_skipped is not None
            on_skipped(Skipped(part.reproduction.name, f"{part.pending[folder].experiment.method} seed {seed}: {error}"))

    longest = sorted(runs.items(), key=lambda item: -item[1].effort)  # first, so that no core waits for one at the end
    efforts = {folder: planned.effort for folder, planned in longest}
    view = None if console is None else partial(Together, efforts=efforts, console=console)
    if longest:
        experiments = [(planned.experiment, folder) for folder, planned in longest]
        failed = None if on_skipped is None else on_failed
        execute_all(experiments, workers=workers, resume=True, progress=view, on_finished=on_finished, on_failed=failed)
    return written


def _scale(one: Reproduction, budget: Budget, seeds: int | None) -> Scale:
    count = seeds if seeds is not None else one.seeds.get(budget, SEEDS[budget])
    return Scale(budget, tuple(range(1, count + 1)))


def _part(one: Reproduction, scale: Scale, out: Path, committed: Committed | None) -> _Part:
    part = _Part(one, scale, {}, {})
    for planned in one.plan(scale):
        cell = committed.get(planned, scale.budget) if committed is not None and one.from_results else None
        if cell is not None:
            part.known[planned.key] = cell
        else:
            planned.experiment.facts()  # raises what is missing
            part.pending[out / "runs" / folder_name(planned.experiment)] = planned
    return part


def _finished(planned: Planned, folder: Path, results: list[dict[str, Any]]) -> Finished:
    return Finished(planned, results, read_json(folder / "config.json"), folder)


def folder_name(experiment: Experiment) -> str:
    """The folder of a run: its method and a mark of all its settings but the seeds; the same run has the same folder."""
    document = experiment.to_json()
    identity = {key: document[key] for key in ("kind", *experiment.identity)}
    mark = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
    place = document.get("benchmark") or document.get("sequence") or "run"
    return re.sub(r"[^\w.-]+", "-", f"{place}-{experiment.method}-{mark}")
