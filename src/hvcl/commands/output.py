"""What commands print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvcl.report.terminal import print_table


def console() -> Console:
    """Standard output; 140 characters wide where it is no terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=140)


def print_runs(folders: Sequence[Path]) -> None:
    """The results of runs, as a table."""
    found = Console()
    print_table(folders, found if found.is_terminal else Console(width=120))


def print_lists(lists: Mapping[str, Mapping[str, str]], as_json: bool) -> None:
    """Names with one line about each, under titles."""
    if as_json:
        print(json.dumps(lists))
        return
    for title, entries in lists.items():
        print(f"{title}:")
        width = max([16, *map(len, entries)])
        for name, description in entries.items():
            print(f"  {name:<{width}} {description}")


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console().print(table)
