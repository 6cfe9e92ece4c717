"""hvcl check: run a random sample of results again and compare."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvcl.commands.options import Parser
from hvcl.core.errors import InputError, RunError
from hvcl.results import check, load_cells


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(prog="hvcl check", description="Run a random sample of results again and compare.")
    found.add_argument("folder", nargs="?", type=Path, default=Path("results"), help="folder of results (results)")
    found.add_argument("--sample", type=int, default=3, help="how many seeds of how many cells (3)")
    found.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    found.add_argument("--seconds", type=float, default=300.0, help="pass over what took longer than this (300)")
    found.add_argument("--tolerance", type=float, default=0.5, help="points of accuracy that may lie between two machines (0.5)")
    return found


def run(options: argparse.Namespace) -> int:
    """A line for each seed; exit code 1 if one differs by more than the tolerance."""
    if options.sample < 1:
        raise InputError(f"--sample must be at least 1, got {options.sample}")
    for name in ("seconds", "tolerance"):
        value = getattr(options, name)
        if not 0 <= value < float("inf"):
            raise InputError(f"--{name} must be a number of at least 0, got {value}")
    cells = load_cells(options.folder)
    if not cells:
        raise RunError(f"no results in {options.folder}")
    failed, checked = False, 0
    for found in check(cells, options.sample, options.seed, options.seconds):
        close = 100 * found.difference <= options.tolerance
        failed |= not close
        checked += 1
        verdict = "the same" if not found.difference else "close" if close else "DIFFERENT"
        print(
            f"{found.name} seed {found.seed}: {100 * found.committed:.2f} %, again {100 * found.found:.2f} %: {verdict}",
            flush=True,
        )
    if not checked:
        raise RunError(f"nothing was checked: no seed in {options.folder} took at most {options.seconds:g} seconds")
    return int(failed)
