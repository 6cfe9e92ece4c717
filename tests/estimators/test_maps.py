"""Feature maps from scales and a seed."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.estimators.maps import default_features, make_map
from hvcl.estimators.scales import Scales
from hvcl.estimators.tables import Table
from hvcl.posteriors import MatrixNormal


def scales_of(columns, count=500, seed=0):
    numbers = np.random.default_rng(seed).normal(size=(count, columns))
    table = Table(("number",) * columns, numbers)
    scales = Scales.measure(table, None, 4)
    return scales, scales.encode(table)[0]


@pytest.mark.parametrize(("columns", "features"), [(1, 200), (2, 200), (10, 520), (64, 1000), (5000, 1000)])
def test_the_number_of_features_follows_the_columns(columns, features):
    assert default_features(columns) == features


def test_the_map_depends_on_scales_and_seed_alone_and_is_standardised():
    scales, x = scales_of(5)
    a, b, other = make_map(scales, 50, 3), make_map(scales, 50, 3), make_map(scales, 50, 4)
    assert a.same_as(b)
    assert not a.same_as(other)
    assert a.features == 55
    phi = a(x)
    assert float(phi.mean(0).abs().max()) < 0.3
    assert 0.3 < float(phi.std(0).min()) <= float(phi.std(0).max()) < 3


def test_one_column_can_bend_often_and_a_plane_stays_a_plane():
    scales, x = scales_of(1)
    wave = torch.sin(4 * x[:, :1]).double()
    fit = MatrixNormal(make_map(scales, None, 0).features, 1)
    fit.add(make_map(scales, None, 0)(x), wave)
    assert float((fit.posterior().mean(make_map(scales, None, 0)(x)) - wave).square().mean()) < 0.01
    scales, x = scales_of(6)
    plane = (x[:, :6] @ torch.arange(6.0)).double()[:, None]
    made = make_map(scales, None, 0)
    fit = MatrixNormal(made.features, 1)
    fit.add(made(x[:400]), plane[:400])
    error = (fit.posterior().mean(made(x[400:])) - plane[400:]).square().mean() / plane.var()
    assert float(error) < 0.01


def test_a_number_of_features_that_is_none_is_refused():
    with pytest.raises(InputError, match="whole number"):
        make_map(scales_of(2)[0], 2.5, 0)
