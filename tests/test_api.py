"""The front door."""

import os
import subprocess
import sys

import pytest
import torch

import hvcl
from hvcl.core.errors import InputError, UnknownNameError
from hvcl.runs import RunConfig
from hvcl.runs import run as run_loop


def test_importing_is_cheap_and_the_rest_comes_when_it_is_asked_for():
    code = """
import sys
import hvcl
heavy = {"torch", "numpy", "sklearn", "rich", "safetensors"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
assert {"__version__", "layers", "learners", "create", "run", "load", "make_stream"} <= set(dir(hvcl))
assert hvcl.__version__[0].isdigit()
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
print(hvcl.layers.MoVELinear(2, 3, experts=2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "MoVELinear" in done.stdout


def test_every_name_of_the_front_door_is_there_and_others_are_not():
    for name in hvcl.__all__:
        assert getattr(hvcl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lerners'"):
        _ = hvcl.lerners


def test_every_package_is_among_the_names():
    folder = os.path.dirname(hvcl.__file__)
    packages = {entry.name for entry in os.scandir(folder) if os.path.exists(os.path.join(entry.path, "__init__.py"))}
    assert packages - {"commands"} <= set(hvcl.__all__)


def test_a_learner_is_made_for_a_stream_or_a_problem():
    stream = hvcl.make_stream("split-digits", seed=1)
    for problem in (stream, stream.problem):
        assert hvcl.create("naive", problem, hidden=(8,)).problem == stream.problem
    assert hvcl.create("joint", stream, hidden=(8,)).problem == stream.cumulative().problem
    with pytest.raises(UnknownNameError, match="did you mean 'exact'"):
        hvcl.create("exat", stream)


def test_two_names_give_what_the_command_line_gives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matrix = hvcl.run("split-digits", "naive", seed=3, epochs=1, scenario="class", hidden=(8,))
    config = RunConfig.make("split-digits", "naive", (3,), {"epochs": 1, "scenario": "class"}, {"hidden": (8,)})
    stream = config.make_stream(3)
    assert matrix.rows == run_loop(stream, config.make_learner(stream, 3)).rows
    assert not os.listdir(tmp_path), "nothing is written"


def test_streams_and_learners_may_be_there_already():
    stream = hvcl.make_stream("split-digits", seed=2, epochs=1)
    by_name = hvcl.run(stream, "naive", seed=4, hidden=(8,))
    made = hvcl.run(stream, hvcl.create("naive", stream, 4, hidden=(8,)))
    benchmark = hvcl.run("split-digits", hvcl.create("naive", stream, 4, hidden=(8,)), seed=2, epochs=1)
    assert by_name.rows == made.rows == benchmark.rows
    with pytest.raises(InputError, match="leave out hidden"):
        hvcl.run(stream, hvcl.create("naive", stream), hidden=(8,))
    with pytest.raises(InputError, match="unknown setting 'hiden'"):
        hvcl.run("split-digits", "naive", hiden=(8,))


def test_saving_and_loading(tmp_path):
    stream = hvcl.make_stream("split-digits", seed=1, task_free=True, epochs=1)
    learner = hvcl.create("exact", stream, seed=1, random_features=50)
    for x, y in stream.batches():
        learner.observe(x, y)
    learner.save(tmp_path / "digits.safetensors")
    assert torch.equal(hvcl.load(str(tmp_path / "digits.safetensors")).predict(x), learner.predict(x))


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_seeds_are_whole_numbers(seed):
    stream = hvcl.make_stream("split-digits")
    for make in (lambda: hvcl.make_stream("split-digits", seed=seed), lambda: hvcl.create("naive", stream, seed=seed)):
        with pytest.raises(InputError, match="a seed must be"):
            make()


def test_things_of_another_kind_are_named():
    stream = hvcl.make_stream("split-digits")
    learner = hvcl.create("naive", stream)
    x, y = next(iter(stream.batches()))
    for call, message in (
        (lambda: hvcl.make_stream(3), "name of a benchmark"),
        (lambda: hvcl.create("naive", "split-digits"), "Problem"),
        (lambda: learner.observe(x.numpy(), y), "must be a tensor"),
        (lambda: learner.observe(x, y.numpy()), "must be a tensor"),
        (lambda: hvcl.layers.convert("x", 2), "takes a network"),
    ):
        with pytest.raises(InputError, match=message):
            call()
