"""hvcl compare: many methods on one benchmark, in the same setting, over all cores."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hvcl.commands.options import Parser, UsageError, add_settings, add_workers, parse_seeds, settings_of, typed
from hvcl.commands.output import print_runs
from hvcl.core.errors import HvclError
from hvcl.learners import known_methods, method
from hvcl.results import BUDGETS, cell_of, save_cell
from hvcl.runs import RunConfig, execute_all
from hvcl.streams import BENCHMARKS, StreamConfig, benchmark

OWN = "own"
"""The budget of methods that have epochs of their own."""

SETTING = ("scenario", "task_free")
"""Fields of the stream that a comparison is made in."""


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(prog="hvcl compare", description="Many methods on one benchmark, in the same setting, over all cores.")
    found.add_argument("benchmark", help="name of the benchmark (see hvcl list)")
    found.add_argument("--methods", default="all", help="names of methods, e.g. naive,ewc,hvcl (all)")
    found.add_argument("--seeds", metavar="1,2,3", type=typed(parse_seeds), default=(1, 2, 3), help="seeds, e.g. 1,2,3")
    found.add_argument(
        "--budget",
        default="standard",
        help="quick, standard or paper: how long networks are trained (standard); own: as each method's settings have it",
    )
    out = "runs/compare-BENCHMARK-SCENARIO-BUDGET"
    found.add_argument("--out", metavar="DIR", type=Path, help=f"folder of the runs ({out}); goes on where it stopped")
    found.add_argument("--results", metavar="DIR", type=Path, help="also write each method's result as JSON into this folder")
    add_workers(found)
    add_settings(found, "the setting", StreamConfig, "stream", only=SETTING)
    found.values |= {"benchmark": tuple(BENCHMARKS), "--budget": (*BUDGETS, OWN), "--methods": tuple(sorted(known_methods()))}
    return found


def run(options: argparse.Namespace) -> int:
    """Run them all, or go on with them, and print a table; exit code 1 if one of them could not be finished."""
    benchmark(options.benchmark)
    names = sorted(known_methods()) if options.methods == "all" else [name.strip() for name in options.methods.split(",")]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--methods names {twice} twice: name each method once")
    setting, budget = settings_of(options, "stream"), None if options.budget == OWN else options.budget
    runs = []
    for name in names:
        config = RunConfig.make(options.benchmark, name, options.seeds, setting, budget=budget)
        runs.append((config, name))
    stream = runs[0][0].stream
    supervision = "-task-free" if stream.task_free else ""
    out = options.out or Path("runs") / f"compare-{options.benchmark}-{stream.scenario}{supervision}-{options.budget}"

    def keep(folder: Path, found: list[dict[str, Any]]) -> None:
        if options.results:
            cell = cell_of(folder, found, None if method(folder.name).one_pass else budget)
            print(f"written: {save_cell(cell, options.results)}", flush=True)

    failed: dict[str, str] = {}

    def fail(folder: Path, seed: int, error: HvclError) -> None:
        failed[f"{folder.name} seed {seed}"] = str(error)

    placed = [(config, out / name) for config, name in runs]
    console = Console(stderr=True)
    execute_all(placed, workers=options.workers, resume=True, progress=console, on_finished=keep, on_failed=fail)
    print_runs([folder for _, folder in placed])
    for name, reason in failed.items():
        print(f"{name}: not finished: {reason}")
    print(f"run folders: {out}   report: hvcl report {out}")
    return int(bool(failed))
