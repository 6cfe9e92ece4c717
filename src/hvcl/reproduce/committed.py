"""Committed results in place of runs."""

from __future__ import annotations

from pathlib import Path

from hvcl.reproduce.base import Budget, Finished, Planned
from hvcl.results import Cell, load_cells
from hvcl.results.keys import LEARNER, STREAM
from hvcl.runs import RunConfig


class Committed:
    """A folder of results, asked by what would be run."""

    def __init__(self, folder: Path) -> None:
        self._cells = {_key(cell): cell for cell in load_cells(folder)}

    def get(self, planned: Planned, budget: Budget) -> Finished | None:
        """The committed results of the same stream and settings, or None."""
        config = planned.experiment
        if not isinstance(config, RunConfig):
            return None
        document = config.to_json()
        for named in (budget, None):
            key = (config.benchmark, document["scenario"], document["supervision"], config.method, named)
            cell = self._cells.get(key)
            if cell is not None and _same(cell, document[STREAM], document[LEARNER]):
                return Finished(planned, cell.results, cell.document, None, "committed")
        return None


def _key(cell: Cell) -> tuple[str, str, str, str, str | None]:
    return cell.benchmark, cell.scenario, cell.supervision, cell.method, cell.budget


def _same(cell: Cell, stream: dict[str, object], learner: dict[str, object]) -> bool:
    """Whether the settings that both know agree; a setting that one of them lacks came later, at its default."""
    pairs = ((cell.document[STREAM], stream), (cell.document[LEARNER], learner))
    return all(theirs[name] == ours[name] for theirs, ours in pairs for name in theirs.keys() & ours.keys())
