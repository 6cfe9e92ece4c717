"""One cell of the table: every seed of one method on one benchmark, in one scenario, with one budget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvcl.core.errors import RunError
from hvcl.core.files import read_json, write_json
from hvcl.results import keys
from hvcl.results.paper import PAPER_FILE, PaperFigure, load_paper
from hvcl.streams import BENCHMARKS

BUDGETS = ("quick", "standard", "paper")
"""How long networks are trained: for a first impression, for the committed table, as published."""


@dataclass(frozen=True)
class Cell:
    """A file of results."""

    document: dict[str, Any]
    """The file's content."""
    paper: PaperFigure | None = None
    """The paper's figure for the same benchmark, scenario and method, if it has one."""

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
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
        """Name of the method."""
        return str(self.document["method"])

    @property
    def budget(self) -> str | None:
        """The budget; None for figures that were made with epochs of their own."""
        found = self.document.get(keys.BUDGET)
        return None if found is None else str(found)

    @property
    def memory(self) -> str:
        """What is stored of past data, in words."""
        return str(self.document["memory"])

    @property
    def results(self) -> list[dict[str, Any]]:
        """The result of every seed."""
        return list(self.document[keys.RESULTS])

    @property
    def seeds(self) -> list[int]:
        """The seeds that were run, in the order of `results`."""
        return [int(result[keys.SEED]) for result in self.results]

    @property
    def accuracies(self) -> list[float]:
        """Final average accuracy of every seed, as fractions."""
        return [float(result[keys.AVERAGE_ACCURACY]) for result in self.results]

    @property
    def forgetting(self) -> float:
        """Mean over seeds, as a fraction."""
        return self._mean(keys.FORGETTING)

    @property
    def epochs(self) -> int:
        """Passes over each task's data."""
        return int(self.document[keys.STREAM]["epochs"])

    @property
    def seconds(self) -> float:
        """Mean over seeds of the wall time of training and evaluation."""
        return self._mean(keys.SECONDS)

    @property
    def setting(self) -> str:
        """What tells cells of a benchmark apart, and the name of the cell's file without its ending."""
        parts = [self.scenario]
        parts += ["task-free"] if self.supervision == "task-free" else []
        parts += [self.method, *([self.budget] if self.budget else [])]
        return "-".join(parts)

    @property
    def name(self) -> str:
        """What tells all cells apart: the benchmark and the setting."""
        return f"{self.benchmark}-{self.setting}"

    def _mean(self, key: str) -> float:
        return sum(float(result[key]) for result in self.results) / len(self.results)


def cell_of(folder: Path, results: Sequence[dict[str, Any]], budget: str | None = None) -> Cell:
    """The cell of a finished run folder."""
    config = read_json(folder / "config.json")
    facts = read_json(folder / f"seed-{results[0][keys.SEED]}" / "environment.json")
    return make_cell(config, results, facts, budget)


def make_cell(
    config: dict[str, Any], results: Sequence[dict[str, Any]], environment: dict[str, Any], budget: str | None = None
) -> Cell:
    """The cell of finished seeds.

    Args:
        config: of the run, as its folder holds it, with memory and the names of the tasks.
        results: of every seed.
        environment: that of one seed.
        budget: None for figures that were made with epochs of their own.
    """
    accuracies = [result[keys.AVERAGE_ACCURACY] for result in results]
    document = {key: config[key] for key in keys.IDENTITY} | ({keys.BUDGET: budget} if budget else {})
    document["seeds"] = [result[keys.SEED] for result in results]
    document[keys.MEAN_ACCURACY] = sum(accuracies) / len(accuracies)
    document[keys.RESULTS] = [_kept(result) for result in results]
    document |= {keys.STREAM: config[keys.STREAM], keys.LEARNER: config[keys.LEARNER]}
    return Cell(document | {keys.ENVIRONMENT: {key: value for key, value in environment.items() if key != keys.SEED}})


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    """What a table or a reader may ask for; what every expert of every layer does stays in the run folder."""
    left_out = {"layers", "experts"} | (set() if result.get(keys.GENERATION) else {keys.GENERATION})
    return {name: value for name, value in result.items() if name not in left_out}


def cell_path(cell: Cell, folder: Path) -> Path:
    """Where a cell's file lies in a folder of results: under its benchmark, by its setting."""
    return folder / cell.benchmark / f"{cell.setting}.json"


def save_cell(cell: Cell, folder: Path) -> Path:
    """Write the cell's file into a folder of results, in place of an older one, and return its path."""
    path = cell_path(cell, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, cell.document)
    return path


def load_cells(folder: Path) -> list[Cell]:
    """All cells in a folder of results, by name, each with the paper's figure of the same scenario.

    Cells lie under the name of their benchmark, or in the folder itself; of two with the same name the former counts. Folders
    that are named after no benchmark hold other figures and are not read. A file that is no cell raises a `RunError` that names
    it.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder: give one that holds results")
    paper = load_paper(folder)
    cells = {}
    for path in _files(folder):
        cell = _load_cell(path)
        figure = paper.get((cell.benchmark, cell.scenario, cell.method.removesuffix("-paper")))
        cells[cell.name] = replace(cell, paper=figure)
    return [cells[name] for name in sorted(cells)]


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.glob("*.json") if path.name != PAPER_FILE)
    for benchmark in BENCHMARKS:
        yield from sorted((folder / benchmark).glob("*.json"))


def _load_cell(path: Path) -> Cell:
    document = read_json(path)
    cell = Cell(document) if isinstance(document, dict) else Cell({})
    try:
        # everything that a table shows is read once, so that a table never meets a field that is missing
        read = [cell.accuracies, cell.seconds, cell.epochs, cell.name, cell.memory, cell.forgetting]
        json.dumps([*read, document[keys.STREAM], document[keys.LEARNER]])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise RunError(f"{path} is not a file of results ({error!r})") from None
    return cell
