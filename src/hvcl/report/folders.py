"""Finding run folders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hvcl.core.errors import RunError

SEARCH_DEPTH = 3
"""Levels below a folder at which runs are still found."""

_SEED_FOLDER = re.compile(r"seed-(\d+)")


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders that `folders` stand for: each one itself, or those at most `SEARCH_DEPTH` levels below it.

    Each run comes once, in the order given and by name below that. A folder that does not exist, or finding no run at
    all, raises a `RunError`.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder: give a run folder or one that contains runs")
        for run in _runs_below(folder, SEARCH_DEPTH):
            found.setdefault(run.resolve(), run)
    if not found:
        named = ", ".join(str(folder) for folder in folders) or "no folder"
        raise RunError(f"no run in {named}: a run folder holds a config.json and a seed-N folder for each seed")
    return list(found.values())


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    # Seeds without a config.json are a damaged run: reading it says so, where passing it over would hide its results.
    if (folder / "config.json").is_file() or seed_folders(folder):
        yield folder
    elif depth > 0:
        for child in sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")):
            yield from _runs_below(child, depth - 1)


def seed_folders(folder: Path) -> list[int]:
    """The seeds that have a folder in a run folder."""
    matches = (_SEED_FOLDER.fullmatch(child.name) for child in folder.iterdir() if child.is_dir())
    return [int(match[1]) for match in matches if match]
