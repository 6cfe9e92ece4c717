"""Against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from hvcl.report import load_run, results_table
from hvcl.report.supervised.groups import differing_stream_options, group_runs, standings

WriteRun = Callable[..., Path]
Outcome = Callable[..., dict[str, object]]

# Averages after the last task: 0.75, 0.80, 0.85.
FIRST = [[0.9, 0.5], [0.7, 0.8]]
SECOND = [[1.0, 0.6], [0.8, 0.8]]
THIRD = [[0.8, 0.4], [0.8, 0.9]]


def ending_at(accuracy: float) -> list[list[float]]:
    return [[1.0, 0.5], [accuracy, accuracy]]


def test_a_row_of_the_table(write_run: WriteRun) -> None:
    (row,) = results_table([load_run(write_run("run", {1: FIRST, 2: SECOND, 3: THIRD, 4: None}))])

    assert row["quantities"]["average_accuracy"] == (pytest.approx(0.80), pytest.approx(0.05), 3)
    # Right after learning: (0.9 + 0.8) / 2, (1.0 + 0.8) / 2, (0.8 + 0.9) / 2.
    assert row["quantities"]["learning_accuracy"] == (pytest.approx(2.6 / 3), pytest.approx(math.sqrt(0.0025 / 3)), 3)
    # The first task changes by -0.2, -0.2, 0.
    assert row["quantities"]["backward_transfer"] == (pytest.approx(-0.4 / 3), pytest.approx(math.sqrt(0.04 / 3)), 3)
    assert row["quantities"]["parameters"] == (89_610, 0.0, 3)
    assert (row["seeds_finished"], row["seeds_planned"]) == (3, 4)
    assert (row["scenario"], row["supervision"], row["memory"]) == ("domain", "boundaries", "none")


def test_a_run_without_results_has_a_row_without_numbers(write_run: WriteRun) -> None:
    (row,) = results_table([load_run(write_run("run", {1: None, 2: None}))])

    assert row["quantities"]["average_accuracy"] is None
    assert (row["seeds_finished"], row["seeds_planned"]) == (0, 2)


def test_a_number_that_one_seed_lacks_is_counted(write_run: WriteRun, outcome: Outcome) -> None:
    (row,) = results_table([load_run(write_run("run", {1: outcome(FIRST, nll=None), 2: outcome(SECOND, nll=0.5)}))])

    assert row["quantities"]["nll"] == (0.5, None, 1)
    assert row["seeds_finished"] == 2


def test_rows_go_from_the_upper_bound_to_the_lower(write_run: WriteRun) -> None:
    methods = {"naive": 0.6, "ewc": 0.5, "joint": 0.7, "hvcl": 0.9}
    runs = [load_run(write_run(name, {1: ending_at(value)}, method=name)) for name, value in methods.items()]

    rows = results_table(runs)

    assert [row["method"] for row in rows] == ["joint", "hvcl", "ewc", "naive"]
    assert [row["bound"] for row in rows] == ["upper", None, None, "lower"]


def test_only_what_may_be_compared_is_grouped(write_run: WriteRun) -> None:
    variants: list[dict[str, object]] = [
        {},
        {"method": "ewc"},
        {"scenario": "class"},
        {"supervision": "task-free"},
        {"benchmark": "split-mnist"},
        {"evaluated_on": "validation"},
        {"task_names": ["other", "tasks"]},
    ]
    runs = [load_run(write_run(f"run-{number}", {1: FIRST}, **variant)) for number, variant in enumerate(variants)]

    groups = group_runs(runs)

    assert sorted(len(group.entries) for group in groups) == [1, 1, 1, 1, 1, 2]
    assert [entry.label for group in groups if len(group.entries) == 2 for entry in group.entries] == ["ewc", "hvcl"]


def test_runs_of_one_method_are_told_apart(write_run: WriteRun) -> None:
    def labels(*names_and_learners: tuple[str, dict[str, object]]) -> list[str]:
        runs = [load_run(write_run(name, {1: FIRST}, learner=learner)) for name, learner in names_and_learners]
        (group,) = group_runs(runs)
        return sorted(entry.label for entry in group.entries)

    assert labels(("a", {"experts": 2}), ("b", {"experts": 4})) == ["hvcl, experts 2", "hvcl, experts 4"]
    assert labels(("a", {"experts": 2}), ("b", {"experts": 2})) == ["hvcl (a)", "hvcl (b)"]
    assert labels(("x/a", {"experts": 2}), ("y/a", {"experts": 2})) == ["hvcl (a) #1", "hvcl (a) #2"]


def test_differing_streams_are_noticed(write_run: WriteRun) -> None:
    runs = [
        load_run(write_run(method, {1: FIRST}, method=method, stream={"epochs": epochs, "batch_size": 64}))
        for method, epochs in [("hvcl", 10), ("ewc", 1)]
    ]

    assert differing_stream_options(group_runs(runs)[0]) == ["epochs"]


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        (0.75, "hvcl (no memory) reaches 75.00%: 25% of the way from naive (70.00%) to joint (90.00%)."),
        (0.65, "hvcl (no memory) reaches 65.00%, below the lower bound naive (70.00%)."),
        (0.95, "hvcl (no memory) reaches 95.00%, above the upper bound joint (90.00%)."),
    ],
)
def test_the_standing_between_the_bounds(write_run: WriteRun, accuracy: float, words: str) -> None:
    methods = {"naive": 0.7, "hvcl": accuracy, "joint": 0.9}
    runs = [load_run(write_run(name, {1: ending_at(value)}, method=name)) for name, value in methods.items()]

    assert standings(results_table(runs)) == [words]
    assert standings(results_table(runs[:2])) == []


def test_bounds_the_wrong_way_round_say_nothing(write_run: WriteRun) -> None:
    methods = {"naive": 0.9, "hvcl": 0.8, "joint": 0.7}
    runs = [load_run(write_run(name, {1: ending_at(value)}, method=name)) for name, value in methods.items()]

    (sentence,) = standings(results_table(runs))
    assert "not above naive" in sentence
