"""The adapters for river."""

import warnings
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("river")

from river import checks, datasets, metrics

from hvcl.core.errors import InputError
from hvcl.estimators import ScaleWarning
from hvcl.estimators.river import RiverClassifier, RiverRegressor


@pytest.mark.parametrize("kind", [RiverClassifier, RiverRegressor])
def test_rivers_checks(kind):
    """Each of them, on one of river's data sets in turn: all on all of them (`checks.check_estimator`) take minutes."""
    model = kind(features=8, warmup=20, batch_size=20)
    same: dict[str, list] = {}
    for check in checks.yield_checks(model):
        same.setdefault(check.__name__, []).append(check)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScaleWarning)
        for place, on_data_sets in enumerate(same.values()):
            on_data_sets[place % len(on_data_sets)](model.clone())


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


def test_the_first_rows_are_learned_now_and_then(monkeypatch):
    taught = []
    learn = RiverClassifier._taught
    monkeypatch.setattr(RiverClassifier, "_taught", lambda self, rows: (taught.append(len(rows)), learn(self, rows))[1])
    random, model = np.random.default_rng(0), RiverClassifier(features=20, warmup=60)
    for row in range(60):
        x = random.normal()
        if row:
            model.predict_proba_one({"x": x})
        model.learn_one({"x": x}, x > 0)
    assert taught[-1] == 60
    assert len(taught) < 30
    assert all(9 * before >= 8 * (after - 1) for before, after in pairwise(taught))


def test_a_column_of_the_first_rows_may_turn_out_to_be_one_of_categories():
    model = RiverClassifier(features=20, warmup=60)
    for row in range(40):
        model.learn_one({"x": row % 5}, row % 2)
        model.predict_proba_one({"x": row % 5})
    model.learn_one({"x": "five"}, 1)
    assert set(model.predict_proba_one({"x": "six"})) == {0, 1}
