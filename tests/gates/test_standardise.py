"""Robust centre and spread, and the compression of outliers."""

import pytest
import torch

from hvcl.gates.standardise import LIMIT, compressed, location_and_scale


def sample(n=256, d=4, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e6, 1.0), (-3.0, 1e-6), (1e9, 1e6), (0.0, 1e-150), (1e90, 1e89)])
def test_centre_and_spread_are_mean_and_deviation_of_clean_examples(offset, scale):
    z = offset + scale * sample()
    centre, spread = location_and_scale(z)
    torch.testing.assert_close((centre - offset) / scale, ((z - offset) / scale).mean(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(spread / scale, ((z - offset) / scale).std(0, correction=0), rtol=1e-6, atol=0)


def test_outliers_among_the_first_examples_hardly_count():
    """One in 64 is an outlier: it counts as 10 deviations, so the spread is at most sqrt(1 + 100 / 64) = 1.6 times as large."""
    z = sample()
    z[::64] = 1e10
    centre, spread = location_and_scale(z)
    assert centre.abs().max() < 0.35
    assert spread.min() > 0.8
    assert spread.max() < 1.8


def test_columns_of_few_values_and_constant_ones_have_a_spread():
    z = 5 * sample(d=3)
    z[:, 0] = 7.0
    z[:, 1] = (torch.arange(256) % 40 == 0).double()  # more than half the values, and even nine in ten, are the same
    centre, spread = location_and_scale(z)
    assert centre[0] == 7.0
    assert spread[1] == pytest.approx((7 / 256 * (1 - 7 / 256)) ** 0.5, rel=0.01)
    assert spread[0] == spread[1:].min()  # the (lower) median of the others
    assert location_and_scale(torch.ones(3, 2, dtype=torch.float64))[1].tolist() == [1.0, 1.0]


def test_values_within_the_limit_stay_and_others_grow_with_their_logarithm():
    z = torch.tensor([[-3.0, LIMIT, LIMIT + 1e-6, 1e10, -1e100]], dtype=torch.float64).T
    u, beyond = compressed(2 + 5 * z, torch.tensor([2.0]).double(), torch.tensor([5.0]).double())
    assert beyond == 3
    expected = [-3.0, LIMIT, LIMIT + 1e-6, LIMIT + 23.02585, -LIMIT - 230.2585]
    torch.testing.assert_close(u[:, 0], torch.tensor(expected).double(), rtol=1e-5, atol=0)
    assert compressed(torch.tensor([[1e100]]).double(), torch.zeros(1).double(), torch.full((1,), 1e-300).double())[0].isfinite()
