"""What may be given as X."""

import datetime

import numpy as np
import pytest
import torch
from scipy import sparse

from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier
from tests.estimators.rows import blobs


def test_arrays_lists_tensors_and_sparse_rows_give_the_same_answers():
    x, y = blobs(200)
    x = x * (np.abs(x) > 1)
    model = ContinualClassifier(features=30).fit(x, y)
    expected = model.predict_proba(x)
    for same in (x.tolist(), torch.tensor(x), sparse.csr_matrix(x), sparse.csc_array(x)):
        assert np.array_equal(model.predict_proba(same), expected)
        assert np.array_equal(ContinualClassifier(features=30).fit(same, torch.tensor(y)).predict_proba(x), expected)


def test_missing_values_are_told_apart_from_the_median():
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 2))
    gone = random.uniform(size=600) < 0.5
    x[gone, 0] = np.nan
    model = ContinualClassifier(features=60).fit(x[:400], gone[:400])
    assert model.score(x[400:], gone[400:]) > 0.97
    at_the_median = np.array([[float(model.scales_.centre[0]), 0.0]])
    assert model.predict(at_the_median).tolist() == [False]


def test_a_value_is_missing_for_the_first_time_in_mid_stream():
    x, y = blobs(300)
    model = ContinualClassifier(features=60, warmup=100).partial_fit(x[:200], y[:200])
    x[200:, 3] = np.nan  # carries no information here
    model.partial_fit(x[200:], y[200:])
    assert model.score(x[200:], y[200:]) > 0.9


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_values_are_refused_and_nothing_changes(value):
    x, y = blobs(100)
    model = ContinualClassifier(features=30).fit(x, y)
    before = model.predict_proba(x)
    bad = x.copy()
    bad[3, 1] = value
    with pytest.raises(ValueError, match="infinity"):
        model.partial_fit(bad, y)
    assert np.array_equal(model.predict_proba(x), before)


def frame_of(library, colours, sizes):
    return library.DataFrame({"colour": colours, "size": sizes})


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_categories_are_learned_and_grow_in_mid_stream_up_to_their_cap(name):
    library = pytest.importorskip(name)
    random = np.random.default_rng(0)
    shades = np.array(["red", "green", "blue", "grey", "pink"])

    def rows(known, count=300):
        colour = random.choice(known, count)
        return frame_of(library, colour.tolist(), random.normal(size=count)), np.isin(colour, ["red", "grey", "pink"])

    model = ContinualClassifier(features=60, max_categories=4).fit(*rows(shades[:3]))
    assert model.feature_names_in_.tolist() == ["colour", "size"]
    x, y = rows(shades)
    model.partial_fit(x, y)
    assert len(model.scales_.categories[0]) == 4
    assert model.score(*rows(shades)) > 0.97
    with pytest.raises(InputError, match="not an array"):
        model.predict(np.zeros((2, 2)))
    alone = ContinualClassifier(features=40).fit(x[["colour"]], y)
    assert alone.score(x[["colour"]], y) == 1
    missing = frame_of(library, [None, "red"], [0.0, float("nan")])
    assert model.predict_proba(missing).shape == (2, 2)


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_dates_are_refused_with_a_reason_and_numbers_do_not_become_categories(name):
    library = pytest.importorskip(name)
    day = datetime.datetime(2024, 5, 1)
    with pytest.raises(InputError, match=r"'when' holds dates .* no fixed scale"):
        ContinualClassifier().fit(library.DataFrame({"when": [day, day], "size": [1.0, 2.0]}), [0, 1])
    model = ContinualClassifier(features=20).fit(library.DataFrame({"a": [1, 2, 3], "b": [True, False, True]}), [0, 1, 1])
    with pytest.raises(InputError, match="'a' held numbers"):
        model.predict(library.DataFrame({"a": ["x"], "b": [True]}))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(library.DataFrame({"a": [1], "c": [True]}))


DAY = datetime.datetime(2024, 5, 1)


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, DAY]] * 4,
        np.array([[1.0, DAY.date()]] * 4, dtype=object),
        np.array([[1.0, np.datetime64("2024-05-01")]] * 4, dtype=object),
    ],
)
def test_dates_are_refused_in_arrays_and_lists_too(rows):
    with pytest.raises(InputError, match=r"'1' holds dates .* no fixed scale"):
        ContinualClassifier(features=20).fit(rows, [0, 1, 0, 1])


def test_what_is_neither_numbers_nor_categories_is_refused_with_a_reason():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for rows, words in (
        ([["red", 1.0], ["blue", 2.0]], "data frame"),
        (np.zeros((2, 8, 8)), r"pictures four, .* x\[:, None\]"),
        (pandas.DataFrame({"a": [[1], [2]]}), "'a' holds values of type list"),
        (pandas.DataFrame({"a": [1j, 2]}), "'a' holds values of type complex"),
        (polars.DataFrame({"a": [1, 2]}).lazy(), "collect"),
    ):
        with pytest.raises(InputError, match=words):
            ContinualClassifier(features=20).fit(rows, [0, 1])
    for labels in (["u", None], ["u", float("nan")], pandas.Series(["u", pandas.NA])):
        with pytest.raises(InputError, match="leave rows without a label out"):
            ContinualClassifier(features=20).fit([[1.0], [2.0]], labels)


def test_masked_values_are_missing():
    x = np.array([[1.0], [2.0], [9.0], [4.0]] * 10)
    masked, missing = np.ma.masked_equal(x, 9.0), np.where(x == 9.0, np.nan, x)
    y = [0, 1, 1, 0] * 10
    model = ContinualClassifier(features=20).fit(masked, y)
    assert np.array_equal(model.predict_proba(masked), ContinualClassifier(features=20).fit(missing, y).predict_proba(missing))
