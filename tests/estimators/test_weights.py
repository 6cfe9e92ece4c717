"""Sample weights: rows that count several times, or in part."""

import numpy as np
import pytest

import hvcl
from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from tests.estimators.rows import blobs, waves

KINDS = pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])


def rows(kind, count=120, seed=0):
    return blobs(count, seed=seed, distance=2.0) if kind is ContinualClassifier else waves(count, seed=seed)


def answers(model, x):
    return model.predict_proba(x) if isinstance(model, ContinualClassifier) else np.stack(model.predict(x, return_std=True), 1)


@KINDS
def test_whole_weights_are_repetitions_to_the_last_bit(kind):
    x, y = rows(kind, 60)
    weights = np.arange(60) % 3
    weighted, repeated = kind(answer="ever", features=30, warmup=10), kind(answer="ever", features=30, warmup=10)
    for part in (slice(0, 40), slice(40, 60)):
        weighted.partial_fit(x[part], y[part], sample_weight=weights[part])
        repeated.partial_fit(np.repeat(x[part], weights[part], 0), np.repeat(y[part], weights[part]))
    assert np.array_equal(weighted.predict(x), repeated.predict(x))


@KINDS
def test_half_rows_learned_twice_are_rows(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=30).fit(x, y).scales_
    weights = np.random.default_rng(1).choice([0.25, 0.5, 0.75], 120)
    halves = kind(answer="ever", features=30, scales=scales).partial_fit(x, y, sample_weight=weights)
    halves.partial_fit(x, y, sample_weight=1 - weights)
    whole = kind(answer="ever", features=30, scales=scales).partial_fit(x, y)
    np.testing.assert_allclose(answers(halves, x), answers(whole, x), atol=1e-4)
    np.testing.assert_allclose(halves.novelty(x), whole.novelty(x), rtol=1e-9)


@KINDS
def test_weights_just_beside_whole_numbers_are_hardly_anything_else(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=30).fit(x, y).scales_
    weights = np.arange(120) % 4
    repeated = kind(answer="ever", features=30, scales=scales).fit(x, y, sample_weight=weights)
    beside = kind(answer="ever", features=30, scales=scales).fit(x, y, sample_weight=weights * (1 + 1e-12))
    np.testing.assert_allclose(answers(beside, x), answers(repeated, x), atol=1e-4)
    order = np.random.default_rng(0).permutation(120)
    again = kind(answer="ever", features=30, scales=scales).fit(x[order], y[order], sample_weight=(weights * (1 + 1e-12))[order])
    assert np.array_equal(answers(again, x), answers(beside, x))


@KINDS
def test_rows_and_groups_with_weights_are_forgotten_and_nothing_is_left_of_a_label(kind):
    x, y = rows(kind, 200)
    scales = kind(answer="ever", features=30).fit(x, y).scales_
    weights = np.random.default_rng(1).uniform(0.1, 2, 200)
    model = kind(answer="ever", features=30, scales=scales).partial_fit(x[:50], y[:50], sample_weight=weights[:50], group="ann")
    model.partial_fit(x[50:100], y[50:100], sample_weight=weights[50:100])
    model.partial_fit(x[100:], y[100:], sample_weight=weights[100:], group="bob")
    model.forget(x[:10], y[:10], sample_weight=weights[:10], group="ann").forget_group("bob")
    for row in range(50, 60):
        model.forget(x[row : row + 1], y[row : row + 1], sample_weight=weights[row : row + 1])
    left = np.r_[10:50, 60:100]
    without = kind(answer="ever", features=30, scales=scales).partial_fit(x[left], y[left], sample_weight=weights[left])
    np.testing.assert_allclose(answers(model, x), answers(without, x), atol=2e-3)
    np.testing.assert_allclose(model.novelty(x), without.novelty(x), rtol=1e-4)
    before = answers(model, x)
    with pytest.raises(InputError, match=r"cannot (forget|remove)|learned in groups"):
        model.forget(x[60:70], y[60:70], sample_weight=weights[60:70] * 40)
    assert np.array_equal(answers(model, x), before)
    model.forget_group("ann").forget(x[60:100], y[60:100], sample_weight=weights[60:100])
    model.partial_fit(x[:20], y[:20])
    fresh = kind(answer="ever", features=30, scales=scales).partial_fit(x[:20], y[:20])
    np.testing.assert_allclose(answers(model, x), answers(fresh, x), atol=2e-3)


