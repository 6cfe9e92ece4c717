"""Estimators that answer as of now."""

import numpy as np
import pytest

import hvcl
from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, ContinualRegressor


def stream(count, seed=0, flip=None, columns=4):
    """Rows and labels that depend on the first two columns, and are flipped from row `flip` on."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, columns))
    y = x[:, 0] + x[:, 1] > 0
    if flip is not None:
        y = y ^ (np.arange(count) >= flip)
    return x, np.where(y, "yes", "no")


def learned(model, x, y, batch=64):
    for first in range(0, len(x), batch):
        model.partial_fit(x[first : first + batch], y[first : first + batch])
    return model


def test_flipped_labels_are_answered_as_of_now_or_of_everything():
    x, y = stream(3000, flip=2000)
    new_x, new_y = stream(1000, seed=1, flip=0)
    heard = []
    now = learned(ContinualClassifier(features=80, on_drift=heard.append), x, y)
    ever = learned(ContinualClassifier(features=80, answer="ever"), x, y)
    assert now.score(new_x, new_y) > 0.93
    assert ever.score(new_x, new_y) < 0.3
    (event,) = now.drift_
    assert heard == [event]
    assert 2000 < event.row <= 2160
    assert (event.expert, event.known, event.columns) == (1, False, ())
    assert ever.drift_ == []


def test_the_columns_that_moved_are_named():
    pd = pytest.importorskip("pandas")
    x, y = stream(3000, flip=2000)
    x[2000:, 2] += 3
    table = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    model = ContinualClassifier(features=80)
    for first in range(0, 3000, 50):
        model.partial_fit(table[first : first + 50], y[first : first + 50])
    assert [event.columns for event in model.drift_] == [("c",)]
    plain = learned(ContinualClassifier(features=80), x, y)
    assert plain.drift_[0].columns == (2,)


def test_a_slope_that_changes_is_followed():
    x, _ = stream(3000)
    y = np.where(np.arange(3000) < 2000, 1, -1) * x[:, 0]
    model = learned(ContinualRegressor(features=80), x, y)
    new, _ = stream(500, seed=1)
    mean, std = model.predict(new, return_std=True)
    assert np.sqrt(np.mean((mean + new[:, 0]) ** 2)) < 0.2
    assert np.median(std) < 0.3
    low, high = model.predict_interval(new, 0.9)
    assert ((low < -new[:, 0]) & (-new[:, 0] < high)).mean() > 0.85
    assert len(model.drift_) == 1


def test_all_rows_of_fit_hold_now():
    x, y = stream(500)
    now, ever = ContinualClassifier(features=60).fit(x, y), ContinualClassifier(features=60, answer="ever").fit(x, y)
    assert np.array_equal(now.predict_proba(x), ever.predict_proba(x))
    order = np.random.default_rng(0).permutation(500)
    again = ContinualClassifier(features=60).fit(x[order], y[order])
    assert np.array_equal(now.predict_proba(x), again.predict_proba(x))


def test_forgetting_leaves_the_sums_of_everything_and_nothing_else():
    x, y = stream(1200)
    ever = learned(ContinualClassifier(features=60, answer="ever"), x, y)
    now = learned(ContinualClassifier(features=60), x, y)
    assert not np.allclose(now.predict_proba(x[:50]), ever.predict_proba(x[:50]), atol=1e-3)
    now.forget(x[:200], y[:200])
    ever.forget(x[:200], y[:200])
    np.testing.assert_allclose(now.predict_proba(x), ever.predict_proba(x), atol=1e-6)
    learned(now, *stream(640, seed=2, flip=0))
    assert now.score(*stream(500, seed=3, flip=0)) > 0.9


def test_sites_with_flipped_labels_merge_and_go_on():
    x, y = stream(600)
    first = learned(ContinualClassifier(features=60), x, y)
    second = learned(ContinualClassifier(features=60, scales=first.scales_), *stream(600, seed=1))
    merged = first.merge(second)
    assert merged.score(*stream(500, seed=2)) > 0.95
    learned(merged, *stream(640, seed=3, flip=0))
    assert merged.score(*stream(500, seed=4, flip=0)) > 0.9


def test_a_saved_estimator_goes_on_bit_identically_with_its_drift(tmp_path):
    x, y = stream(1500, flip=800)
    model = learned(ContinualClassifier(features=60, on_drift=print), x[:1210], y[:1210], batch=30)
    model.save(tmp_path / "model")
    again = hvcl.load(tmp_path / "model")
    assert again.on_drift is None
    assert again.drift_ == model.drift_
    assert len(again.drift_) == 1
    for made in (model, again):
        learned(made, x[1210:], y[1210:], batch=29)
    assert np.array_equal(model.predict_proba(x), again.predict_proba(x))


def test_a_label_that_comes_late_and_categories_are_followed():
    pd = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    colours = np.array(["red", "green", "blue"])[random.integers(3, size=1500)]
    table = pd.DataFrame({"colour": pd.Categorical(colours), "size": random.normal(size=1500)})
    y = np.where(colours == "red", "a", "b")
    y[1000:] = np.where(colours[1000:] == "green", "c", "b")
    model = ContinualClassifier(features=60)
    for first in range(0, 1500, 50):
        model.partial_fit(table[first : first + 50], y[first : first + 50])
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert (model.predict(table[1000:]) == y[1000:]).mean() > 0.98


def test_pictures_are_followed():
    random = np.random.default_rng(0)
    bright = random.integers(2, size=900)
    x = random.normal(size=(900, 1, 12, 12)) * 0.3
    x[:, :, :6] += bright[:, None, None, None]
    y = bright ^ (np.arange(900) >= 600)
    model = ContinualClassifier(features=64, warmup=100)
    for first in range(0, 900, 50):
        model.partial_fit(x[first : first + 50], y[first : first + 50])
    assert (model.predict(x[600:]) == y[600:]).mean() > 0.95


def test_other_methods_answer_as_they_do():
    x, y = stream(300)
    model = ContinualClassifier("naive", method_settings={"hidden": (8,)}).partial_fit(x, y, classes=["no", "yes"])
    assert model.drift_ == []
    assert model.predict_proba(x).shape == (300, 2)


@pytest.mark.parametrize(("settings", "match"), [({"answer": "later"}, "'now' or 'ever'"), ({"on_drift": 3}, "function")])
def test_what_cannot_be_is_said(settings, match):
    with pytest.raises(InputError, match=match):
        ContinualClassifier(**settings).fit(*stream(50))
