import pytest

from hvcl.core.errors import InputError
from hvcl.rl import scores
from hvcl.rl.scores import Point, Reference

REFERENCES = [Reference(0, 100), Reference(10, 210)]
POINTS = [Point(0.5, (40, None)), Point(1.0, (80, None)), Point(1.5, (60, 60)), Point(2.0, (20, 110))]


def test_by_hand():
    norms = scores.normalisers(POINTS, 2)
    assert norms == [80, 110]
    assert scores.cumulative(POINTS[1], REFERENCES, norms) == 1
    assert scores.cumulative(POINTS[2], REFERENCES, norms) == pytest.approx(60 / 80 + 60 / 110)
    assert scores.cumulative(POINTS[3], REFERENCES, norms) == pytest.approx(0.25 + 1)
    assert scores.average_performance(POINTS[3], REFERENCES) == pytest.approx((0.2 + 0.5) / 2)
    assert scores.forgetting(POINTS[3], REFERENCES, norms) == pytest.approx((0.6 + 0) / 2)
    areas = [scores.learning_area(POINTS, k, reference) for k, reference in enumerate(REFERENCES)]
    assert areas == pytest.approx([(0.4 + 0.8) / 2, (0.25 + 0.5) / 2])
    assert scores.forward_transfer(areas, [0.5, 0.5]) == pytest.approx(((0.6 - 0.5) / 0.5 + (0.375 - 0.5) / 0.5) / 2)


def test_j_over_time_leaves_out_where_it_means_nothing():
    assert scores.cumulative_curve(POINTS, REFERENCES, [80, 110]) == {
        point.time: scores.cumulative(point, REFERENCES, [80, 110]) for point in POINTS
    }
    assert scores.cumulative_curve(POINTS, REFERENCES, [80, None]) == {0.5: 0.5, 1.0: 1.0}


@pytest.mark.parametrize("norm", [None, -50.0, 0.0, 1.0])
def test_j_says_nothing_where_its_normaliser_does(norm):
    assert scores.cumulative(POINTS[3], REFERENCES, [norm, 110]) is None


def test_unfinished_runs_have_no_scores():
    assert scores.normalisers(POINTS[:2], 2) == [80, None]
    with pytest.raises(InputError, match="never evaluated"):
        scores.average_performance(POINTS[0], REFERENCES)
    with pytest.raises(InputError, match="same tasks"):
        scores.forward_transfer([0.1], [0.1, 0.2])


def test_forward_transfer_says_nothing_where_nothing_is_left_to_gain():
    assert scores.forward_transfer([0.5, 0.9], [0.5, 1.0]) is None
    assert scores.forward_transfer([0.5, 0.9], [0.5, 1.1]) is None


def test_cumulative_above_random_holds_where_returns_are_negative():
    references = [scores.Reference(-100.0, 100.0), scores.Reference(0.0, 10.0)]
    point = scores.Point(2.0, (-90.0, 5.0))
    norms = [-50.0, 5.0]
    assert scores.cumulative(point, references, norms) is None
    assert scores.cumulative(point, references, norms, above_random=True) == pytest.approx(10 / 50 + 1)
    assert scores.cumulative(point, references, [-99.0, 5.0], above_random=True) is None


def test_cumulative_performance_counts_the_tasks_seen():
    references = [scores.Reference(-100.0, 100.0), scores.Reference(0.0, 10.0)]
    assert scores.cumulative_performance(scores.Point(1.0, (-50.0, None)), references) == pytest.approx(0.25)
    assert scores.cumulative_performance(scores.Point(2.0, (0.0, 20.0)), references) == pytest.approx(2.5)
