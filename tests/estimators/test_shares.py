"""What groups have added to the models of the filter."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.estimators.history import OPEN, History
from hvcl.estimators.shares import Products, Shares


def rows(count, seed=0, columns=5):
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed)).double()


def products(part):
    return part.factor.double().T @ part.factor.double()


@pytest.mark.parametrize("count", [3, 40])
def test_products_add_up_and_are_taken_out_again(count):
    a, b = rows(count), rows(count, seed=1)
    both = Products.of(a, count).plus(Products.of(b, count).scaled(0.5))
    torch.testing.assert_close(products(both), a.T @ a + b.T @ b / 2, rtol=1e-5, atol=1e-4)
    assert both.count == 1.5 * count
    left = both.minus(b * 0.5**0.5, count / 2)
    torch.testing.assert_close(products(left), a.T @ a, rtol=1e-5, atol=1e-4)
    assert left.minus(a, count) is None


def test_blocks_become_parts_of_pools_and_experts_once_they_have_more_rows_than_columns():
    history, shares = History([64.0, 16.0]), Shares(4, 1, [4, 2])
    history.turn(0.0, 0)
    history.turn(32.0, 1)
    history.time = 64.0
    first, second, third = rows(4), rows(3, seed=1), rows(2, seed=2)
    shares.add("ann", first, np.full(4, 32.0), np.ones(4), history, 64.0)
    share = shares.groups["ann"]
    assert (len(share.blocks), share.pools) == (1, {})
    both = torch.cat([second, third])
    shares.add("ann", both, np.array([64.0] * 3 + [OPEN] * 2), np.ones(5), history, 64.0)
    assert [stamp for stamp, _ in share.blocks] == [OPEN]
    torch.testing.assert_close(products(share.experts[0]), first.T @ first, rtol=1e-5, atol=1e-5)
    expected = first.T @ first * 0.5**0.5 + second.T @ second
    torch.testing.assert_close(products(share.pools[0]), expected, rtol=1e-5, atol=1e-5)
    few = [0, 1, 4]
    expected = (first.T @ first / 4 + second.T @ second)[few][:, few]
    torch.testing.assert_close(products(share.pools[1]), expected, rtol=1e-5, atol=1e-5)
    history.time += 16
    pools, _ = shares.folded("ann", history)
    torch.testing.assert_close(products(pools[1]), expected / 2, rtol=1e-5, atol=1e-5)
    shares.take("ann", first[:2], np.full(2, 32.0), np.ones(2), history)
    torch.testing.assert_close(products(share.experts[0]), first[2:].T @ first[2:], rtol=1e-5, atol=1e-5)


def test_a_state_is_taken_or_refused():
    shares, again = Shares(4, 1, [4, 2]), Shares(4, 1, [4, 2])
    shares.add("ann", rows(3), np.array([32.0, OPEN, OPEN]), np.ones(3), History([64.0, 16.0]), 32.0)
    again.load_state_dict(shares.state_dict())
    again.end(64.0)
    assert [stamp for stamp, _ in again.groups["ann"].blocks] == [32, 64]
    again.load_state_dict(shares.state_dict(block=False))
    assert [stamp for stamp, _ in again.groups["ann"].blocks] == [32]
    with pytest.raises(RunError, match="do not fit"):
        Shares(3, 1, [3, 2]).load_state_dict(shares.state_dict())
