"""Estimators that answer as of now."""

import copy
import warnings

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


def test_saving_and_copying_change_no_later_answer(tmp_path):
    x, y = stream(1200, flip=700)
    alone, saved = ContinualClassifier(features=60), ContinualClassifier(features=60)
    for first in range(0, 1200, 10):
        part = slice(first, first + 10)
        alone.partial_fit(x[part], y[part])
        saved.partial_fit(x[part], y[part])
        if first > 300 and first % 50 == 0:
            saved.save(tmp_path / "model")
            copy.deepcopy(saved)
    again = hvcl.load(tmp_path / "model")
    learned(again, x[1160:], y[1160:], 10)
    np.testing.assert_array_equal(alone.predict_proba(x), saved.predict_proba(x))
    np.testing.assert_array_equal(alone.predict_proba(x), again.predict_proba(x))


def test_a_private_model_that_is_saved_and_copied_after_every_few_rows_still_follows(tmp_path):
    x, y = stream(1500, flip=900)
    scales = ContinualClassifier(features=60).fit(*stream(300, seed=5)).scales_
    model = ContinualClassifier(features=60, scales=scales, private=True)
    for first in range(0, 1500, 10):
        model.partial_fit(x[first : first + 10], y[first : first + 10])
        model = copy.deepcopy(model)
        if first % 100 == 0:
            model.save(tmp_path / "model")
    new_x, new_y = stream(500, seed=1, flip=0)
    assert model.score(new_x, new_y) > 0.9


def test_merged_models_answer_as_of_now():
    x, y = stream(3000, flip=1500)
    first = learned(ContinualClassifier(features=60), x, y)
    second = learned(ContinualClassifier(features=60, scales=first.scales_), *stream(3000, seed=3, flip=1500))
    new_x, new_y = stream(500, seed=1, flip=0)
    assert first.merge(second).score(new_x, new_y) > 0.9


def test_refused_calls_with_new_labels_and_callbacks_that_raise_leave_the_model_whole():
    x, y = stream(1200, flip=800)

    def raises(event):
        raise RuntimeError("no connection")

    model = learned(ContinualClassifier(features=60), x[:800], y[:800])
    with pytest.raises(InputError, match="group"):
        model.partial_fit(x[:5], ["perhaps"] * 5, group=3.5)
    assert model.predict_proba(x[:3]).shape == (3, 2)
    model.on_drift = raises
    failed = 0
    for first in range(800, 1200, 20):
        labels = y[first : first + 20].copy()
        try:
            model.partial_fit(x[first : first + 20], labels)
        except RuntimeError:
            failed += 1
    assert failed == len(model.drift_) == 1
    assert model.score(x[1000:], y[1000:]) > 0.9
    model.partial_fit(x[:2], ["perhaps", "perhaps"])
    assert list(model.classes_) == ["no", "perhaps", "yes"]


def test_the_regressor_says_that_it_does_not_know_what_is_far():
    """The truth lies within four deviations up to where rows are clipped: the answer is a guess there, and says so."""
    random = np.random.default_rng(0)
    x = random.normal(size=(2000, 3))
    y = 3 * x[:, 0] + 0.1 * random.normal(size=2000)
    for answer in ("now", "ever"):
        model = ContinualRegressor(features=60, answer=answer)
        for first in range(0, 2000, 50):
            model.partial_fit(x[first : first + 50], y[first : first + 50])
        for far in (10.0, 25.0):
            mean, std = model.predict(np.full((1, 3), far), return_std=True)
            assert abs(float(mean[0]) - 3 * far) < 4 * float(std[0])
        _, near = model.predict(x[:100], return_std=True)
        assert np.median(near) < 0.6


def saved(model, folder):
    model.save(folder / "model")
    return folder / "model"


def test_targets_that_are_far_out_are_clipped_with_a_warning_now_and_then_and_spoil_nothing(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 2))
    y = x[:, 0] - x[:, 1]
    model = ContinualRegressor(features=60).partial_fit(x[:400], y[:400])
    with pytest.warns(UserWarning, match="1 of 1 targets lie more than"):
        model.partial_fit(x[:1], [1e6])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            model.partial_fit(x[:1], [1e200])
        copy = hvcl.load(saved(model, tmp_path))
        with pytest.raises(UserWarning, match="1 of 2 targets, and 9 before them, lie"):  # the tenth: nothing is learned
            copy.partial_fit(x[:2], [-1e200, 0.0])
        assert copy.n_samples_seen_ == model.n_samples_seen_ == 409
    model.partial_fit(x[400:], y[400:])
    assert np.sqrt(np.mean((model.predict(x) - y) ** 2)) < 0.5


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method_settings": {"nope": 1}}, "nope"),
        ({"features": 0}, "features"),
        ({"epochs": "a"}, "epochs"),
        ({"method_settings": 3}, "dict"),
    ],
)
def test_settings_are_checked_before_the_first_row_is_kept(settings, match):
    x, y = stream(20)
    model = ContinualClassifier(**settings)
    with pytest.raises(InputError, match=match):
        model.partial_fit(x, y)
    assert not hasattr(model, "classes_")


def test_bad_arguments_and_labels_are_named():
    x, y = stream(400)
    model = learned(ContinualClassifier(features=20), x, y)
    with pytest.raises(InputError, match="abstain"):
        model.predict(x[:3], abstain="x")
    with pytest.raises(InputError, match="dates"):
        model.predict(np.zeros((2, 4), dtype="datetime64[s]"))
    with pytest.raises(ValueError, match="NaN"):
        ContinualClassifier().partial_fit(x[:3], np.array([0.0, 1.0, np.nan], dtype=object))
    assert ContinualClassifier(features=np.int64(30)).fit(x, y).score(x, y) > 0.8
    with pytest.raises(InputError, match="level"):
        ContinualRegressor(features=20).fit(x, x[:, 0]).predict_interval(x[:3], level="x")


def test_experts_of_the_gate_are_bounded():
    random = np.random.default_rng(0)
    model = ContinualClassifier(method_settings={"gate": True, "max_experts": 3}, features=40)
    for step in range(12):
        x = random.normal(size=(200, 2)) + 6 * step
        model.partial_fit(x, (x.sum(1) > 12 * step).astype(int))
    assert 1 < len(model.experts_) <= 3
