"""One cell of the table: every seed of one method on one benchmark, in one scenario, with one budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvcl.core.errors import RunError
from hvcl.core.storage import read_json, write_json

BUDGETS = ("quick", "standard", "paper")
"""How long networks are trained: for a look, for the committed table, as published."""

_KEYS = ("benchmark", "scenario", "supervision", "memory", "method", "seeds", "evaluated_on", "task_names")


@dataclass(frozen=True)
class Cell:
    """A file of results."""

    document: dict[str, Any]

    @property
    def benchmark(self) -> str:
        """Its name."""
        return str(self.document["benchmark"])

    @property
    def scenario(self) -> str:
        """domain, class or task."""
        return str(self.document["scenario"])

    @property
    def supervision(self) -> str:
        """boundaries or task-free."""
        return str(self.document["supervision"])

    @property
    def method(self) -> str:
        """Its name."""
        return str(self.document["method"])

    @property
    def budget(self) -> str | None:
        """The budget; None for figures that were made with settings of their own."""
        found = self.document.get("budget")
        return None if found is None else str(found)

    @property
    def memory(self) -> str:
        """What is stored of past data, in words."""
        return str(self.document["memory"])

    @property
    def seeds(self) -> list[int]:
        """Which."""
        return [int(result["seed"]) for result in self.document["results"]]

    @property
    def accuracies(self) -> list[float]:
        """Final average accuracy of every seed, as fractions."""
        return [float(result["average_accuracy"]) for result in self.document["results"]]

    @property
    def forgetting(self) -> float:
        """Mean over seeds, as a fraction."""
        return sum(float(result["forgetting"]) for result in self.document["results"]) / len(self.document["results"])

    @property
    def epochs(self) -> int:
        """Passes over each task's data."""
        return int(self.document["stream"]["epochs"])

    @property
    def seconds(self) -> float:
        """Mean over seeds."""
        return sum(float(result["seconds"]) for result in self.document["results"]) / len(self.document["results"])

    @property
    def name(self) -> str:
        """Of its file, without the ending."""
        parts = [self.benchmark, self.scenario]
        parts += ["task-free"] if self.supervision == "task-free" else []
        parts += [self.method, *([self.budget] if self.budget else [])]
        return "-".join(parts)


def cell_of(folder: Path, results: Sequence[dict[str, Any]], budget: str | None = None) -> Cell:
    """The cell of a finished run folder."""
    config = read_json(folder / "config.json")
    accuracies = [result["average_accuracy"] for result in results]
    facts = read_json(folder / f"seed-{results[0]['seed']}" / "environment.json")
    document = {key: config[key] for key in _KEYS} | ({"budget": budget} if budget else {})
    document["seeds"] = [result["seed"] for result in results]
    document |= {"mean_accuracy": sum(accuracies) / len(accuracies), "results": [_kept(result) for result in results]}
    document |= {"stream": config["stream"], "learner": config["learner"]}
    return Cell(document | {"environment": {key: value for key, value in facts.items() if key != "seed"}})


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    """What a table or a reader may ask for; what every expert of every layer does stays in the run folder."""
    left_out = {"layers", "experts"} | (set() if result.get("generation") else {"generation"})
    return {name: value for name, value in result.items() if name not in left_out}


def save_cell(cell: Cell, folder: Path) -> Path:
    """Write the cell's file into `folder`, in place of an older one, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.name}.json"
    write_json(path, cell.document)
    return path


def load_cells(folder: Path) -> list[Cell]:
    """All cells in a folder, by name. A file that is no cell raises a `RunError` that names it."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder: give one that holds results")
    cells = []
    for path in sorted(folder.glob("*.json")):
        document = read_json(path)
        cell = Cell(document) if isinstance(document, dict) else Cell({})
        try:
            complete = (
                bool(cell.accuracies)
                and min(cell.seconds, cell.epochs) >= 0
                and bool(cell.name and cell.memory and str(cell.forgetting))
            )
            json.dumps([document["stream"], document["learner"]])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise RunError(f"{path} is not a file of results ({error!r})") from None
        if complete:
            cells.append(cell)
    return cells
