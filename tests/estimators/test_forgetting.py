"""Merging sites, forgetting rows and groups."""

import numpy as np
import pytest

from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from tests.estimators.rows import blobs, waves

KINDS = pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])


def rows(kind, count=300, seed=0):
    return blobs(count, seed=seed) if kind is ContinualClassifier else waves(count, seed=seed)


def answers(model, x):
    return model.predict_proba(x) if isinstance(model, ContinualClassifier) else np.stack(model.predict(x, return_std=True), 1)


@KINDS
def test_sites_that_share_scales_and_seed_merge_into_what_one_site_would_have_learned(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=40, seed=5).fit(x[:100], y[:100]).scales_
    sites = [
        kind(answer="ever", features=40, seed=5, scales=scales).partial_fit(x[part], y[part])
        for part in (slice(0, 120), slice(120, 300))
    ]
    one = kind(answer="ever", features=40, seed=5, scales=scales).partial_fit(x, y)
    before = answers(sites[0], x)
    merged = sites[0].merge(sites[1])
    np.testing.assert_allclose(answers(merged, x), answers(one, x), atol=1e-4)
    np.testing.assert_allclose(merged.novelty(x), one.novelty(x), rtol=1e-6)
    assert np.array_equal(answers(sites[0], x), before)
    merged.partial_fit(x, y)


def test_sites_with_different_labels_merge():
    x, y = blobs(400, classes=4)
    names = np.array(["d", "c", "b", "a"])[y]
    scales = ContinualClassifier(answer="ever", features=40).fit(x, y).scales_
    left, right = np.isin(names, ["d", "b"]), np.isin(names, ["c", "a", "b"])
    sites = [
        ContinualClassifier(answer="ever", features=40, scales=scales).partial_fit(x[part], names[part]) for part in (left, right)
    ]
    merged = sites[0].merge(sites[1])
    assert merged.classes_.tolist() == ["a", "b", "c", "d"]
    assert merged.score(x, names) > 0.95
    both = np.concatenate([np.flatnonzero(left), np.flatnonzero(right)])
    one = ContinualClassifier(answer="ever", features=40, scales=scales).partial_fit(x[both], names[both])
    np.testing.assert_allclose(merged.predict_proba(x), one.predict_proba(x), atol=1e-4)


@KINDS
def test_other_scales_and_seeds_are_not_merged(kind):
    x, y = rows(kind)
    first = kind(answer="ever", features=40).fit(x, y)
    for other in (
        kind(answer="ever", features=40).fit(x[:50], y[:50]),
        kind(answer="ever", features=40, seed=1, scales=first.scales_).fit(x, y),
    ):
        with pytest.raises(InputError, match="scales_ and seed"):
            first.merge(other)
    with pytest.raises(InputError, match=r"feature maps|settings"):
        first.merge(kind(answer="ever", features=41, scales=first.scales_).fit(x, y))


@KINDS
def test_forgotten_rows_leave_what_the_others_taught_and_forgetting_twice_is_noticed(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=40).fit(x, y).scales_
    model = kind(answer="ever", features=40, scales=scales).partial_fit(x, y)
    model.forget(x[:50], y[:50])
    without = kind(answer="ever", features=40, scales=scales).partial_fit(x[50:], y[50:])
    np.testing.assert_allclose(answers(model, x), answers(without, x), atol=1e-3)
    np.testing.assert_allclose(model.novelty(x), without.novelty(x), rtol=1e-6)
    left = answers(model, x)
    with pytest.raises(InputError, match="forgotten already"):
        model.forget(x[49:51], y[49:51])
    assert np.array_equal(answers(model, x), left)
    model.partial_fit(x[:50], y[:50]).forget(x[:50], y[:50])  # learned again, so it can be forgotten again
    with pytest.raises(InputError, match="cannot"):
        model.forget(np.full((1, x.shape[1]), 25.0), y[:1])


@KINDS
def test_a_group_is_forgotten_without_its_rows(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=40).fit(x, y).scales_
    model = kind(answer="ever", features=40, scales=scales)
    model.partial_fit(x[:100], y[:100], group="ann").partial_fit(x[100:120], y[100:120], group=7)
    model.partial_fit(x[120:200], y[120:200]).partial_fit(x[200:], y[200:], group="ann")
    assert model.groups_ == ["ann", 7]
    model.forget_group("ann")
    without = kind(answer="ever", features=40, scales=scales).partial_fit(x[100:200], y[100:200])
    np.testing.assert_allclose(answers(model, x), answers(without, x), atol=2e-3)
    np.testing.assert_allclose(model.novelty(x), without.novelty(x), rtol=1e-4)
    with pytest.raises(InputError, match="forgotten already"):
        model.forget_group("ann")
    model.forget_group(7)
    rest = kind(answer="ever", features=40, scales=scales).partial_fit(x[120:200], y[120:200])
    np.testing.assert_allclose(answers(model, x), answers(rest, x), atol=2e-3)


