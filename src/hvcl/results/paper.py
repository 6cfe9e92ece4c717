"""The paper's own figures, each with the scenario that it is a figure of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.core.files import read_json

PAPER_FILE = "paper.json"
"""Name of the file, in a folder of results."""


@dataclass(frozen=True)
class PaperFigure:
    """An accuracy that the paper reports, in %."""

    accuracy: float
    deviation: float
    """Standard deviation over seeds."""
    supervision: str | None
    """boundaries or task-free; None where the paper does not state it."""
    memory: str | None
    """What is stored of past examples, in words; None where the paper does not state it."""

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} ± {self.deviation:.2f}"


PaperFigures = dict[tuple[str, str, str], PaperFigure]
"""By benchmark, scenario (domain, class or task) and method."""


def load_paper(folder: Path) -> PaperFigures:
    """The paper's figures that lie in a folder of results; none where its file is missing.

    The file's `figures` are nested by benchmark, scenario and method. A file of another form raises a `RunError` that names it.
    """
    path = folder / PAPER_FILE
    if not path.exists():
        return {}
    document = read_json(path)
    try:
        return {
            (benchmark, scenario, method): PaperFigure(
                float(figure["accuracy"]), float(figure["deviation"]), figure["supervision"], figure["memory"]
            )
            for benchmark, scenarios in document["figures"].items()
            for scenario, methods in scenarios.items()
            for method, figure in methods.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} does not hold figures by benchmark, scenario and method ({error!r})") from None
