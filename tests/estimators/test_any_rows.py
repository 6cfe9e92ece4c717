"""Whatever rows look like: any scale and offset, duplicates, constant and collinear columns, one label, one row at a time."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hvcl.estimators import ContinualClassifier, ContinualRegressor
from tests.estimators.rows import blobs, waves

KINDS = pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])

FEATURES = 12

pytestmark = pytest.mark.filterwarnings("ignore::hvcl.estimators.ScaleWarning")


def fuzz(examples):
    """The same examples every time."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    phases = [Phase.explicit, Phase.generate]
    return settings(
        max_examples=examples, phases=phases, derandomize=True, deadline=None, database=None, suppress_health_check=checks
    )


@st.composite
def tables(draw):
    """Rows, labels, numbers to predict, and where the stream is cut."""
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    count = draw(st.integers(2, 40))
    columns = [random.normal(size=count)]
    for kind in draw(
        st.lists(st.sampled_from(["normal", "constant", "same", "sum", "rare", "heavy", "whole", "gaps"]), max_size=5)
    ):
        normal = random.normal(size=count)
        columns.append(
            {
                "normal": normal,
                "constant": np.full(count, normal[0]),
                "same": columns[0].copy(),
                "sum": sum(columns) / len(columns),
                "rare": np.where(np.arange(count) == count // 2, 1.0, 0.0),
                "heavy": np.exp(4 * normal),
                "whole": np.round(normal),
                "gaps": np.where(normal > 0, normal, np.nan),
            }[kind]
        )
    sizes = 10.0 ** np.array(draw(st.lists(st.integers(-6, 6), min_size=len(columns), max_size=len(columns))))
    offsets = sizes * draw(st.sampled_from([0.0, 1.0, -1e3, 1e6]))
    x = np.stack(columns, 1) * sizes + offsets
    labels = random.integers(0, draw(st.integers(1, 3)), count)
    numbers = (columns[0] * draw(st.sampled_from([0.0, 1.0])) + draw(st.sampled_from([0.0, -5.0, 1e6]))) * sizes[0]
    if draw(st.booleans()):  # duplicates
        half = count // 2
        x[half : 2 * half], labels[half : 2 * half], numbers[half : 2 * half] = x[:half], labels[:half], numbers[:half]
    step = draw(st.sampled_from([1, 7, count]))
    return x, labels, numbers, [slice(first, first + step) for first in range(0, count, step)]


@fuzz(30)
@given(tables(), st.sampled_from([2, 10, 100]))
def test_a_classifier_answers_with_probabilities_after_every_call(case, warmup):
    x, y, _, parts = case
    model = ContinualClassifier(features=FEATURES, warmup=warmup)
    for number, part in enumerate(parts):
        model.partial_fit(x[part], y[part])
        if number in (0, len(parts) // 2, len(parts) - 1):
            p = model.predict_proba(x)
            assert p.shape == (len(x), len(model.classes_))
            assert (p >= 0).all()
            np.testing.assert_allclose(p.sum(1), 1)
            assert np.isfinite(model.novelty(x)).all()
    assert model.classes_.tolist() == sorted(set(y.tolist()))


@fuzz(30)
@given(tables(), st.sampled_from([2, 10, 100]))
def test_a_regressor_answers_with_finite_numbers_near_those_it_learned(case, warmup):
    x, _, y, parts = case
    model = ContinualRegressor(features=FEATURES, warmup=warmup)
    for number, part in enumerate(parts):
        model.partial_fit(x[part], y[part])
        if number in (0, len(parts) // 2, len(parts) - 1):
            mean, std = model.predict(x, return_std=True)
            low, high = model.predict_interval(x)
            assert np.isfinite([mean, std, low, high]).all()
            assert (std >= 0).all()
    room = 3 * np.ptp(y) + 1e-6 * np.abs(y).max()
    assert (mean >= y.min() - room).all()
    assert (mean <= y.max() + room).all()


@fuzz(12)
@given(tables())
def test_one_row_at_a_time_is_all_rows_at_once(case):
    x, labels, numbers, _ = case
    for kind, y in ((ContinualClassifier, labels), (ContinualRegressor, numbers)):
        scales = kind(features=FEATURES).fit(x, y).scales_
        settings = {"method_settings": {"ridge": 1.0}} if kind is ContinualClassifier else {"ridge": 1.0}
        settings["answer"] = "ever"
        whole = kind(features=FEATURES, scales=scales, **settings).partial_fit(x, y)
        single = kind(features=FEATURES, scales=scales, **settings)
        for row in range(len(x)):
            single.partial_fit(x[row : row + 1], y[row : row + 1])
        if kind is ContinualClassifier:
            np.testing.assert_allclose(single.predict_proba(x), whole.predict_proba(x), atol=1e-5)
        else:
            np.testing.assert_allclose(single.predict(x), whole.predict(x), rtol=1e-9, atol=1e-6 * np.ptp(y))
        np.testing.assert_allclose(single.novelty(x), whole.novelty(x), rtol=1e-6, atol=1e-9)


@KINDS
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("offset", [0.0, -30.0, 1e5])
def test_answers_do_not_depend_on_units(kind, size, offset):
    x, y = blobs(150, distance=2.0) if kind is ContinualClassifier else waves(150)
    units = size ** np.linspace(-1, 1, x.shape[1])
    plain = kind(features=40).fit(x, y)
    other = kind(features=40).fit((x + offset) * units, y if kind is ContinualClassifier else (y + offset) * size)
    if kind is ContinualClassifier:
        np.testing.assert_allclose(other.predict_proba((x + offset) * units), plain.predict_proba(x), atol=2e-3)
    else:
        mean, std = other.predict((x + offset) * units, return_std=True)
        expected, noise = plain.predict(x, return_std=True)
        np.testing.assert_allclose(mean / size - offset, expected, atol=5e-3)
        np.testing.assert_allclose(std / size, noise, rtol=1e-2)


@KINDS
def test_rows_that_are_all_the_same_say_what_they_have_in_common(kind):
    x = np.full((50, 3), 7e5)
    if kind is ContinualClassifier:
        model = kind(answer="ever", features=FEATURES, warmup=10).partial_fit(x[:20], ["a"] * 20)
        assert model.predict_proba(x).tolist() == [[1.0]] * 50
        model.partial_fit(x[:30], ["b"] * 30)
        np.testing.assert_allclose(model.predict_proba(x), [[0.4, 0.6]] * 50, atol=0.02)
    else:
        model = kind(answer="ever", features=FEATURES, warmup=10).partial_fit(x, np.full(50, -3e-4))
        np.testing.assert_allclose(model.predict(x), -3e-4, rtol=1e-6)
        model.partial_fit(x, np.full(50, -1e-4))
        np.testing.assert_allclose(model.predict(x), -2e-4, rtol=1e-2)
