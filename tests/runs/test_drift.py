import warnings
from dataclasses import dataclass

import pytest

from hvcl.estimators import ScaleWarning
from hvcl.runs.drift import DriftWatch


@dataclass
class Event:
    row: int
    expert: int = 1
    known: bool = False
    columns: tuple = ()


class Model:
    """Has learned some rows before."""

    def __init__(self, seen):
        self.n_samples_seen_, self.drift_, self.experts_ = seen, [Event(seen)], {0: seen}


@pytest.mark.parametrize(
    ("rows", "learned", "after", "expected"),
    [
        (100, None, 0, 100),
        (100, None, 20, 80),
        (100, list(range(1, 101)), 20, 80),
        (100, list(range(2, 101, 2)), 0, 100),
        (100, list(range(2, 101, 2)), 20, 60),
        (200, list(range(101, 151)), 10, 140),
        (300, [298, 300], 5, 294),  # rows that were kept are learned with later ones
        (10, list(range(1, 11)), 50, 1),
    ],
)
def test_a_drift_is_placed_among_the_rows_that_came_here(rows, learned, after, expected):
    """The model counts what it has ever learned; rows without a label, and another stream before, are no part of that."""
    model = Model(5000)
    watch = DriftWatch(model)
    model.n_samples_seen_ += rows if learned is None else len(learned)
    model.drift_.append(Event(model.n_samples_seen_ - after, expert=2))
    (event,) = watch.news(rows, learned)
    assert (event.row, event.expert) == (expected, 3)
    assert watch.news(rows + 1, [rows + 1]) == []


def test_warnings_of_scales_are_news_and_others_stay_warnings():
    watch = DriftWatch(Model(0))

    def learn():
        with watch.listening():
            warnings.warn("column a has left its scales", ScaleWarning, stacklevel=1)
            warnings.warn("odd", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="odd"):
        learn()
    (event,) = watch.news(7)
    assert (event.row, event.text, event.expert) == (7, "column a has left its scales", None)
