"""The supervised figures, each from short runs to what it says."""

import math
from pathlib import Path

import pytest

from hvcl.reproduce import REPRODUCTIONS, Finished, Found, Scale
from hvcl.reproduce.figure_features import features_of
from hvcl.reproduce.figure_paths import task_information


def test_every_figure_has_a_plan_for_every_budget():
    pytest.importorskip("gymnasium")
    for one in REPRODUCTIONS.values():
        for budget in ("quick", "standard", "paper"):
            planned = one.plan(Scale(budget, (1,)))
            keys = [run.key for run in planned]
            assert len(set(keys)) == len(keys) > 0
            if budget == "quick":
                places = {run.experiment.to_json().get("benchmark", "") or run.experiment.sequence for run in planned}
                assert places <= {"split-digits", "classic"}, "nothing is downloaded"


def test_diversity(outcome_of):
    outcome = outcome_of(REPRODUCTIONS["figure-diversity"])
    assert [row.label for row in outcome.rows] == ["no bonus", "entropy penalties", "DPP", "DPP and entropy"]
    for row in outcome.rows:
        assert 0 <= row.values["class_information"].mean <= 1, "two classes: at most one bit"
        information = row.values["marginal_entropy"].mean - row.values["conditional_entropy"].mean
        assert row.values["information"].mean == pytest.approx(information, abs=1e-6)
    curves = outcome.data["by layer"]["marginal_entropy"]["DPP"]
    assert [len(curve) for curve in curves] == [4, 4], "three layers and their mean"
    assert curves[0][3] == pytest.approx(sum(curves[0][:3]) / 3)
    assert {finding.verdict for finding in outcome.findings} == {"undecided"}, "two seeds decide nothing"


def test_paths(outcome_of):
    outcome = outcome_of(REPRODUCTIONS["figure-paths"])
    routes = outcome.data["hvcl-growing"][0]["ended"]
    assert len(routes) == 1
    assert all(sum(row) == pytest.approx(1) for row in routes[0])
    assert "gate.expert" in outcome.picture
    values = {row.label: row.values for row in outcome.rows}
    assert values["hvcl-growing"]["task_information"].mean > 1.0 > values["hvcl"]["task_information"].mean
    assert {f.claim.split(":")[0]: f.verdict for f in outcome.findings}["hvcl-growing"] == "holds"


def test_information_about_the_task_is_that_of_a_case_done_by_hand():
    assert task_information([[1.0, 0.0], [0.0, 1.0]]) == 1.0
    assert task_information([[0.5, 0.5], [0.5, 0.5]]) == 0.0
    assert task_information([[1.0, 0.0], [0.5, 0.5]]) == pytest.approx(-0.75 * math.log2(0.75) - 0.25 * math.log2(0.25) - 0.5)


def test_unlearning(outcome_of):
    outcome = outcome_of(REPRODUCTIONS["figure-forget"])
    assert [row.label for row in outcome.rows] == [f"{share} % removed" for share in (0, 25, 50, 75, 100)]
    assert outcome.rows[0].values["removed"].mean > 80
    assert outcome.rows[-1].values["removed"].mean == 0
    assert outcome.rows[-1].values["rest"].mean > 80
    assert max(outcome.data["difference"]) < 1e-4
    assert outcome.findings[0].verdict == "holds"


def test_generator(outcome_of):
    outcome = outcome_of(REPRODUCTIONS["figure-generator"])
    (row,) = outcome.rows
    assert 0 <= row.values["inception_score"].mean <= row.values["inception_bound"].mean <= 1
    assert str(outcome.picture).count("data:image/png") == 7, "originals, reconstructions, samples after five tasks"
    assert "reconstruction" in outcome.picture


def test_features(outcome_of):
    outcome = outcome_of(
        REPRODUCTIONS["figure-features"], {f"{scenario} {size}" for scenario in ("domain", "class") for size in (60, 125)}
    )
    assert [row.label for row in outcome.rows] == ["60 features", "125 features"] * 2
    planned = REPRODUCTIONS["figure-features"].plan(Scale("standard", (1,)))[0]
    assert features_of(Finished(planned, [], {}, None)) == 1000, "125 filters, two signs, four cells"


def made_up(name, value):
    """The runs of a figure with results that `value` gives by key."""
    scale = Scale("quick", (1, 2, 3))
    runs = {}
    for planned in REPRODUCTIONS[name].plan(scale):
        facts = planned.experiment.to_json() | {"memory": "none", "task_names": ["a", "b"]}
        results = [{"seed": seed} | value(planned.key) for seed in scale.seeds]
        runs[planned.key] = Finished(planned, results, facts, Path("unused"))
    return REPRODUCTIONS[name].read(Found(scale, runs))


def test_forgetting():
    def value(key):
        return {"average_accuracy": 0.8, "learning_accuracy": 0.9, "forgetting": 0.2 if key == "naive" else 0.1}

    outcome = made_up("figure-forgetting", value)
    assert {finding.verdict for finding in outcome.findings} == {"holds"}
    assert all(row.label in outcome.picture for row in outcome.rows)


def test_stream():
    def value(key):
        good = key.startswith(("exact", "hvcl-growing"))
        return {"average_accuracy": 0.9 if good else 0.6, "forgetting": 0.1, "accuracy_matrix": [[1.0, 0.5], [0.6, 0.8]]}

    outcome = made_up("figure-stream", value)
    assert len(outcome.rows) == 8
    assert outcome.data["sharp"]["er"][0] == pytest.approx([100.0, 70.0]), "after one task, then the mean of two"
    assert {row.supervision for row in outcome.rows} == {"task-free"}
    assert {finding.verdict for finding in outcome.findings} == {"holds"}
