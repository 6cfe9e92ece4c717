"""Learners as files. That every method goes on bit-identically is checked in test_learners.py."""

import json

import pytest
import torch
from torch import nn

import hvcl
from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.core.saved import read_saved, write_saved
from hvcl.features import FrozenModule
from hvcl.learners import Exact, ExactConfig, GradientConfig, GradientLearner, Growing, GrowingConfig, create, load
from hvcl.testing import blobs, tiny_stream

TASKS = Problem((4,), 4, ((0, 1), (2, 3)), (200, 200), (10, 10))


def test_problem_and_settings_come_back_as_they_were(tmp_path):
    learner = create("hvcl", TASKS, seed=3, hidden=(8, 5), experts=3, learning_rate=0.02)
    learner.save(tmp_path / "m.safetensors")
    found = load(tmp_path / "m.safetensors", device="cpu")
    assert found.problem == TASKS
    assert found.config == learner.config
    assert load(tmp_path / "m.safetensors").predict(torch.ones(2, 4), torch.tensor([0, 1])).shape == (2, 4)


def test_an_older_file_is_replaced(tmp_path):
    for hidden in ((8,), (9,)):
        create("naive", Problem((4,), 2), hidden=hidden).save(tmp_path / "m")
        assert load(tmp_path / "m").config.hidden == hidden
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def rewritten(path, **changes):
    described, state = read_saved(path, "learner")
    described = {name: value for name, value in described.items() if name not in ("format", "kind", "version")}
    write_saved(path, "learner", described | changes, state)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "mine"}, r"unknown method 'mine'.*install"),
        ({"settings": {"hiden": [8]}}, "does not fit this version of hvcl .unknown setting 'hiden'"),
        ({"settings": {"hidden": [9]}}, "does not fit this learner"),
        ({"problem": {"outputs": 2}}, "does not fit this version"),
        ({"method": "er"}, "does not fit this learner .'reservoir' is missing"),
    ],
)
def test_a_file_that_cannot_be_what_it_says_is_refused(tmp_path, changes, words):
    create("naive", Problem((4,), 2), hidden=(8,)).save(tmp_path / "m")
    rewritten(tmp_path / "m", **changes)
    with pytest.raises(RunError, match=words):
        load(tmp_path / "m")


def test_only_registered_methods_are_saved(tmp_path):
    with pytest.raises(InputError, match="not registered"):
        GradientLearner(Problem((4,), 2), GradientConfig(hidden=(4,)), 0).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [lambda p, f: Exact(p, ExactConfig(), 0, f), lambda p, f: Growing(p, GrowingConfig(), 0, f)])
@pytest.mark.parametrize("fitted", [False, True])
def test_feature_maps_of_ones_own_are_refused_before_anything_is_written(tmp_path, make, fitted):
    features = FrozenModule(nn.Linear(4, 6), (4,))
    if fitted:
        features.fit(blobs()[0])
    with pytest.raises(InputError, match="of your own"):
        make(Problem((4,), 2), features).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_feature_map_that_another_learner_fitted_is_saved(tmp_path):
    stream = tiny_stream(task_free=True)
    learner = create("exact", stream.problem, random_features=30)
    for x, y in stream.batches():
        learner.observe(x, y)
    elsewhere = learner.empty_copy()
    elsewhere.observe(x, y)
    elsewhere.save(tmp_path / "m")
    assert torch.equal(hvcl.load(tmp_path / "m").predict(x), elsewhere.predict(x))


def test_a_refused_state_leaves_a_given_feature_map_alone():
    features = FrozenModule(nn.Linear(4, 6), (4,))
    problem = Problem((4,), 2)
    fitted = FrozenModule(features.module, (4,))
    x, y = blobs()
    teacher = Exact(problem, ExactConfig(warmup=20), 0, fitted)
    teacher.observe(x, y)
    learner = Exact(problem, ExactConfig(warmup=20), 0, features)
    state = teacher.state_dict()
    with pytest.raises(RunError, match="unknown 'surplus'"):
        learner.load_state_dict(state | {"surplus": 1})
    assert not features.fitted
    learner.load_state_dict(state)
    assert torch.equal(learner.predict(x), teacher.predict(x))


def test_the_file_names_no_code(tmp_path):
    create("naive", Problem((4,), 2), hidden=(8,)).save(tmp_path / "m")
    described, _ = read_saved(tmp_path / "m", "learner")
    assert set(described) == {"format", "kind", "version", "method", "problem", "settings"}
    assert "hvcl.learners" not in json.dumps(described)
