"""Regressions from sums that are discounted."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.estimators.regression import Regression


def test_pools_are_discounted_sums():
    pool = Regression(2, 1, half_life=32.0)
    second, cross = torch.eye(2).double(), torch.ones(2, 1).double()
    pool.add(second, cross, 32.0)
    pool.add(second, cross, 32.0)
    torch.testing.assert_close(pool.second, 1.5 * second)
    assert pool.count == 48
    pool.solve()
    torch.testing.assert_close(pool.weights, torch.full((2, 1), 1.5 / 2.5).double())


def test_what_is_taken_out_was_never_there_and_weights_are_new():
    random = torch.Generator().manual_seed(0)
    phi, y = torch.randn(60, 5, generator=random).double(), torch.randn(60, 2, generator=random).double()
    model, other = Regression(5, 2), Regression(5, 2)
    model.add(phi.T @ phi, phi.T @ y, 60)
    model.solve()
    before = model.weights
    kept = model.weights.clone()
    assert model.remove(phi[:20], y[:20], np.ones(20), np.repeat([1.0, 0.0], [15, 5])) == pytest.approx(0.75)
    other.add(phi[15:].T @ phi[15:], phi[15:].T @ y[15:], 45)
    other.solve()
    torch.testing.assert_close(model.weights, other.weights)
    assert torch.equal(before, kept)  # whoever has the old ones keeps them
    assert model.remove(phi[15:], y[15:], np.ones(45), np.ones(45)) == 0
    assert not model.second.any()
    assert not model.weights.any()


def test_sums_that_rounding_has_made_indefinite_have_weights_all_the_same():
    model = Regression(2, 1)
    model.add(torch.diag(torch.tensor([5.0, -3.0])).double(), torch.ones(2, 1).double(), 10)
    model.solve()
    assert bool(model.weights.isfinite().all())
    assert float(model.weights[0]) == pytest.approx(1 / 9)  # the ridge is doubled until it is above them


def test_a_state_of_other_sizes_is_refused():
    state = Regression(3, 1).state_dict()
    with pytest.raises(RunError, match="does not fit"):
        Regression.from_state(state, 4, 1)
