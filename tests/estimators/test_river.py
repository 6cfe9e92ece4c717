"""The adapters for river."""

import warnings

import numpy as np
import pytest

pytest.importorskip("river")

from river import checks, datasets, metrics

from hvcl.core.errors import InputError
from hvcl.estimators import ScaleWarning
from hvcl.estimators.river import RiverClassifier, RiverRegressor


@pytest.mark.parametrize("kind", [RiverClassifier, RiverRegressor])
def test_rivers_checks(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScaleWarning)
        checks.check_estimator(kind(**next(kind._unit_test_params())))


def test_a_stream_is_learned_row_by_row():
    model, accuracy = RiverClassifier(features=40, batch_size=10), metrics.Accuracy()
    for number, (x, y) in enumerate(datasets.Phishing().take(600)):
        if number >= 200:
            accuracy.update(y, model.predict_one(x))
        model.learn_one(x, y)
    assert accuracy.get() > 0.85


def test_names_that_come_late_are_left_out_with_a_warning_and_texts_are_categories():
    random = np.random.default_rng(0)
    model = RiverClassifier(features=40, warmup=50)
    for _ in range(100):
        colour = str(random.choice(["red", "blue"]))
        model.learn_one({"colour": colour, "size": random.normal()}, colour == "red")
    assert model.predict_one({"colour": "red", "size": 0.0}) is True
    assert model.predict_one({"colour": "blue"}) is False
    with pytest.warns(ScaleWarning, match="'weight'"):
        model.learn_one({"colour": "red", "weight": 3.0}, True)
    with pytest.raises(InputError, match="holds numbers"):
        model.learn_one({"size": "large"}, True)
