"""hvcl data: what data sets are there, fetch them, verify them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hvcl.commands.options import Parser
from hvcl.core.errors import InputError
from hvcl.streams import files
from hvcl.streams.datasets import known_datasets


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(prog="hvcl data", description="Data sets: what is there, fetch, verify.")
    actions = ("list", "get", "verify")
    found.add_argument("action", choices=actions, help="list all, get one, verify one (or all that are there)")
    found.add_argument("names", nargs="*", metavar="NAME", help="data sets, e.g. mnist")
    found.add_argument("--force", action="store_true", help="get: replace files that are damaged")
    found.values |= {"action": actions, "names": tuple(known_datasets())}
    return found


def run(options: argparse.Namespace) -> int:
    """List, get or verify."""
    if options.action == "get":
        if not options.names:
            raise InputError(f"which data set? hvcl data get NAME, known are {', '.join(known_datasets())}")
        for name in options.names:
            files.fetch(name, force=options.force)
            print(f"{name}: in {files.data_folder()}")
        return 0
    if options.action == "verify":
        names = options.names or [n for n in known_datasets() if all(f.state != "missing" for f in files.status(n))]
        for name in names:
            files.verify(name)
            print(f"{name}: ok")
        return 0
    print(f"data folder: {files.data_folder()}")
    for name in options.names or known_datasets():
        states = files.status(name)
        bad = [f"{status.path.name} {status.state}" for status in states if status.state != "ok"]
        missing = bad and all(status.state == "missing" for status in states)
        print(f"  {name:<10} {'missing' if missing else ', '.join(bad) if bad else 'ok' if states else 'ok (embedded)'}")
    return 0
