"""Against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from hvcl.report.statistic import over_seeds, statistic


def test_mean_and_sample_standard_deviation() -> None:
    # The squares of -3, -1, 1, 3 add up to 20; 20 / 3 is the sample variance.
    assert statistic([2.0, 4.0, 6.0, 8.0]) == (5.0, pytest.approx(math.sqrt(20 / 3)), 4)
    assert statistic([0.25]) == (0.25, None, 1)
    assert statistic([math.nan, 1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)), 2)
    assert statistic([math.nan]) is None


def test_curves_are_joined_where_any_seed_has_a_value() -> None:
    assert over_seeds([{2.0: 1.0, 1.0: 4.0}, {2.0: 3.0, 3.0: math.nan}]) == {
        1.0: (4.0, None, 1),
        2.0: (2.0, pytest.approx(math.sqrt(2)), 2),
    }
