"""The adapters for river."""

import copy
import datetime
import pickle
import warnings
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("river")

from river import checks, datasets, metrics

from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, ScaleWarning
from hvcl.estimators.river import RiverClassifier, RiverRegressor


@pytest.mark.parametrize("kind", [RiverClassifier, RiverRegressor])
def test_rivers_checks(kind):
    """Each of them, on one of river's data sets in turn: all on all of them (`checks.check_estimator`) take minutes."""
    model = kind(features=8, warmup=20)
    same: dict[str, list] = {}
    for check in checks.yield_checks(model):
        same.setdefault(check.__name__, []).append(check)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScaleWarning)
        for place, on_data_sets in enumerate(same.values()):
            on_data_sets[place % len(on_data_sets)](model.clone())


def test_a_stream_is_learned_row_by_row():
    model, accuracy = RiverClassifier(features=40), metrics.Accuracy()
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

    def teach(self: RiverClassifier, rows: list, small: bool = False):
        taught.append(len(rows))
        return learn(self, rows, small)

    monkeypatch.setattr(RiverClassifier, "_taught", teach)
    random, model = np.random.default_rng(0), RiverClassifier(features=20, warmup=60)
    for row in range(60):
        x = random.normal()
        if row:
            model.predict_proba_one({"x": x})
        model.learn_one({"x": x}, x > 0)
    assert taught[-1] == 60
    assert len(taught) < 15
    assert all(3 * before >= 2 * (after - 1) for before, after in pairwise(taught))


def test_a_column_of_the_first_rows_may_turn_out_to_be_one_of_categories():
    model = RiverClassifier(features=20, warmup=60)
    for row in range(40):
        model.learn_one({"x": row % 5}, row % 2)
        model.predict_proba_one({"x": row % 5})
    model.learn_one({"x": "five"}, 1)
    assert set(model.predict_proba_one({"x": "six"})) == {0, 1}


def rows_and_labels(count: int, flip: int | None = None, labels: int = 2) -> list[tuple[dict, int]]:
    random = np.random.default_rng(3)
    found = []
    for row in range(count):
        x = random.normal(size=3)
        colour = "red" if random.random() < 0.5 else "blue"
        y = int(x[0] + 0.5 * x[1] + (colour == "red") > 0.25) ^ int(flip is not None and row >= flip)
        kept = {"a": x[0], "b": None if row % 17 == 0 else x[1], "c": x[2], "colour": colour}
        found.append((kept, y if labels == 2 or row % 5 else 2))
    return found


