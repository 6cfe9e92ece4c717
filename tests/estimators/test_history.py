"""When rows came, and who has learned them."""

import numpy as np
import pytest

from hvcl.core.errors import RunError
from hvcl.estimators.history import NOBODY, NOWHERE, OPEN, History


def history():
    """Expert 0 up to 64, nobody up to 96, expert 1 up to 160."""
    made = History([64.0, 16.0])
    made.begin(1000.0, 0)
    for after, expert in ((NOWHERE, 0), (64.0, NOBODY), (96.0, 1)):
        made.turn(after, expert)
    made.time = 160.0
    return made


def test_by_hand():
    made = history()
    stamps = np.array([32.0, 64.0, 96.0, 128.0, 160.0, OPEN, NOWHERE, -1.0])
    assert made.experts(stamps).tolist() == [0, 0, NOBODY, 1, 1, NOBODY, NOBODY, 0]
    expected = [0.25, 2**-1.5, 0.5, 2**-0.5, 1, 0, 0, 2**-2.5 * 64 / np.log(2) / 1000]
    np.testing.assert_allclose(made.in_pools(stamps)[:, 0], expected)
    assert made.owners(64.0) == {0}
    assert made.owners(97.0) == {0, NOBODY, 1}


def test_pools_that_have_begun_anew_hold_only_younger_rows():
    made = history()
    made.since[1] = 128.0
    assert (made.in_pools(np.array([128.0, 160.0, -1.0])) > 0).tolist() == [[True, False], [True, True], [True, False]]
    assert made.late.tolist() == [False, True]
    assert made.faded(100.0).tolist() == [False, True]
    made.time += 24 * 16
    assert made.faded(160.0).tolist() == [False, True]
    assert made.late.tolist() == [False, False]


def test_both_sites_keep_their_ages():
    made, other = history(), History([64.0, 16.0])
    other.begin(10.0, 0)
    other.turn(NOWHERE, 0)
    other.time = 32.0
    made.merge(other)
    assert made.time == 160
    assert [call.time for call in made.begun] == [0, 128]
    assert made.in_pools(np.array([-2.0]))[0, 0] == pytest.approx(2**-0.5)
    assert made.experts(np.array([-2.0, 128.0])).tolist() == [NOBODY, NOBODY]


def test_a_state_is_taken_or_refused():
    made, again = history(), History([64.0, 16.0])
    again.load_state_dict(made.state_dict())
    assert (again.time, again.turns, again.begun) == (made.time, made.turns, made.begun)
    with pytest.raises(RunError, match="other sizes"):
        History([64.0]).load_state_dict(made.state_dict())
