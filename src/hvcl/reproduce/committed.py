"""Committed results in place of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvcl.core.files import read_json
from hvcl.reproduce.base import Budget, Finished, Planned
from hvcl.results import Cell, load_cells
from hvcl.results.keys import LEARNER, STREAM
from hvcl.runs import RunConfig


class Committed:
    """A folder of results, asked by what would be run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cells = {_key(cell): cell for cell in load_cells(folder)}

    def get(self, planned: Planned, budget: Budget) -> Finished | None:
        """The committed results of the same stream and settings, or None."""
        config = planned.experiment
        document = config.to_json()
        if not isinstance(config, RunConfig):
            return self._of_agents(planned, document)
        for named in (budget, None):
            key = (config.benchmark, document["scenario"], document["supervision"], config.method, named)
            cell = self._cells.get(key)
            if cell is not None and _same(cell, document[STREAM], document[LEARNER]):
                return Finished(planned, cell.results, cell.document, None, "committed")
        return None

    def _of_agents(self, planned: Planned, document: dict[str, Any]) -> Finished | None:
        """Results of a chain of tasks: rl/SEQUENCE/METHOD.json."""
        path = self._folder / "rl" / str(document.get("sequence")) / f"{document['method']}.json"
        if not path.is_file():
            return None
        found = read_json(path)
        same = all(_agree(found[part], document[part]) for part in ("protocol", "agent"))
        return Finished(planned, found["results"], found, None, "committed") if same else None


def _key(cell: Cell) -> tuple[str, str, str, str, str | None]:
    return cell.benchmark, cell.scenario, cell.supervision, cell.method, cell.budget


def _same(cell: Cell, stream: dict[str, object], learner: dict[str, object]) -> bool:
    return _agree(cell.document[STREAM], stream) and _agree(cell.document[LEARNER], learner)


def _agree(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Whether the settings that both know agree; one that is missing on a side came later, at its default."""
    return all(theirs[name] == ours[name] for name in theirs.keys() & ours.keys())
