"""scikit-learn's own checks, and its tools around the estimators."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import hvcl
from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from tests.estimators.rows import blobs, moons, waves


@parametrize_with_checks([ContinualClassifier(features=60), ContinualRegressor(features=60)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_pipeline_and_grid_search_find_the_setting_that_bends_enough():
    x, y = moons(240)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), ContinualClassifier()), {"continualclassifier__features": [1, 80]}, cv=2
    )
    search.fit(x, y)
    assert search.best_params_ == {"continualclassifier__features": 80}
    assert search.score(*moons(200, seed=1)) > 0.95


@pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])
def test_the_order_of_rows_makes_no_difference_to_fit(kind):
    x, y = blobs(200) if kind is ContinualClassifier else waves(200)
    order = np.random.default_rng(0).permutation(200)
    assert np.array_equal(kind(features=30).fit(x, y).predict(x), kind(features=30).fit(x[order], y[order]).predict(x))


def test_clone_takes_settings_and_published_scales_and_nothing_that_was_learned():
    x, y = blobs()
    first = ContinualClassifier(features=20).fit(x, y)
    made = clone(ContinualClassifier(features=20, method_settings={"ridge": 2.0}, scales=first.scales_))
    assert made.method_settings == {"ridge": 2.0}
    assert not hasattr(made, "classes_")
    assert made.scales.same_map(first.scales_)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"features": 0}, "features must be"),
        ({"priors": "flat"}, "priors must be"),
        ({"warmup": 1}, "warmup must be"),
        ({"max_categories": 0}, "max_categories must be"),
        ({"seed": -1}, "seed must be"),
        ({"scales": 3}, "scales must be"),
        ({"method": "exakt"}, "did you mean 'exact'"),
        ({"method_settings": {"ridg": 1.0}}, "did you mean 'ridge'"),
        ({"method": "naive", "features": 10}, "has no random features"),
        ({"epochs": 0}, "epochs must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_rows_come(settings, words):
    x, y = blobs(30)
    with pytest.raises((InputError, KeyError), match=words):
        ContinualClassifier(**settings).fit(x, y)


def test_the_front_door_has_both():
    assert hvcl.ContinualClassifier is ContinualClassifier
    assert hvcl.ContinualRegressor is ContinualRegressor
