"""Estimators as files."""

import copy

import numpy as np
import pytest

import hvcl
from hvcl.core.errors import RunError
from hvcl.core.problem import Problem
from hvcl.core.saved import read_saved, write_saved
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from hvcl.learners import create
from tests.estimators.rows import blobs, waves


@pytest.mark.parametrize("cut", [30, 200])
@pytest.mark.parametrize("names", [["x", "y", "z"], [5, 6, 7], [True, False, True], [1.0, 2.0, 3.0]])
def test_a_classifier_goes_on_bit_identically_before_and_after_its_first_rows(tmp_path, cut, names):
    x, y = blobs(300)
    x[::7, 1] = np.nan
    labels = np.array(names)[y]
    settings = {"ridge": 2.0, "sizes": (5, 8)}
    model = ContinualClassifier(features=30, warmup=100, priors="uniform", seed=3, method_settings=settings)
    model.partial_fit(x[:cut], labels[:cut], group="ann")
    model.save(tmp_path / "m")
    found = hvcl.load(tmp_path / "m")
    assert type(found) is ContinualClassifier
    for one in (model, found):
        one.partial_fit(x[cut:], labels[cut:]).forget(x[cut : cut + 5], labels[cut : cut + 5]).forget_group("ann")
    assert np.array_equal(found.predict_proba(x), model.predict_proba(x))
    assert found.classes_.dtype == model.classes_.dtype
    assert found.predict(x, abstain=0.1).tolist() == model.predict(x, abstain=0.1).tolist()


def test_a_regressor_goes_on_bit_identically(tmp_path):
    x, y = waves(300)
    model = ContinualRegressor(features=30, warmup=100).partial_fit(x[:200], y[:200], group=4)
    model.save(tmp_path / "m")
    found = ContinualRegressor.load(tmp_path / "m")
    for one in (model, found):
        one.partial_fit(x[200:], y[200:]).forget_group(4)
    assert np.array_equal(found.predict_interval(x), model.predict_interval(x))
    with pytest.raises(RunError, match="holds a ContinualRegressor, where a ContinualClassifier"):
        ContinualClassifier.load(tmp_path / "m")


def test_published_scales_pictures_and_other_methods_are_saved(tmp_path):
    x, y = blobs(120)
    scales = ContinualClassifier(features=20).fit(x, y).scales_
    pictures = np.random.default_rng(0).normal(size=(40, 1, 16, 16)).cumsum(2).cumsum(3)
    models = [
        (ContinualClassifier(features=20, scales=scales).partial_fit(x, y), x),
        (ContinualClassifier("naive", method_settings={"hidden": (8,)}).fit(x, y), x),
        (ContinualClassifier(features=32).fit(pictures, y[:40]), pictures),
        (ContinualRegressor(features=32).fit(pictures, y[:40]), pictures),
    ]
    for model, rows in models:
        model.save(tmp_path / "m")
        assert np.array_equal(hvcl.load(tmp_path / "m").predict(rows), model.predict(rows))


def test_copies_learn_apart():
    x, y = blobs(100)
    model = ContinualClassifier(features=20).fit(x, y)
    before = model.predict_proba(x)
    copy.deepcopy(model).partial_fit(x[:50], 2 - y[:50])
    assert np.array_equal(model.predict_proba(x), before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"estimator": "Mine"}, "does not know"),
        ({"parameters": {"featurs": 3}}, "does not fit this version"),
        ({"parameters": {"method": "mine"}}, "install"),
    ],
)
def test_files_that_cannot_be_what_they_say_are_refused(tmp_path, changes, words):
    x, y = blobs(50)
    ContinualClassifier(features=20).fit(x, y).save(tmp_path / "m")
    described, state = read_saved(tmp_path / "m", "estimator")
    described = {name: value for name, value in described.items() if name not in ("format", "kind", "version")}
    write_saved(tmp_path / "m", "estimator", described | changes, state)
    with pytest.raises(RunError, match=words):
        hvcl.load(tmp_path / "m")


def test_one_door_for_learners_and_estimators(tmp_path):
    create("naive", Problem((4,), 2), hidden=(8,)).save(tmp_path / "m")
    assert hvcl.load(tmp_path / "m").config.hidden == (8,)
    with pytest.raises(RunError, match="holds a saved learner"):
        ContinualClassifier.load(tmp_path / "m")
    (tmp_path / "text").write_text("no file of hvcl's")
    for name, words in (("text", "nothing that hvcl has saved"), ("nowhere", "is missing")):
        with pytest.raises(RunError, match=words):
            hvcl.load(tmp_path / name)
