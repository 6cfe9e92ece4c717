"""Regression on streams."""

import numpy as np
import pytest

from hvcl.core.errors import InputError
from hvcl.estimators import ContinualRegressor
from tests.estimators.rows import waves


def test_a_stream_is_learned_like_all_rows_at_once():
    x, y = waves(600)
    stream = ContinualRegressor(answer="ever", features=100, warmup=100)
    for part in np.array_split(np.random.default_rng(2).permutation(600), 10):
        stream.partial_fit(x[part], y[part])
    whole = ContinualRegressor(answer="ever", features=100, scales=stream.scales_).fit(x, y)
    test_x, test_y = waves(500, seed=1)
    np.testing.assert_allclose(stream.predict(test_x), whole.predict(test_x), atol=2e-3)
    assert whole.score(test_x, test_y) > 0.95


@pytest.mark.parametrize("count", [60, 500])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_new_targets_as_often_as_they_say(count, level):
    held = []
    for seed in range(4):
        model = ContinualRegressor(features=80).fit(*waves(count, seed=seed, noise=0.5))
        x, y = waves(1000, seed=100 + seed, noise=0.5)
        low, high = model.predict_interval(x, level)
        held.append(((low <= y) & (y <= high)).mean())
    assert abs(np.mean(held) - level) < 0.06


def test_the_standard_deviation_is_the_noise_where_much_is_known_and_more_where_nothing_is():
    x, y = waves(2000, noise=0.3)
    model = ContinualRegressor(features=80).fit(x, y)
    _, std = model.predict(x, return_std=True)
    assert np.median(std) == pytest.approx(0.3, rel=0.1)
    far = model.predict(np.array([[5.0, -6.0]]), return_std=True)[1]
    assert far[0] > 3 * np.median(std)
    assert np.isnan(model.predict(np.array([[50.0, -60.0]]), abstain=0.01)).all()


def test_several_targets_of_any_size_and_offset():
    x, y = waves(400)
    both = np.stack([y, 1e6 + 1e3 * x[:, 0]], 1)
    model = ContinualRegressor(features=80, warmup=100).partial_fit(x[:300], both[:300]).partial_fit(x[300:], both[300:])
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (400, 2)
    assert np.abs(mean[:, 1] - both[:, 1]).mean() < 30
    assert model.score(x, both) > 0.95
    alone = ContinualRegressor(features=80).fit(x, 1e6 + 1e3 * x[:, 0])
    assert alone.predict(x).shape == (400,)
    with pytest.raises(InputError, match="2 were learned"):
        model.partial_fit(x, y)
    with pytest.raises(InputError, match="level"):
        model.predict_interval(x, 90)


@pytest.mark.parametrize("level", [0.5, 0.8])
def test_intervals_of_now_hold_the_next_targets_early_in_the_stream_too(level):
    """The errors of the first rows, when nothing was known, do not count as noise for long."""
    held = []
    for seed in range(3):
        x, y = waves(800, seed=seed)
        model = ContinualRegressor().partial_fit(x[:100], y[:100])
        for first in range(100, 800, 100):
            rows = slice(first, first + 100)
            low, high = model.predict_interval(x[rows], level)
            held.append(np.mean((low <= y[rows]) & (y[rows] <= high)))
            model.partial_fit(x[rows], y[rows])
    assert level - 0.04 < np.mean(held) < level + 0.1
