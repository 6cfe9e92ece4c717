"""Re-running a sample of the committed figures."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvcl.results import keys
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
        """Absolute difference of the two accuracies, as a fraction."""
        return abs(self.found - self.committed)


def check(cells: Sequence[Cell], sample: int, seed: int, most_seconds: float = float("inf")) -> Iterator[Check]:
    """Run `sample` random seeds of random cells again; yields the committed and the new accuracy of each.

    Args:
        cells: the cells to choose from.
        sample: how many seeds to run (all, if there are fewer).
        seed: seed of the choice.
        most_seconds: leave out what took longer than this.
    """
    choices = [(cell, result) for cell in cells for result in cell.results if float(result[keys.SECONDS]) <= most_seconds]
    for cell, result in random.Random(seed).sample(choices, min(sample, len(choices))):
        document = cell.document
        config = RunConfig.make(cell.benchmark, cell.method, (result[keys.SEED],), document[keys.STREAM], document[keys.LEARNER])
        with tempfile.TemporaryDirectory() as folder:
            path = RunFolder(Path(folder) / "run")
            path.prepare(config, {"memory": cell.memory, "task_names": document["task_names"]}, resume=False, force=False)
            again = run_seed(path, result[keys.SEED])
        yield Check(cell.name, result[keys.SEED], float(result[keys.AVERAGE_ACCURACY]), float(again[keys.AVERAGE_ACCURACY]))
