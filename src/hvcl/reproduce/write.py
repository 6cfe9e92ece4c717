"""The files of a table or figure: SVG, PNG, data as JSON and CSV, and one HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvcl.core.errors import InputError
from hvcl.core.files import write_atomically, write_json
from hvcl.report.present import svg_file
from hvcl.report.raster import png_file
from hvcl.report.statistic import Statistic
from hvcl.reproduce.base import Reproduction, Scale
from hvcl.reproduce.outcome import Outcome, Row
from hvcl.reproduce.page import page
from hvcl.runs.environment import environment
from hvcl.runs.folder import finite

LABELS = ("label", "benchmark", "scenario", "supervision", "memory", "seeds", "source", "note")
"""What stands beside every figure."""


@dataclass(frozen=True)
class Written:
    """What was written."""

    name: str
    page: Path
    outcome: Outcome
    missing: str
    """What could not be written and why; empty if all is there."""


def write(one: Reproduction, outcome: Outcome, scale: Scale, folder: Path) -> Written:
    """Write all files into `folder`, in place of older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{one.name}.svg", svg_file(outcome.picture))
    try:
        write_atomically(folder / f"{one.name}.png", png_file(outcome.picture))
        missing = ""
    except InputError as error:
        missing = str(error)
    write_json(folder / f"{one.name}.json", document(one, outcome, scale))
    write_atomically(folder / f"{one.name}.csv", table(outcome))
    place = folder / f"{one.name}.html"
    write_atomically(place, page(one, outcome, scale))
    return Written(one.name, place, outcome, missing)


def document(one: Reproduction, outcome: Outcome, scale: Scale) -> dict[str, Any]:
    """Everything as plain JSON values."""
    facts = {name: value for name, value in environment(scale.seeds[0]).items() if name not in ("seed", "threads")}
    found: dict[str, Any] = finite(
        {
            "name": one.name,
            "title": one.title,
            "paper": one.paper,
            "budget": scale.budget,
            "rows": [_plain(row) for row in outcome.rows],
            "findings": [asdict(finding) for finding in outcome.findings],
            "notes": list(outcome.notes),
            "data": dict(outcome.data),
            "environment": facts,
        }
    )
    return found


def _plain(row: Row) -> dict[str, Any]:
    labels = {name: getattr(row, name) for name in LABELS}
    return labels | {"values": _statistics(row.values), "paper": _statistics(row.paper)}


def _statistics(values: Mapping[str, Statistic | None]) -> dict[str, Any]:
    return {name: None if value is None else value._asdict() for name, value in values.items()}


def table(outcome: Outcome) -> str:
    """The rows as CSV: means and standard deviations, ours and the paper's."""
    head = [*LABELS]
    for key in outcome.columns:
        head += [key, f"{key}_sd", f"paper_{key}", f"paper_{key}_sd"]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(head)
    for row in outcome.rows:
        cells: list[object] = [getattr(row, name) for name in LABELS]
        for key in outcome.columns:
            for value in (row.values.get(key), row.paper.get(key)):
                cells += ["", ""] if value is None else [value.mean, "" if value.sd is None else value.sd]
        lines.writerow(cells)
    return text.getvalue()