def test_rows_one_by_one_are_answered_as_batches_of_a_block_are():
    """Up to the rounding of features and of the model of everything, which are in single precision."""
    pandas = pytest.importorskip("pandas")
    stream = rows_and_labels(100 + 3 * 32 + 16, flip=150)
    single = RiverClassifier(features=40)
    for x, y in stream[:100]:
        single.learn_one(x, y)
    frame = pandas.DataFrame([x for x, _ in stream]).astype({"b": float})
    labels = np.array([y for _, y in stream])
    whole = ContinualClassifier(features=40).fit(frame[:100], labels[:100])
    for first in range(100, len(stream) - 16, 32):
        # the first row of a block: nothing was weighed in the single path that was not in the whole one
        expected = whole.predict_proba(frame[first : first + 1])[0]
        assert list(single.predict_proba_one(stream[first][0]).values()) == pytest.approx(expected.tolist(), abs=1e-4)
        for x, y in stream[first : first + 32]:
            single.predict_proba_one(x)
            single.learn_one(x, y)
        whole.partial_fit(frame[first : first + 32], labels[first : first + 32])
    mine, theirs = single._estimator._core.tracker.filter, whole._core.tracker.filter
    np.testing.assert_allclose(mine.weights, theirs.weights, atol=1e-4)
    np.testing.assert_allclose(mine.sharp, theirs.sharp, atol=1e-2)
    for a, b in zip(mine.pools, theirs.pools, strict=True):
        np.testing.assert_allclose(a.second.numpy(), b.second.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", [RiverClassifier, RiverRegressor])
def test_without_compiled_code_answers_are_the_same_to_rounding(kind, monkeypatch):
    found = []
    for plain in ("", "1"):
        monkeypatch.setenv("HVCL_NO_KERNELS", plain)
        model, answers = kind(features=40, warmup=50), []
        for x, y in rows_and_labels(50 + 5 * 32, flip=120, labels=3):
            answer = model.predict_proba_one(x) if kind is RiverClassifier else {"": model.predict_one(x)}
            answers.append([answer.get(label, 0.0) for label in (["", 0, 1, 2])])
            model.learn_one(x, y)
        found.append(answers)
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    assert np.abs(np.diff(found[0], axis=0)).max() > 0.1


def test_every_label_counts_at_once_not_only_at_the_end_of_a_block():
    stream = rows_and_labels(100 + 20 * 32 + 16, flip=100 + 20 * 32)
    model = RiverClassifier(features=40)
    for x, y in stream[: 100 + 20 * 32]:
        model.learn_one(x, y)
    before = model._estimator._core.tracker.filter.believed.copy()
    for x, y in stream[100 + 20 * 32 :]:
        model.learn_one(x, y)
    after = model._estimator._core.tracker.filter.believed
    assert model._estimator._core.tracker.filter.rows == len(stream)
    assert np.abs(after - before).max() > 0.1


def test_labels_that_appear_within_a_block_are_learned_and_nothing_is_lost():
    stream = rows_and_labels(100) + rows_and_labels(90, labels=3)
    model = RiverClassifier(features=40)
    for x, y in stream:
        model.learn_one(x, y)
    assert set(model.predict_proba_one(stream[0][0])) == {0, 1, 2}
    core = model._estimator._core
    assert core.model.count + len(model._rows) == len(stream)
    assert core.tracker.filter.block_rows + len(model._rows) < 32


def test_a_row_that_cannot_be_read_changes_nothing():
    stream = rows_and_labels(120)
    model, twin = RiverClassifier(features=40), RiverClassifier(features=40)
    for x, y in stream[:110]:
        model.learn_one(x, y)
        twin.learn_one(x, y)
    for bad in ({"a": "many"}, {"a": float("inf")}):
        with pytest.raises(InputError, match="holds numbers"):
            model.learn_one(bad, 1)
        with pytest.raises(InputError, match="holds numbers"):
            model.predict_proba_one(bad)
    with pytest.raises(InputError, match="type"):
        model.learn_one(stream[0][0], "one")
    for x, y in stream[110:]:
        model.learn_one(x, y)
        twin.learn_one(x, y)
    assert model.predict_proba_one(stream[5][0]) == twin.predict_proba_one(stream[5][0])


def test_numbers_are_followed_row_by_row():
    random = np.random.default_rng(0)
    model, errors = RiverRegressor(features=20, warmup=50), []
    for row in range(600):
        x = random.normal(size=2)
        y = 100 + (x[0] - 2 * x[1]) * (1 if row < 300 else -1)
        errors.append(abs(model.predict_one({"a": x[0], "b": x[1]}) - y))
        model.learn_one({"a": x[0], "b": x[1]}, y)
    assert np.mean(errors[200:300]) < 0.3
    assert np.mean(errors[300:320]) > 1.0
    assert np.mean(errors[400:]) < 0.4
    with pytest.raises(InputError, match="finite"):
        model.learn_one({"a": 1.0, "b": 1.0}, float("nan"))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_go_on_alike_also_across_a_change(how):
    stream = rows_and_labels(700, flip=400)
    model = RiverClassifier(features=40)
    for x, y in stream[:310]:
        model.learn_one(x, y)
    twin = how(model)
    for x, y in stream[310:]:
        assert model.predict_proba_one(x) == twin.predict_proba_one(x)
        model.learn_one(x, y)
        twin.learn_one(x, y)
    assert model.drift_ == twin.drift_
    assert len(model.drift_) == 1


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"a": 1.0}, None),
        ({"a": 1.0}, float("nan")),
        ({"a": 1.0}, "text"),
        ({"a": float("inf")}, 1),
        ({"a": 10**400}, 1),
        ({"a": datetime.datetime(2024, 5, 1)}, 1),
        ({"a": [1.0, 2.0]}, 1),
    ],
)
def test_bad_rows_are_refused_among_the_first_ones_too(row, label):
    stream = rows_and_labels(130)
    model, twin = RiverClassifier(features=20), RiverClassifier(features=20)
    for number, (x, y) in enumerate(stream):
        if number in (5, 120):
            with pytest.raises(InputError):
                model.learn_one(row, label)
        model.learn_one(x, y)
        twin.learn_one(x, y)
    assert model.predict_proba_one(stream[0][0]) == twin.predict_proba_one(stream[0][0])
    with pytest.raises(InputError, match="empty"):
        RiverClassifier().learn_one({}, 1)


