"""Fixed robust scales."""

import warnings

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, Scales, ScaleWarning
from hvcl.estimators.scales import CLIP
from hvcl.estimators.tables import Table
from tests.estimators.rows import blobs


def table(numbers):
    numbers = np.asarray(numbers, dtype=np.float64)
    return Table(("number",) * numbers.shape[1], numbers)


def test_scales_are_those_of_a_gaussian_column_and_outliers_do_not_move_them():
    random = np.random.default_rng(0)
    numbers = random.normal(5, 3, (4000, 1))
    numbers[:40] = 1e9
    scales = Scales.measure(table(numbers), None, 4)
    assert abs(float(scales.centre[0]) - 5) < 0.2
    assert abs(float(scales.spread[0]) - 3) < 0.2
    x, sizes = scales.encode(table(numbers))
    assert float(x.abs().max()) == CLIP
    assert sizes[0, 0] > 1e8


def test_columns_that_are_mostly_or_always_one_value_have_a_scale():
    mostly = np.zeros(100)
    mostly[:1] = 8.0
    scales = Scales.measure(table(np.stack([mostly, np.full(100, 7.0), np.full(100, np.nan)], 1)), None, 4)
    assert scales.spread.tolist() == pytest.approx([8.0, 7.0, 1.0])
    x, _ = scales.encode(table([[8.0, 14.0, np.nan]]))
    assert torch.allclose(x, torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 1.0]]).float())


def test_numbers_of_the_largest_size_have_finite_scales():
    largest = np.finfo(np.float64).max
    x = np.where(np.arange(300)[:, None] % 7 == 0, largest, -largest) * np.array([[1.0, 0.5]])
    y = np.arange(300) % 7 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ContinualClassifier(features=20).fit(x, y)
        assert model.score(x, y) == 1
    assert all(np.isfinite(values.numpy()).all() for values in (model.scales_.centre, model.scales_.spread))


def test_leaving_the_scales_warns_once_and_before_anything_is_learned():
    x, y = blobs(300)
    model = ContinualClassifier(features=30).fit(x, y)
    before = model.predict_proba(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScaleWarning)
        model.partial_fit(x[:2] + 40, y[:2])  # two rows are no drift
        after = model.predict_proba(x)
        with pytest.raises(ScaleWarning, match=r"in 302 of 302 rows column 0 lies more than 10 spreads from its median"):
            model.partial_fit(x + 40, y)
        assert np.array_equal(model.predict_proba(x), after)
    assert not np.array_equal(before, after)
    with pytest.warns(ScaleWarning, match="302 of 302") as caught:
        model.partial_fit(x + 40, y)
    assert caught[0].filename == __file__  # the line that gave the rows
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScaleWarning)
        model.partial_fit(x + 40, y)


def test_scales_of_other_columns_are_refused():
    x, y = blobs(100)
    scales = ContinualClassifier(features=20).fit(x, y).scales_
    with pytest.raises(InputError, match="do not have the columns of the scales"):
        ContinualClassifier(scales=scales).fit(x[:, :2], y)


def test_too_many_columns_are_refused():
    with pytest.raises(InputError, match="at most 16384"):
        ContinualClassifier().fit(np.zeros((2, 16_385)), [0, 1])
