"""hvcl reproduce: a table or figure of the paper, from what is run to a page with its claims."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hvcl.commands.main import EXIT_INTERRUPTED
from hvcl.commands.options import Parser, UsageError, add_workers
from hvcl.commands.output import print_lists
from hvcl.core.errors import InputError, InterruptedRun
from hvcl.reproduce import BUDGETS, REPRODUCTIONS, SEEDS, Skipped, Written, reproduce

ALL = "all"

EXAMPLES = """for example
  hvcl reproduce --list                                     what there is
  hvcl reproduce table-mnist                                a look, on the embedded digits
  hvcl reproduce figure-crl --budget standard --seeds 3     needs pip install 'hvcl[bullet]'
  hvcl reproduce all --budget quick                         everything, in minutes"""


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(
        prog="hvcl reproduce",
        description="Run a table or figure of the paper and write it: SVG, PNG, data, and a page with the claims it bears on.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("name", nargs="?", help="which table or figure (see --list), or all")
    found.add_argument("--list", action="store_true", help="print the tables and figures")
    found.add_argument("--json", action="store_true", help="with --list: as JSON")
    found.add_argument(
        "--budget",
        default="quick",
        help="quick (embedded data, small chain of tasks), standard (the paper's data and chain, shortened) or paper (quick)",
    )
    counts = ", ".join(f"{count} at {budget}" for budget, count in SEEDS.items())
    found.add_argument("--seeds", metavar="N", type=int, help=f"how many seeds, from 1 on (mostly {counts})")
    found.add_argument("--out", metavar="DIR", type=Path, help="folder (runs/reproduce-BUDGET); goes on where it stopped")
    found.add_argument("--results", metavar="DIR", type=Path, help="take results of the same settings from this folder")
    add_workers(found)
    found.values |= {"name": (*REPRODUCTIONS, ALL), "--budget": BUDGETS}
    return found


def run(options: argparse.Namespace) -> int:
    """List, or run and write; exit code 1 if something of `all` could not be made."""
    if options.list:
        of_paper = {name: one.title for name, one in REPRODUCTIONS.items() if one.paper}
        beyond = {name: one.title for name, one in REPRODUCTIONS.items() if not one.paper}
        print_lists({"of the paper": of_paper, "beyond it": beyond}, options.json)
        return 0
    if options.name is None:
        raise UsageError("which table or figure? hvcl reproduce NAME, or all (see hvcl reproduce --list)")
    if options.budget not in BUDGETS:
        raise InputError(f"--budget must be one of {', '.join(BUDGETS)}, got {options.budget!r}")
    if options.seeds is not None and options.seeds < 1:
        raise InputError(f"--seeds is how many seeds are run: at least 1, got {options.seeds}")
    everything = options.name == ALL
    skipped: list[Skipped] = []

    def skip(one: Skipped) -> None:
        skipped.append(one)
        print(f"{one.name}: left out: {one.reason}", flush=True)

    try:
        reproduce(
            list(REPRODUCTIONS.values()) if everything else [REPRODUCTIONS[options.name]],
            options.out or Path("runs") / f"reproduce-{options.budget}",
            budget=options.budget,
            seeds=options.seeds,
            workers=options.workers,
            results=options.results,
            console=Console(stderr=True),
            on_written=_print,
            on_skipped=skip if everything else None,
        )
    except InterruptedRun:
        print("hvcl: interrupted, the runs are saved: the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    return int(bool(skipped))


def _print(written: Written) -> None:
    print(f"\n{written.name}")
    for finding in written.outcome.findings:
        print(f"  {finding.claim}: {finding.verdict}. {finding.because}")
    if written.missing:
        print(f"  no PNG: {written.missing}")
    print(f"  page: {written.page}", flush=True)
