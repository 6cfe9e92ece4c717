"""The classifier on streams."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier
from tests.estimators.rows import blobs, moons


def test_a_stream_sorted_by_class_is_learned_as_well_as_all_rows_at_once():
    x, y = blobs(600, classes=4)
    order = np.argsort(y, kind="stable")
    stream = ContinualClassifier(answer="ever", features=60)
    for part in np.array_split(order, 12):
        stream.partial_fit(x[part], y[part])
    test_x, test_y = blobs(500, classes=4, seed=1)
    whole = ContinualClassifier(answer="ever", features=60, scales=stream.scales_).fit(x, y)
    assert stream.score(test_x, test_y) > 0.95
    np.testing.assert_allclose(stream.predict_proba(test_x), whole.predict_proba(test_x), atol=1e-3)


def test_rows_are_answered_before_the_first_rows_are_complete():
    x, y = blobs(40)
    model = ContinualClassifier(features=30, warmup=1000)
    for row in range(40):
        model.partial_fit(x[row : row + 1], y[row : row + 1])
    assert model.score(*blobs(200, seed=1)) > 0.9
    with pytest.raises(AttributeError, match="no scales yet"):
        _ = model.scales_


@pytest.mark.parametrize("names", [["ape", "bee", "cat"], [10, 20, 30], [0.5, 1.5, 2.5]])
def test_labels_of_any_type_appear_in_mid_stream_and_keep_their_columns_sorted(names):
    x, y = blobs(300)
    labels = np.array(names)[y]
    if isinstance(names[0], float):
        labels = (2 * labels).round()  # numbers that stand for classes are whole
    first, last = y == 2, y != 2
    model = ContinualClassifier(features=40, warmup=50).partial_fit(x[first], labels[first])
    assert model.classes_.tolist() == [labels[first][0]]
    model.partial_fit(x[last], labels[last])
    assert model.classes_.tolist() == sorted(set(labels.tolist()))
    assert (model.predict(x) == labels).mean() > 0.95
    assert (model.predict_proba(x).argmax(1) == y).mean() > 0.95


def test_truth_values_are_labels_and_types_are_not_mixed():
    x, y = blobs(100, classes=2)
    model = ContinualClassifier(features=20, warmup=20).partial_fit(x, y == 1)
    assert model.predict(x).dtype == bool
    with pytest.raises(InputError, match="of type bool, and now are of type str"):
        model.partial_fit(x, np.where(y, "a", "b"))
    assert model.classes_.tolist() == [False, True]


def test_announced_classes_have_columns_and_others_are_added():
    x, y = blobs(120)
    model = ContinualClassifier(features=20, warmup=20).partial_fit(x[y == 0], y[y == 0], classes=[0, 7])
    assert model.classes_.tolist() == [0, 7]
    assert model.predict_proba(x[:3])[:, 1].tolist() == [0, 0, 0]
    model.partial_fit(x[y == 1], y[y == 1])
    assert model.classes_.tolist() == [0, 1, 7]


def test_a_method_with_fixed_outputs_learns_by_name_and_refuses_labels_beyond_them():
    x, y = blobs(300)
    settings = {"hidden": (16,), "learning_rate": 0.01}
    model = ContinualClassifier("naive", method_settings=settings, epochs=20, batch_size=32).fit(x, y)
    assert model.score(*blobs(200, seed=1)) > 0.9
    model = ContinualClassifier("naive", method_settings=settings, warmup=10)
    model.partial_fit(x[y < 2], y[y < 2], classes=[0, 1])
    before = model.predict_proba(x)
    with pytest.raises(InputError, match=r"give all labels as `classes`"):
        model.partial_fit(x, y)
    assert np.array_equal(model.predict_proba(x), before)
    assert model.classes_.tolist() == [0, 1]
    with pytest.raises(InputError, match="cannot forget rows"):
        model.forget(x[y == 0][:1], [0])


def test_uniform_priors_find_the_rare_class():
    random = np.random.default_rng(0)
    y = (random.uniform(size=2000) < 0.03).astype(int)
    x = random.normal(size=(2000, 2)) + 1.5 * y[:, None]
    recall = {}
    for priors in ("learned", "uniform"):
        model = ContinualClassifier(priors=priors, features=40).fit(x, y)
        recall[priors] = (model.predict(random.normal(size=(500, 2)) + 1.5) == 1).mean()
    assert recall["uniform"] > 0.5
    assert recall["learned"] < 0.3


def test_the_gate_can_be_asked_for():
    x, y = blobs(300, classes=2)
    model = ContinualClassifier(features=40, method_settings={"gate": True}).partial_fit(x, y)
    model.partial_fit(x + 5, 1 - y)
    assert (model.predict(x) == y).mean() > 0.95
    assert (model.predict(x + 5) == 1 - y).mean() > 0.95
    with pytest.raises(InputError, match="without a gate"):
        model.partial_fit(x, y, group="a")


def test_pictures_are_learned_whatever_side_their_channels_are_on():
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 80)
    pictures = random.normal(size=(80, 1, 18, 18)) * 0.3
    pictures[y == 0, :, 4:7, :] += 1
    pictures[y == 1, :, :, 4:7] += 1
    model = ContinualClassifier(features=64).fit(pictures[:60], y[:60])
    assert (model.predict(pictures[60:]) == y[60:]).mean() > 0.9
    assert np.array_equal(model.predict(torch.tensor(pictures[60:])), model.predict(np.moveaxis(pictures[60:], 1, 3)))
    with pytest.raises(ValueError, match="pictures"):
        model.predict(np.zeros((3, 1, 9, 9)))


def test_a_far_outlier_is_not_certain_and_is_refused():
    x, y = moons(600)
    model = ContinualClassifier(features=60).fit(x, y)
    far = np.array([[40.0, -30.0], [-1e6, 3.0], [0.5, 25.0]])
    assert model.predict_proba(far).max() < 0.75
    assert (model.novelty(far) > 20).all()
    assert model.predict(far, abstain=0.01).tolist() == [None, None, None]
    test_x, test_y = moons(1000, seed=1)
    answers = model.predict(test_x, abstain=0.05)
    refused = np.array([answer is None for answer in answers])
    assert 0.01 < refused.mean() < 0.12  # 0.05 but for chance and the width of the histogram's bins
    assert (answers[~refused] == test_y[~refused]).mean() > 0.95
    assert model.predict_proba(test_x).max() > 0.99
    with pytest.raises(InputError, match="between 0 and 1"):
        model.predict(far, abstain=2)


@pytest.mark.parametrize("method", ["dgr", "dgr-distill", "hvcl-replay", "rtf"])
def test_methods_with_a_generator_learn_tables_with_their_defaults(method):
    """Standardised numbers lie between no bounds, which their likelihood of pictures would ask for."""
    x, y = blobs(120)
    model = ContinualClassifier(method, method_settings={"hidden": (16,)}, epochs=5).fit(x, y)
    model.partial_fit(x, y).end_task().partial_fit(x, y)
    assert model.predict_proba(x).shape == (120, len(model.classes_))
    with pytest.raises(InputError, match="between 0 and 1"):
        ContinualClassifier(method, method_settings={"likelihood": "bce"}).fit(x, y)


@pytest.mark.parametrize("method", ["ewc", "den"])
def test_methods_that_must_know_the_size_of_a_task_say_so_at_its_end(method):
    x, y = blobs(60)
    model = ContinualClassifier(method).fit(x, y)
    before = model.predict_proba(x)
    with pytest.raises(InputError, match=f"'{method}' cannot be told of boundaries here .*hvcl.create"):
        model.end_task()
    assert np.array_equal(model.predict_proba(x), before)
