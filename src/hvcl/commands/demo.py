"""hvcl demo: five tasks in a row, five methods, one report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hvcl.commands.options import Parser, parse_seeds, typed
from hvcl.commands.output import print_runs
from hvcl.core.manifest import is_finished
from hvcl.report import write_report
from hvcl.runs import RunConfig, RunFolder, execute_all


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(
        prog="hvcl demo",
        description="Five tasks in a row on split-digits, five methods, then a report.",
    )
    out = Path("runs/demo")
    found.add_argument("--out", metavar="DIR", type=Path, default=out, help="folder of the runs and the report (runs/demo)")
    found.add_argument("--seeds", metavar="1,2,3", type=typed(parse_seeds), default=(1, 2, 3), help="seeds, e.g. 1,2,3")
    return found


def run(options: argparse.Namespace) -> int:
    """Run the methods, and write the report."""
    print(
        "Five tasks in a row: 0 or 1? 2 or 3? ... 8 or 9? One network answers 'first or second of the pair' for all of them\n"
        "(Domain-IL: nobody says which pair it faces). naive forgets, joint may see all data again, hvcl has only its priors,\n"
        "hvcl-growing has the same networks behind a generative gate, exact has only sums over the examples, each seen once.\n"
    )
    runs = [
        (RunConfig.make("split-digits", name, options.seeds, {"scenario": "domain"}), options.out / name)
        for name in ("joint", "exact", "hvcl-growing", "hvcl", "naive")
    ]
    folders = [folder for _, folder in reversed(runs)]
    unfinished = any((folder / "config.json").exists() and not _finished(folder, options.seeds) for folder in folders)
    execute_all(runs, resume=True, force=not unfinished, progress=Console(stderr=True))
    print()
    print_runs(folders)
    page = write_report(folders, options.out / "report.html", title="hvcl demo: five tasks in a row")
    print(f"report: {page}")
    return 0


def _finished(folder: Path, seeds: Sequence[int]) -> bool:
    return all(is_finished(RunFolder(folder).seed(seed).path) for seed in seeds)
