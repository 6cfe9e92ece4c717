"""Fingerprints of rows, with when they came."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.estimators.history import NOWHERE, OPEN, History
from hvcl.estimators.ledger import Ledger


def ledger(limit=100, *calls):
    """Calls of (marks, stamps, group)."""
    made = Ledger(limit)
    for marks, stamps, group in calls:
        made.add(np.array(marks), np.array(stamps, dtype=np.float64), None, group, History([64.0]))
    return made


def test_of_equal_rows_the_newest_is_found_in_its_group():
    made = ledger(100, ([1, 2, 1], [32, 32, 64], None), ([1, 3], [96, 96], "ann"))
    found = made.find(np.array([1, 3, 9]), None, None)
    assert (found.rows.tolist(), found.stamps.tolist()) == ([0], [64])
    assert found.unknown.tolist() == [0, 1, 1]
    assert found.elsewhere == "ann"
    assert made.find(np.array([1, 1]), None, None).stamps.tolist() == [64, 32]
    assert made.find(np.array([1]), None, "ann").stamps.tolist() == [96]
    assert made.find(np.array([2]), None, "bob").unknown.tolist() == [1]


def test_a_group_goes_with_its_name():
    made = ledger(100, ([1], [32], "ann"), ([2], [OPEN], None), ([3, 4], [OPEN, OPEN], "bob"))
    made.take_group("ann")
    made.take_group("ann")
    made.end(64.0)
    assert made.keys == {"bob": 0}
    assert made.find(np.array([3, 2]), None, "bob").stamps.tolist() == [64]
    assert made.rows["mark"].tolist() == [2, 3, 4]


def test_parts_of_rows_go_one_after_another():
    made = ledger(100, ([1, 1], [32, 64], None))
    found = made.find(np.array([1]), np.array([1.5]), None)
    assert (found.stamps.tolist(), found.counts.tolist(), found.rows.tolist()) == ([64, 32], [1, 0.5], [0, 0])
    made.take(found)
    assert made.rows["weight"].tolist() == [0.5]
    assert made.find(np.array([1]), np.array([0.7]), None).unknown[0] == pytest.approx(0.2)


def test_rows_of_a_block_have_its_stamp_when_it_is_complete():
    made = ledger(100, ([1, 2], [32, OPEN], None), ([3], [OPEN], None))
    made.take(made.find(np.array([2]), None, None))
    made.end(64.0)
    assert made.rows["stamp"].tolist() == [32, 64]
    made.add(np.array([4]), np.array([OPEN]), None, None, History([64.0]))
    made.scatter_open(64.0)
    assert made.rows["stamp"].tolist() == [32, 64, NOWHERE]


def test_the_oldest_rows_go_and_it_is_known_when_the_last_of_them_came():
    made = ledger(3, ([1, 2], [32, 32], None), ([3, 4, 5], [64, OPEN, OPEN], None))
    assert made.rows["mark"].tolist() == [3, 4, 5]
    assert made.lost == 32
    made.add(np.array([6, 7]), np.array([OPEN, OPEN]), None, None, History([64.0]))
    assert made.lost == OPEN
    made.end(96.0)
    assert made.lost == 96
    assert made.rows["stamp"].tolist() == [96, 96, 96]


def test_sites_are_joined_in_the_order_of_their_times():
    made, other = ledger(4, ([1, 2], [32, 96], "ann")), ledger(9, ([3, 4, 5], [32, 64, OPEN], "bob"))
    made.merge(other, (0.0, 32.0), 0, History([64.0]))
    assert made.rows["mark"].tolist() == [1, 3, 2, 4]
    assert made.lost == NOWHERE  # the row of the block that was not complete is in no sum
    assert made.find(np.array([3]), None, "bob").stamps.tolist() == [64]


def test_a_state_is_taken_or_refused():
    made, again = ledger(100, ([1, 2], [32, OPEN], "ann")), Ledger(100)
    again.load_state_dict(made.state_dict())
    again.end(64.0)
    assert again.find(np.array([2]), None, "ann").stamps.tolist() == [64]
    with pytest.raises(RunError, match="do not fit"):
        again.load_state_dict(made.state_dict() | {"stamp": torch.zeros(5, dtype=torch.float64)})