def test_a_label_whose_rows_are_forgotten_in_parts_has_no_probability_left():
    x, y = blobs(150)
    model = ContinualClassifier(features=30).fit(x, y)
    gone = y == 2
    for weight in (0.3, 0.7):
        model.forget(x[gone], y[gone], sample_weight=np.full(gone.sum(), weight), twice=True)
    assert (model.predict_proba(x)[:, 2] == 0).all()
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)


@KINDS
def test_the_first_rows_keep_their_weights_also_in_files(tmp_path, kind):
    x, y = rows(kind)
    weights = np.random.default_rng(1).uniform(0.1, 2, 120)
    model = kind(answer="ever", features=30, warmup=100).partial_fit(x[:60], y[:60], sample_weight=weights[:60])
    model.forget(x[:10], y[:10], sample_weight=weights[:10])
    model.forget(x[10:20], y[10:20], sample_weight=weights[10:20] / 4)
    model.save(tmp_path / "m")
    model = hvcl.load(tmp_path / "m").partial_fit(x[60:], y[60:])
    weights[60:], weights[10:20] = 1, weights[10:20] * 3 / 4
    whole = kind(answer="ever", features=30, warmup=100).partial_fit(x[10:], y[10:], sample_weight=weights[10:])
    np.testing.assert_allclose(answers(model, x), answers(whole, x), atol=1e-6)
    waiting = kind(answer="ever", features=30, warmup=1000).partial_fit(x, y, sample_weight=weights)
    with pytest.raises(InputError, match="not all learned"):
        waiting.forget(x[:1], y[:1], sample_weight=[3.5])


@KINDS
@pytest.mark.parametrize("size", [1e-6, 1e8])
def test_weights_of_any_size_leave_finite_answers(kind, size):
    x, y = rows(kind, 60)
    model = kind(answer="ever", features=30).fit(x, y, sample_weight=np.full(60, size * np.pi))
    assert np.isfinite(answers(model, x)).all()


@KINDS
@pytest.mark.parametrize(
    ("weights", "words"),
    [(np.full(30, -0.5), "must not be negative"), (np.zeros(30), "non-zero"), (np.full(30, 1e300), "at most")],
)
def test_weights_that_make_no_sense_are_refused(kind, weights, words):
    x, y = rows(kind, 30)
    model = kind(answer="ever", features=30).fit(x, y)
    before = answers(model, x)
    with pytest.raises(ValueError, match=words):
        model.partial_fit(x, y, sample_weight=weights)
    assert np.array_equal(answers(model, x), before)


def test_methods_trained_by_gradient_count_whole_rows_only():
    x, y = blobs(40)
    for model in (
        ContinualClassifier("naive", method_settings={"hidden": (4,)}),
        ContinualClassifier(method_settings={"separate": True}),
    ):
        model.partial_fit(x, y, sample_weight=np.full(40, 2))
        with pytest.raises(InputError, match="whole numbers"):
            model.partial_fit(x, y, sample_weight=np.full(40, 0.5))


def test_with_a_gate_rows_count_in_part_in_the_sums_and_leave_them_with_their_weights():
    x, y = blobs(120)
    model = ContinualClassifier(features=30, method_settings={"gate": True}).fit(x, y)
    before = model.predict_proba(x)
    far = x[:10] + 2
    model.partial_fit(far, y[:10], sample_weight=np.full(10, 0.5))
    model.forget(far, y[:10], sample_weight=np.full(10, 0.5))
    np.testing.assert_allclose(model.predict_proba(x), before, atol=1e-3)
