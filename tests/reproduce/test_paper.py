"""The paper's tables are those of results/paper.json."""

from pathlib import Path

from hvcl.learners import known_methods
from hvcl.reproduce.paper import CIFAR, MNIST
from hvcl.results import load_paper

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_every_figure_is_that_of_the_committed_file():
    ours = {
        (benchmark, quoted.scenario, row.method): (quoted.accuracy, quoted.deviation)
        for row in (*MNIST, *CIFAR)
        if row.method is not None
        for benchmark, quoted in row.figures.items()
    }
    assert ours == {key: (figure.accuracy, figure.deviation) for key, figure in load_paper(RESULTS).items()}


def test_every_system_of_the_papers_tables_is_a_method_here():
    assert {row.method for row in (*MNIST, *CIFAR)} <= set(known_methods())
