"""No value of a row in any file."""

import copy
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import hvcl
from hvcl.core.errors import InputError
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from tests.estimators.rows import blobs

pandas = pytest.importorskip("pandas")

KINDS = pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])


def recognisable(count=41, seed=0):
    """Rows of numbers that come about by no accident; one label has a single row."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 3)) * [1.0, 1e3, 1e-3] + [0.0, 12345.678, 0.0]
    return x, np.where(np.arange(count) == 7, 2, random.integers(0, 2, count))


def are_among(cells, content):
    """Which numbers stand among some bytes, beginning at any of them. The places with the last two bytes of one are looked at."""
    size, stored = cells.itemsize, np.frombuffer(content, np.uint8)
    ends = np.zeros(2**16, bool)
    ends[cells.view(np.uint16).reshape(cells.size, -1)[:, -1]] = True
    places = np.flatnonzero(ends[stored[size - 2 : -1].astype(np.uint16) | stored[size - 1 :].astype(np.uint16) << 8])
    there = stored[places[:, None] + np.arange(size)].view(f"u{size}")
    return np.isin(cells.view(f"u{size}"), there)


def found(model, x, path):
    """Values of rows, as they are or standardised, in single or double precision, among the bytes of the model's file."""
    model.save(path)
    content = path.read_bytes()
    with safe_open(path, "numpy") as file:
        header = json.dumps(file.metadata())
    numbers = [tensor.ravel() for tensor in load_file(path).values() if tensor.dtype.kind == "f"]
    values = np.concatenate([some.astype(kind).astype(np.float64) for some in numbers for kind in (np.float64, np.float32)])
    forms = [x]
    if model._core is not None:
        z = (x - model.scales_.centre.numpy()) / model.scales_.spread.numpy()
        forms += [z, z.astype(np.float32).astype(np.float64)]
    hits = np.zeros(x.shape, bool)
    for form in forms:
        for cells in (form, form.astype(np.float32)):
            hits |= are_among(np.ascontiguousarray(cells), content) | np.isin(cells.astype(np.float64), values)
        hits |= np.vectorize(lambda value: repr(float(value)) in header)(form)
    return set(np.flatnonzero(hits.any(1)))


@KINDS
def test_without_private_the_search_finds_first_rows_medians_and_the_only_row_of_a_label(tmp_path, kind):
    x, y = recognisable()
    assert len(found(kind(features=20, warmup=100).partial_fit(x, y), x, tmp_path / "m")) == len(x)
    assert found(kind(features=20, warmup=10).partial_fit(x, y), x, tmp_path / "m")
    scales = kind(features=20).fit(*recognisable(seed=1)).scales_
    assert 0 in found(kind(features=20, scales=scales).partial_fit(x[:1], y[:1]), x, tmp_path / "m")
    if kind is ContinualClassifier:
        assert 7 in found(kind(features=20, scales=scales).partial_fit(x, y), x, tmp_path / "m")


@KINDS
@pytest.mark.parametrize("given", [False, True])
def test_no_value_of_a_row_is_in_a_private_file(tmp_path, kind, given):
    x, y = recognisable()
    scales = kind(features=20, private=True, warmup=41).fit(*recognisable(seed=1)).scales_ if given else None
    model = kind(features=20, warmup=30, scales=scales, private=True)
    first = 1 if given else 30
    model.partial_fit(x[:first], y[:first], sample_weight=np.full(first, 0.5))
    assert not found(model, x, tmp_path / "m")
    model.partial_fit(x[first : first + 1], y[first : first + 1], group="ann")
    for row in range(first + 1, len(x)):
        model.partial_fit(x[row : row + 1], y[row : row + 1])
    assert not found(model, x, tmp_path / "m")
    model.forget(x[-3:], y[-3:])
    assert not found(model, x, tmp_path / "m")
    assert not model._core.forgotten
    loaded = hvcl.load(tmp_path / "m")
    assert loaded.private
    assert np.array_equal(loaded.predict(x), copy.deepcopy(model).predict(x))
    assert np.array_equal(loaded.partial_fit(x, y).novelty(x), model.partial_fit(x, y).novelty(x))


@KINDS
def test_few_first_rows_are_refused_and_nothing_is_kept_of_them(kind):
    x, y = recognisable()
    model = kind(features=20, warmup=42, private=True)
    for learn in (model.partial_fit, model.fit):
        with pytest.raises(InputError, match=r"42 rows .* first call, which has 41"):
            learn(x, y)
        assert not model.__sklearn_is_fitted__()
    model.set_params(warmup=41).partial_fit(x, y)


def test_rows_that_were_learned_before_private_was_set_are_not_saved_as_if_it_had_been(tmp_path):
    x, y = recognisable()
    for warmup in (10, 100):
        model = ContinualClassifier(features=20, warmup=warmup).partial_fit(x, y).set_params(private=True)
        with pytest.raises(InputError, match="before private=True was set"):
            model.save(tmp_path / "m")


def test_categories_are_those_of_given_scales(tmp_path):
    frame = pandas.DataFrame({"size": np.arange(40.0), "name": [f"surname{n % 9}" for n in range(40)]})
    public = pandas.DataFrame({"size": np.arange(40.0), "name": ["surname1", "surname2"] * 20})
    y = np.arange(40) % 3
    with pytest.raises(InputError, match="names of categories"):
        ContinualClassifier(features=20, private=True, warmup=10).partial_fit(frame, y)
    scales = ContinualClassifier(features=20).fit(public, y).scales_
    model = ContinualClassifier(features=20, private=True, scales=scales).partial_fit(frame, y)
    model.save(tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    assert b"surname1" in content
    assert b"surname3" not in content


@KINDS
def test_pictures_have_a_map_that_no_picture_has_changed(tmp_path, kind):
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = random.normal(size=(40, 1, 16, 16)).cumsum(2).cumsum(3) * (1 + y)[:, None, None, None]
    models = [kind(features=32, warmup=20, private=True).partial_fit(some, y) for some in (x, x[::-1] ** 2)]
    filters = [model.scales_.filters for model in models]
    assert filters[0].keys() == filters[1].keys()
    assert all(np.array_equal(filters[0][name], filters[1][name]) for name in filters[0])
    models[0].save(tmp_path / "m")
    assert not are_among(x.astype(np.float32)[:3].ravel(), (tmp_path / "m").read_bytes()).any()
    own = kind(features=32).fit(x, y)
    score = [model.score(x, y) for model in (models[0], own)]
    assert score[0] > score[1] - 0.2


def test_other_methods_and_the_gate_are_not_private_and_neither_is_half_of_a_merged_model():
    x, y = blobs(60)
    for settings in ({"method": "er"}, {"method_settings": {"gate": True}}, {"method_settings": {"separate": True}}):
        with pytest.raises(InputError, match="without a gate"):
            ContinualClassifier(private=True, **settings).fit(x, y)
    with pytest.raises(InputError, match="private must be"):
        ContinualClassifier(private="yes").fit(x, y)
    first = ContinualClassifier(features=20, private=True, warmup=60).fit(x, y)
    same = ContinualClassifier(features=20, private=True, scales=first.scales_).fit(x, y)
    assert first.merge(same).private
    with pytest.raises(InputError, match="same `private`"):
        first.merge(ContinualClassifier(features=20, scales=first.scales_).fit(x, y))
