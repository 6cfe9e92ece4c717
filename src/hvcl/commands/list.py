"""hvcl list: benchmarks and methods."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hvcl.commands.options import Parser
from hvcl.commands.output import print_lists
from hvcl.learners import known_methods
from hvcl.streams import BENCHMARKS


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(prog="hvcl list", description="Benchmarks and methods.")
    found.add_argument("--json", action="store_true", help="as JSON")
    return found


def run(options: argparse.Namespace) -> int:
    """Print them."""
    benchmarks = {name: benchmark.description for name, benchmark in BENCHMARKS.items()}
    methods = {name: method.description for name, method in sorted(known_methods().items())}
    print_lists({"benchmarks": benchmarks, "methods": methods}, options.json)
    return 0
