"""hvcl report: one HTML page from run folders."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvcl.commands.options import Parser
from hvcl.report import write_report


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(prog="hvcl report", description="One HTML page from run folders.")
    found.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders that hold some")
    found.add_argument("--output", "-o", type=Path, metavar="FILE", help="where to write it (DIR/report.html of the first DIR)")
    found.add_argument("--title", help="title of the page")
    return found


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    output = options.output or options.folders[0] / "report.html"
    print(f"report: {write_report(options.folders, output, title=options.title)}")
    return 0