def test_rows_that_compare_equal_but_are_not_have_answers_of_their_own():
    model = RiverClassifier(features=20, warmup=60)
    for row in range(200):
        model.learn_one({"k": "True" if row % 2 else "1"}, row % 2)
    assert model.predict_one({"k": True}) == 1
    assert model.predict_one({"k": 1}) == 0


def test_drift_events_have_the_names_of_columns_and_far_values_are_clipped():
    random = np.random.default_rng(0)
    model = RiverClassifier(features=20, warmup=60)
    for row in range(600):
        x = random.normal(size=2)
        moved = 3.0 if row >= 300 else 0.0
        model.learn_one({"left": x[0], "right": x[1] + moved}, int((x[0] > 0) ^ (row >= 300)))
    assert [event.columns for event in model.drift_] == [("right",)]
    p = model.predict_proba_one({"left": 1e300, "right": -1e300})
    assert p[0] == pytest.approx(0.5, abs=0.02)


def test_one_far_target_does_not_rule_all_others():
    random = np.random.default_rng(0)
    model = RiverRegressor(features=20, warmup=50)

    def learn():
        for row in range(400):
            x = random.normal()
            if row == 100:
                model.learn_one({"a": 0.0}, 1e20)
            model.learn_one({"a": x}, 3 * x)

    with pytest.warns(ScaleWarning, match="targets"):
        learn()
    assert model.predict_one({"a": 1.0}) == pytest.approx(3.0, abs=1.0)


@pytest.mark.parametrize("kind", [RiverClassifier, RiverRegressor])
def test_with_warnings_as_errors_each_is_raised_once_and_the_model_is_whole(kind):
    """Columns leave their scales, a name comes late, targets are far out: the rows are learned all the same."""
    random = np.random.default_rng(0)
    model, twin, raised = kind(features=20, warmup=50), kind(features=20, warmup=50), []
    far = {300, *range(320, 328), *range(340, 400)}  # warned of at the first of them and at the tenth
    for row in range(400):
        x = {"a": random.normal() + (50 if row >= 150 else 0), "b": random.normal()} | ({"late": 1.0} if row == 200 else {})
        y = bool(x["b"] > 0) if kind is RiverClassifier else (1e9 if row in far else x["b"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                model.learn_one(x, y)
            except ScaleWarning as warning:
                raised.append(str(warning).split()[0:3])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            twin.learn_one(x, y)
    assert len(raised) == (2 if kind is RiverClassifier else 4)
    for made in (model, twin):
        assert made._estimator._core.model.count + len(made._rows) == 400
    probe = {"a": 50.0, "b": 0.3}
    if kind is RiverClassifier:
        assert model.predict_proba_one(probe) == twin.predict_proba_one(probe)
    else:
        assert model.predict_one(probe) == twin.predict_one(probe)
