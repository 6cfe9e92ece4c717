import json

import numpy as np
import pytest

from hvcl.evaluation.prequential import MOST_WINDOWS, ClassTotals, NumberTotals, Prequential


def classes(labels, probabilities):
    return ClassTotals.of(np.array(["a", "b"]), np.array(probabilities), labels)


def test_scores_of_classes_are_those_of_the_definitions():
    totals = classes(["a", "b", "b"], [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    scores = totals.scores()
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["log_loss"] == pytest.approx(-(np.log(0.9) + np.log(0.4) + np.log(0.8)) / 3)
    assert scores["calibration_error"] == pytest.approx((0.1 + 0.6 + 0.2) / 3)


def test_a_label_that_was_never_learned_is_missed():
    scores = classes(["c"], [[0.7, 0.3]]).scores()
    assert scores["accuracy"] == 0
    assert 10 < scores["log_loss"] < np.inf


def test_scores_of_numbers_are_those_of_the_definitions():
    mean, low, high = np.array([1.0, 2.0]), np.array([0.0, 1.9]), np.array([2.0, 2.1])
    scores = NumberTotals.of(mean, low, high, [2.0, 4.0]).scores()
    assert scores == {"mae": 1.5, "rmse": pytest.approx(np.sqrt(2.5)), "coverage": 0.5}
    assert NumberTotals().scores() == {}


def test_windows_stay_few_and_keep_every_row():
    scores = Prequential(ClassTotals(), 10)
    for number in range(5000):
        scores.add(10, classes(["a"] * 10, [[0.9, 0.1]] * 10), {number // 1000: 10})
    assert MOST_WINDOWS / 4 < len(scores.windows) <= MOST_WINDOWS
    assert sum(window.totals.rows for window in scores.windows) == scores.total.rows == scores.rows == 50_000
    assert sum(window.experts.get(4, 0) for window in scores.windows) == 10_000
    assert [window.end for window in scores.windows] == sorted(window.end for window in scores.windows)


def test_the_last_part_is_the_last_part():
    scores = Prequential(ClassTotals(), 10)
    for number in range(100):
        scores.add(10, classes(["a" if number < 90 else "b"] * 10, [[0.9, 0.1]] * 10))
    assert scores.last().rows == 100
    assert scores.last().scores()["accuracy"] == 0
    assert scores.total.scores()["accuracy"] == pytest.approx(0.9)


@pytest.mark.parametrize("totals", [classes(["a"], [[0.25, 0.75]]), NumberTotals(3, 1.5, 2.5, 2)])
def test_scores_go_on_from_a_file(totals):
    scores = Prequential(type(totals)(), 10)
    scores.add(25, totals, {0: 20, 2: 5})
    scores.add(5, None)
    again = Prequential(type(totals)(), 99)
    again.load_state(json.loads(json.dumps(scores.state())))
    assert again.state() == scores.state()
    assert again.total.minus(totals).rows == 0
    assert again.windows[0].experts == {0: 20, 2: 5}
