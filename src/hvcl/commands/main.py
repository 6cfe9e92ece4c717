"""The entry point: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import atexit
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Protocol

from hvcl.commands.options import Parser, UsageError
from hvcl.core.errors import HvclError, InterruptedRun, UnknownNameError

atexit.register(gc.freeze)  # searching all that torch has loaded for cycles at the end would take half a second

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

COMMANDS = {
    "run": "one method on one benchmark",
    "compare": "many methods on one benchmark, in the same setting, over all cores",
    "reproduce": "a table or figure of the paper, or all of them, with the claims that they bear on",
    "rl": "continual reinforcement learning: run, list, report",
    "stream": "test-then-train over a file of rows or standard input, then a report",
    "serve": "a saved model as a service that predicts and goes on learning",
    "demo": "five tasks in a row: naive, hvcl, exact and joint on split-digits, then a report",
    "list": "benchmarks and methods",
    "report": "one HTML page from run folders",
    "data": "data sets: what is there, fetch, verify",
    "table": "Markdown or HTML tables from a folder of results",
    "check": "run a random sample of results again and compare",
    "completion": "a script that makes a shell complete commands, names and options",
}
"""Every command, a module of this package, with one line about it."""


class Command(Protocol):
    """What the module of a command has."""

    def parser(self, words: Sequence[str]) -> Parser:
        """Its options; some depend on others, so all words are given."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it and return the exit code."""


def command(name: str) -> Command:
    """The command called `name`."""
    if name not in COMMANDS:
        raise UnknownNameError("command", name, COMMANDS)
    found: Command = import_module(f"hvcl.commands.{name}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. Bad use ends with one line on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except HvclError as error:
        print(f"hvcl: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USAGE
    except InterruptedRun:
        print("hvcl: interrupted, the run is saved: go on with the same command and --resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        print("hvcl: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_INTERRUPTED
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"hvcl: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return EXIT_USAGE


def _dispatch(words: list[str]) -> int:
    match words:
        case [] | ["--help" | "-h", *_]:
            _print_help()
            return 0
        case ["--version"]:
            print(version("hvcl"))
            return 0
        case [option, *_] if option.startswith("-"):
            raise UsageError(f"unknown option {option}: hvcl COMMAND [options], see hvcl --help")
    chosen = command(words[0])
    try:
        options = chosen.parser(words[1:]).parse(words[1:])
    except SystemExit:  # argparse has printed help
        return 0
    return chosen.run(options)


def _print_help() -> None:
    print("usage: hvcl COMMAND [options]\n\nHierarchical variational continual learning.\n")
    for name, text in COMMANDS.items():
        print(f"  {name:<12} {text}")
    print("\nhvcl COMMAND --help shows the options of a command, hvcl --version the version.")
