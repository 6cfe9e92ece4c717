"""Against numbers worked out by hand."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from hvcl.report import load_run, results_table
from hvcl.report.run import Expert, Stretch
from hvcl.report.summary import (
    accuracy_of_task,
    accuracy_over_seen,
    differing_stream_options,
    expert_spans,
    group_runs,
    mean_matrix,
    standings,
    statistic,
    terms_over_time,
)

WriteRun = Callable[..., Path]
Outcome = Callable[..., dict[str, object]]

# Averages after the last task: 0.75, 0.80, 0.85.
FIRST = [[0.9, 0.5], [0.7, 0.8]]
SECOND = [[1.0, 0.6], [0.8, 0.8]]
THIRD = [[0.8, 0.4], [0.8, 0.9]]


def ending_at(accuracy: float) -> list[list[float]]:
    return [[1.0, 0.5], [accuracy, accuracy]]


def test_mean_and_sample_standard_deviation() -> None:
    # The squares of -3, -1, 1, 3 add up to 20; 20 / 3 is the sample variance.
    assert statistic([2.0, 4.0, 6.0, 8.0]) == (5.0, pytest.approx(math.sqrt(20 / 3)), 4)
    assert statistic([0.25]) == (0.25, None, 1)
    assert statistic([math.nan, 1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)), 2)
    assert statistic([math.nan]) is None


def test_a_row_of_the_table(write_run: WriteRun) -> None:
    (row,) = results_table([load_run(write_run("run", {1: FIRST, 2: SECOND, 3: THIRD, 4: None}))])

    assert row["average_accuracy"] == (pytest.approx(0.80), pytest.approx(0.05), 3)
    # Right after learning: (0.9 + 0.8) / 2, (1.0 + 0.8) / 2, (0.8 + 0.9) / 2.
    assert row["learning_accuracy"] == (pytest.approx(2.6 / 3), pytest.approx(math.sqrt(0.0025 / 3)), 3)
    # The first task changes by -0.2, -0.2, 0.
    assert row["backward_transfer"] == (pytest.approx(-0.4 / 3), pytest.approx(math.sqrt(0.04 / 3)), 3)
    assert row["parameters"] == (89_610, 0.0, 3)
    assert (row["seeds_finished"], row["seeds_planned"]) == (3, 4)
    assert (row["scenario"], row["supervision"], row["memory"]) == ("domain", "boundaries", "none")


def test_a_run_without_results_has_a_row_without_numbers(write_run: WriteRun) -> None:
    (row,) = results_table([load_run(write_run("run", {1: None, 2: None}))])

    assert row["average_accuracy"] is None
    assert (row["seeds_finished"], row["seeds_planned"]) == (0, 2)


def test_a_number_that_one_seed_lacks_is_counted(write_run: WriteRun, outcome: Outcome) -> None:
    (row,) = results_table([load_run(write_run("run", {1: outcome(FIRST, nll=None), 2: outcome(SECOND, nll=0.5)}))])

    assert row["nll"] == (0.5, None, 1)
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


def test_accuracy_over_time(write_run: WriteRun) -> None:
    seeds = load_run(write_run("run", {1: FIRST, 2: SECOND})).seeds

    # After one task only that one counts: 0.9 and 1.0. After two: 0.75 and 0.8.
    curve = accuracy_over_seen(seeds)
    assert curve == {
        1: (pytest.approx(0.95), pytest.approx(math.sqrt(0.005)), 2),
        2: (pytest.approx(0.775), pytest.approx(math.sqrt(0.00125)), 2),
    }
    assert {after: value.mean for after, value in accuracy_of_task(seeds, 1).items()} == pytest.approx({0: 0.5, 1: 0.55, 2: 0.8})
    matrix = [[cell.mean if cell else None for cell in row] for row in mean_matrix(seeds, 2)]
    assert matrix == [pytest.approx([0.95, 0.55]), pytest.approx([0.75, 0.8])]


def test_an_unfinished_run_is_shown_as_far_as_it_came(write_run: WriteRun) -> None:
    folder = write_run("run", {1: None})
    evaluations = [
        {"kind": "evaluation", "step": 100 * after, "after": after, "accuracy": accuracy}
        for after, accuracy in enumerate([[0.5, 0.5], [0.9, 0.6]])
    ]
    (folder / "seed-1").mkdir()
    (folder / "seed-1" / "metrics.jsonl").write_text("\n".join(map(json.dumps, evaluations)))

    seeds = load_run(folder).shown

    assert accuracy_over_seen(seeds) == {1: (0.9, None, 1)}
    assert len(mean_matrix(seeds, 2)) == 1


def test_loss_terms_are_placed_by_task_whatever_its_length(write_run: WriteRun) -> None:
    folder = write_run("run", {1: FIRST})
    # The first task takes 4 steps, the second 40.
    lines: list[dict[str, object]] = [
        {"kind": "evaluation", "step": step, "after": after, "accuracy": [0.5, 0.5]} for after, step in enumerate([0, 4, 44])
    ]
    for step, loss in [(1, 1.0), (2, 3.0), (4, 5.0), (24, 7.0), (34, 9.0), (44, 11.0)]:
        lines.append({"kind": "terms", "step": step, "task": int(step > 4), "terms": {"loss": loss, "other": None}})
    (folder / "seed-1" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))

    seeds = load_run(folder).seeds
    curve = terms_over_time(seeds, "loss", tasks=2, bins=2)

    assert {place: value.mean for place, value in curve.items()} == {0.25: 2.0, 0.75: 5.0, 1.25: 7.0, 1.75: 10.0}
    assert terms_over_time(seeds, "other", tasks=2, bins=2) == {}


def learned(number: int, *stretches: tuple[int, int, int]) -> Expert:
    total = sum(examples for *_, examples in stretches)
    return Expert(number, stretches[0][0], 0, total, {"0": total}, tuple(Stretch(*stretch) for stretch in stretches))


def test_stretches_that_do_not_meet_are_spans_of_their_own() -> None:
    spans = expert_spans([learned(0, (0, 9, 100), (15, 19, 50)), learned(1, (10, 14, 50))], steps=20, most=100)

    assert spans == [[(0, 10, 100.0, 1.0), (15, 20, 50.0, 1.0)], [(10, 15, 50.0, 1.0)]]


def test_a_share_is_of_all_examples_of_the_same_steps() -> None:
    # In steps 4 to 7 both learn: 10 examples a step to the first, 30 to the second.
    first, second = expert_spans([learned(0, (0, 7, 80)), learned(1, (4, 9, 180))], steps=10, most=100)

    assert first == [(0, 4, 40.0, 1.0), (4, 8, 40.0, 0.25)]
    assert second == [(4, 8, 120.0, 0.75), (8, 10, 60.0, 1.0)]


def test_very_many_stretches_become_few_spans_and_lose_no_example() -> None:
    even = learned(0, *((step, step, 7) for step in range(0, 10_000, 2)))
    odd = learned(1, *((step, step, step % 5 + 1) for step in range(1, 10_000, 2)))
    spans = expert_spans([even, odd], steps=10_000, most=150)

    for expert, mine in zip([even, odd], spans, strict=True):
        assert 1 <= len(mine) <= 150
        assert sum(span.examples for span in mine) == pytest.approx(expert.examples)
        assert mine[0].first == 0
        assert mine[-1].end == 10_000
        assert all(before.end <= after.first for before, after in itertools.pairwise(mine))
    assert {round(span.share, 1) for span in spans[0]} == {0.7}  # 7 beside 3 on average


def test_a_long_stretch_is_cut_over_many_parts_by_their_overlap() -> None:
    (mine,) = expert_spans([learned(0, (5, 94, 900))], steps=100, most=10)

    assert mine == [(0, 100, pytest.approx(900.0), 1.0)]
    first, second = expert_spans([learned(0, (0, 4, 50)), learned(1, (5, 99, 950))], steps=100, most=10)
    assert [span.examples for span in first] == [pytest.approx(50.0)]
    assert [(span.first, span.end, round(span.examples), round(span.share, 2)) for span in second] == [
        (0, 10, 50, 0.5),
        (10, 100, 900, 1.0),
    ]
