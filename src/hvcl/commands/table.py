"""hvcl table: Markdown or HTML tables from a folder of results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvcl.commands.options import Parser
from hvcl.core.errors import InputError
from hvcl.core.files import write_atomically
from hvcl.results import BUDGETS, html_table, load_cells, markdown_table, overview


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(prog="hvcl table", description="Markdown or HTML tables from a folder of results.")
    found.add_argument("folder", nargs="?", type=Path, default=Path("results"), help="folder of results (results)")
    found.add_argument("--overview", action="store_true", help="one table: a row a method, a column a benchmark and scenario")
    found.add_argument("--task-free", action="store_true", help="overview: only figures without boundaries in training")
    found.add_argument("--budget", default="standard", help="overview: which budget (standard)")
    found.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page instead of printing Markdown")
    found.values["--budget"] = BUDGETS
    return found


def run(options: argparse.Namespace) -> int:
    """Print the table, or write the page."""
    cells = load_cells(options.folder)
    if not cells:
        raise InputError(f"no results in {options.folder}: make some with hvcl compare ... --results {options.folder}")
    if options.budget not in BUDGETS:
        raise InputError(f"--budget must be one of {', '.join(BUDGETS)}, got {options.budget!r}")
    if options.overview:
        print(overview(cells, "task-free" if options.task_free else None, options.budget))
    elif options.html:
        write_atomically(options.html, html_table(cells))
        print(f"table: {options.html}")
    else:
        print(markdown_table(cells))
    return 0
