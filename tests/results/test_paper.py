"""The paper's figures: a scenario for each, and only figures that the paper has."""

import json
from pathlib import Path

import pytest

from hvcl.core.errors import RunError
from hvcl.results import load_cells, load_paper
from hvcl.streams import BENCHMARKS

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_every_figure_has_a_known_benchmark_and_scenario():
    found = load_paper(RESULTS)
    assert {benchmark for benchmark, _, _ in found} <= set(BENCHMARKS)
    assert {scenario for _, scenario, _ in found} == {"domain", "class", "task"}
    assert str(found["split-mnist", "task", "ewc"]) == "85.48 ± 5.36"
    assert str(found["split-mnist", "domain", "hvcl"]) == "97.50 ± 0.33"
    assert len({(benchmark, method) for benchmark, _, method in found}) == len(found) == 55, "the paper has one figure for each"


def test_committed_cells_have_it_in_its_scenario_only():
    cells = {cell.name: cell for cell in load_cells(RESULTS)}
    assert str(cells["split-mnist-task-ewc-standard"].paper) == "85.48 ± 5.36"
    assert cells["split-mnist-class-ewc-standard"].paper is None
    assert cells["split-mnist-domain-ewc-standard"].paper is None
    assert str(cells["split-mnist-domain-hvcl-paper-standard"].paper) == "97.50 ± 0.33"
    assert cells["permuted-mnist-domain-naive-standard"].paper is None, "the paper's is a Class-IL figure"


@pytest.mark.parametrize("document", [{}, [], {"figures": {"split-mnist": {"hvcl": 97.5}}}, {"figures": {"b": {"s": {"m": {}}}}}])
def test_a_file_of_another_form_is_named(document, tmp_path):
    (tmp_path / "paper.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match=r"paper\.json"):
        load_paper(tmp_path)


def test_without_the_file_there_are_none(tmp_path):
    assert load_paper(tmp_path) == {}