@KINDS
def test_rows_of_a_group_that_are_forgotten_one_by_one_are_not_forgotten_with_it_again(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=40).fit(x, y).scales_
    model = kind(answer="ever", features=40, scales=scales).partial_fit(x[:60], y[:60], group="ann")
    with pytest.raises(InputError, match="name the group"):
        model.forget(x[:5], y[:5])
    model.partial_fit(x[60:], y[60:])
    model.forget(x[:5], y[:5], group="ann").forget_group("ann")
    without = kind(answer="ever", features=40, scales=scales).partial_fit(x[60:], y[60:])
    np.testing.assert_allclose(answers(model, x), answers(without, x), atol=2e-3)


def test_a_group_takes_the_memory_that_is_stated():
    x, y = blobs(500)
    model = (
        ContinualClassifier(answer="ever", features=40, warmup=100)
        .partial_fit(x[:10], y[:10], group="a")
        .partial_fit(x[10:], y[10:], group="b")
    )
    columns = 40 + 4 + 8 + 3  # random and linear features, the novelty's numbers, labels
    sizes = {name: part.factor.nbytes + part.total.nbytes + 8 for name, part in model._core.groups.parts.items()}
    assert sizes == {"a": 4 * 10 * columns + 8 * (columns + 1), "b": 4 * columns * columns + 8 * (columns + 1)}


@KINDS
def test_groups_and_rows_are_forgotten_while_the_first_rows_are_kept(kind):
    x, y = rows(kind, 60)
    model = kind(answer="ever", features=40, warmup=1000).partial_fit(x[:20], y[:20], group="ann").partial_fit(x[20:], y[20:])
    model.forget_group("ann").forget(x[20:30], y[20:30])
    without = kind(answer="ever", features=40, warmup=1000).partial_fit(x[30:], y[30:])
    assert np.array_equal(answers(model, x), answers(without, x))
    with pytest.raises(InputError, match="not all learned"):
        model.forget(x[20:21], y[20:21])
    with pytest.raises(InputError, match="never learned"):
        model.forget_group("ann")


@KINDS
def test_groups_merge_and_can_still_be_forgotten(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=40).fit(x, y).scales_
    a = kind(answer="ever", features=40, scales=scales).partial_fit(x[:100], y[:100], group="ann")
    b = (
        kind(answer="ever", features=40, scales=scales)
        .partial_fit(x[100:150], y[100:150], group="ann")
        .partial_fit(x[150:], y[150:], group="bob")
    )
    merged = a.merge(b).forget_group("ann")
    without = kind(answer="ever", features=40, scales=scales).partial_fit(x[150:], y[150:])
    np.testing.assert_allclose(answers(merged, x), answers(without, x), atol=2e-3)
    assert merged.groups_ == ["bob"]


@KINDS
def test_a_group_that_has_lost_rows_unnamed_is_not_forgotten_and_rows_of_others_are_not_of_it(kind):
    x, y = rows(kind)
    scales = kind(answer="ever", features=40).fit(x, y).scales_
    model = (
        kind(answer="ever", features=40, scales=scales)
        .partial_fit(x[:200], y[:200], group="ann")
        .partial_fit(x[200:270], y[200:270])
    )
    model.partial_fit(x[270:], y[270:], group="bob")
    before = answers(model, x)
    for part in (slice(200, 202), slice(240, 270), slice(200, 300)):
        with pytest.raises(InputError, match="cannot forget these rows of group 'bob'"):
            model.forget(x[part], y[part], group="bob")
    assert np.array_equal(answers(model, x), before)
    model.forget(x[:20], y[:20]).forget_group("bob")
    left = answers(model, x)
    with pytest.raises(InputError, match="cannot forget group 'ann': rows of it are forgotten already"):
        model.forget_group("ann")
    assert np.array_equal(answers(model, x), left)
    assert model.groups_ == ["ann"]


def test_without_a_group_that_had_most_labels_one_label_is_left():
    x, y = blobs(300)
    scales = ContinualClassifier(answer="ever", features=40).fit(x, y).scales_
    model = ContinualClassifier(answer="ever", features=40, scales=scales).partial_fit(x[y > 0], y[y > 0], group="ann")
    model.partial_fit(x[y == 0], y[y == 0]).forget_group("ann")
    assert model.predict_proba(x).tolist() == [[1, 0, 0]] * len(x)
    model.partial_fit(x, y)
    again = ContinualClassifier(answer="ever", features=40, scales=scales).partial_fit(x[y == 0], y[y == 0]).partial_fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x), again.predict_proba(x), atol=2e-3)
    np.testing.assert_allclose(model.novelty(x), again.novelty(x), rtol=1e-6)


def test_a_regression_keeps_no_features_of_its_first_row_as_the_centre_of_its_sums():
    x, y = waves(100)
    scales = ContinualRegressor(answer="ever", features=40).fit(x, y).scales_
    model = ContinualRegressor(answer="ever", features=40, scales=scales).partial_fit(x[:1], y[:1]).partial_fit(x[1:], y[1:])
    assert not model._core.model.regression.centre.any()
