"""Recorded trials and measurements: a file of JSON objects, one on each line, that only grows."""

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """All records of a file, in the order in which they were made; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_record(path: Path, record: Record) -> None:
    """Add one record."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
