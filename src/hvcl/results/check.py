"""Re-running a sample of the committed figures."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvcl.results.cells import Cell
from hvcl.runs.folder import RunFolder
from hvcl.runs.seed import run_seed
from hvcl.runs.supervised import RunConfig


@dataclass(frozen=True)
class Check:
    """One seed of one cell, run again."""

    name: str
    seed: int
    committed: float
    found: float

    @property
    def difference(self) -> float:
        """Of the accuracies, as a fraction."""
        return abs(self.found - self.committed)


def check(cells: Sequence[Cell], sample: int, seed: int, most_seconds: float = float("inf")) -> Iterator[Check]:
    """Run `sample` random seeds of random cells again, and say what came out.

    Args:
        cells: to choose from.
        sample: how many (all, if there are fewer).
        seed: of the choice.
        most_seconds: pass over what took longer than this.
    """
    choices = [
        (cell, result) for cell in cells for result in cell.document["results"] if float(result["seconds"]) <= most_seconds
    ]
    for cell, result in random.Random(seed).sample(choices, min(sample, len(choices))):
        document = cell.document
        config = RunConfig.make(cell.benchmark, cell.method, (result["seed"],), document["stream"], document["learner"])
        with tempfile.TemporaryDirectory() as folder:
            path = RunFolder(Path(folder) / "run")
            path.prepare(config, {"memory": cell.memory, "task_names": document["task_names"]}, resume=False, force=False)
            again = run_seed(path, result["seed"])
        yield Check(cell.name, result["seed"], float(result["average_accuracy"]), float(again["average_accuracy"]))
