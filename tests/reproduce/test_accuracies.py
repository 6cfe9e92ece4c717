"""The tables: what is run, in which scenario, and what stands beside what."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvcl.reproduce import REPRODUCTIONS, Finished, Found, Scale
from hvcl.reproduce.accuracies import AccuracyTable
from hvcl.reproduce.paper import MNIST

TABLE = REPRODUCTIONS["table-mnist"]


def found_with(accuracies, budget="quick"):
    """The table's runs, with these accuracies (in %) by method; 90 for the others."""
    scale = Scale(budget, (1, 2, 3))
    runs = {}
    for planned in TABLE.plan(scale):
        document = planned.experiment.to_json()
        value = accuracies.get(planned.experiment.method, 90.0) / 100
        results = [{"seed": seed, "average_accuracy": value + 0.0001 * seed} for seed in scale.seeds]
        runs[planned.key] = Finished(planned, results, document | {"memory": "none", "task_names": ["a"]}, Path("unused"))
    return Found(scale, runs)


def test_figures_stand_beside_ours_of_the_same_scenario_only():
    rows = TABLE.read(found_with({})).rows
    naive = {row.scenario: row for row in rows if row.label == "Dense network"}
    assert naive["Task-IL"].paper["accuracy"].mean == 86.15
    assert naive["Domain-IL"].paper == {}
    assert {row.scenario for row in rows if row.label == "Elastic weight consol."} == {"Task-IL"}


def test_methods_that_are_not_here_are_quoted():
    assert not [row for row in TABLE.read(found_with({})).rows if row.source == "quoted"]
    elsewhere = [replace(row, method=None) if row.label == "CURL" else row for row in MNIST]
    table = AccuracyTable("table-mnist", "", "", elsewhere, ("split-mnist", "permuted-mnist"))
    quoted = [row for row in table.read(found_with({})).rows if row.source == "quoted"]
    assert {row.label for row in quoted} == {"CURL"}
    assert all(row.seeds == 0 and not row.values and row.paper for row in quoted)


@pytest.mark.parametrize(("hvcl", "naive", "verdict"), [(95.0, 80.0, "holds"), (80.0, 95.0, "does not hold here")])
def test_claims_follow_from_the_numbers(hvcl, naive, verdict):
    findings = TABLE.read(found_with({"hvcl": hvcl, "hvcl-paper": 60.0, "naive": naive})).findings
    assert next(f for f in findings if "above naive" in f.claim).verdict == verdict


def test_quick_has_one_benchmark_and_no_claim_about_levels():
    outcome = TABLE.read(found_with({}))
    assert {row.benchmark for row in outcome.rows if row.source == "run"} == {"split-digits"}
    assert not [f for f in outcome.findings if "level" in f.claim]
    assert "levels cannot agree" in " ".join(outcome.notes)
