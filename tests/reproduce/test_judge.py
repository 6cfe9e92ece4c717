"""Verdicts on numbers of which the right one is known."""

import pytest

from hvcl.report.statistic import Statistic
from hvcl.reproduce import judge
from hvcl.reproduce.outcome import Row


def row(label, ours, paper=None, scenario="Domain-IL", benchmark="b"):
    values = {"accuracy": None if ours is None else Statistic(ours, 0.5, 3)}
    return Row(
        label,
        benchmark,
        scenario,
        "boundaries",
        "none",
        3,
        values,
        {} if paper is None else {"accuracy": Statistic(paper, 0.5, 10)},
    )


@pytest.mark.parametrize(
    ("larger", "smaller", "verdict"),
    [
        (Statistic(90, 1.0, 3), Statistic(80, 1.0, 3), "holds"),
        (Statistic(80, 1.0, 3), Statistic(90, 1.0, 3), "does not hold here"),
        (Statistic(81, 2.0, 3), Statistic(80, 2.0, 3), "undecided"),  # the standard error is 1.63
        (Statistic(90, 0.0, 2), Statistic(80, 0.0, 2), "undecided"),  # two seeds
        (Statistic(90, None, 1), Statistic(80, 1.0, 9), "undecided"),
        (Statistic(80, 0.0, 3), Statistic(80, 0.0, 3), "undecided"),
    ],
)
def test_a_difference_counts_beyond_two_standard_errors_and_with_three_seeds(larger, smaller, verdict):
    assert judge.compared(larger, smaller) == verdict
    found = judge.claim_larger("claim", ("a", "b"), larger, smaller)
    assert found.verdict == verdict
    assert f"a {larger.mean:.2f}" in found.because


def test_without_a_figure_there_is_no_verdict():
    assert judge.claim_larger("claim", ("a", "b"), None, Statistic(1, 0, 3)).verdict == "not measured"
    assert judge.claim_extreme("claim", "a", {"b": Statistic(1, 0, 3)}, "highest").verdict == "not measured"


def test_extremes_are_held_against_the_nearest_rival():
    values = {"a": Statistic(1.0, 0.1, 4), "b": Statistic(5.0, 0.1, 4), "c": Statistic(9.0, 0.1, 4)}
    assert judge.claim_extreme("c is highest", "c", values, "highest").verdict == "holds"
    assert judge.claim_extreme("a is lowest", "a", values, "lowest").verdict == "holds"
    assert judge.claim_extreme("b is lowest", "b", values, "lowest").verdict == "does not hold here"
    assert "c 9.00 ± 0.10" in judge.claim_extreme("b is highest", "b", values, "highest").because


def test_levels_agree_within_two_deviations_or_a_point():
    close, far = row("close", 90.9, 90.0), row("far", 70.0, 90.0)
    assert judge.level([close], "accuracy", "claim").verdict == "holds"
    both = judge.level([close, far, row("not in the paper", 1.0)], "accuracy", "claim")
    assert both.verdict == "in part"
    assert both.because.startswith("1 of 2 rows")
    assert "furthest is far" in both.because
    assert judge.level([row("quoted", None, 90.0)], "accuracy", "claim").verdict == "not measured"


def test_only_rows_of_one_benchmark_and_scenario_have_an_order():
    same = [row("a", 1.0, 10.0), row("b", 2.0, 20.0), row("c", 3.0, 15.0)]
    found = judge.order(
        [*same, row("d", 0.0, 99.0, scenario="Task-IL"), row("e", 0.0, 99.0, benchmark="other")], "accuracy", "claim"
    )
    assert found.because.startswith("2 of 3 pairs")
    assert found.verdict == "in part"
    assert judge.order(same[:1], "accuracy", "claim").verdict == "not measured"
