"""Hierarchical variational continual learning.

A stream of tasks, a learner, what it remembers of them, and the learner in a file::

    import hvcl

    stream = hvcl.make_stream("split-digits", scenario="domain", task_free=True, seed=1)
    learner = hvcl.create("exact", stream, seed=1, random_features=200)
    for x, y in stream.batches():
        learner.observe(x, y)
    learner.save("digits.safetensors")
    print(hvcl.load("digits.safetensors").predict(x).argmax(1), y)
    matrix = hvcl.run("split-digits", "naive", seed=1, epochs=1)  # scored on every task after each
    print(f"average accuracy {matrix.average_accuracy:.3f}, forgetting {matrix.forgetting:.3f}")

The rooms of the house, each with one small interface, imported when they are first used:

- `hvcl.layers`: mixture-of-variational-experts (MoVE) layers for networks of your own;
- `hvcl.objective`: the utility minus information costs, as named terms;
- `hvcl.streams`: benchmarks and your own arrays as streams of tasks;
- `hvcl.learners`: every method, by name;
- `hvcl.estimators`: the same with scikit-learn's conventions, for tables (`hvcl.ContinualClassifier`, `hvcl.ContinualRegressor`);
- `hvcl.rl`: continual reinforcement learning;
- `hvcl.runs`: the loop, run folders, exact resume;
- `hvcl.evaluation`: accuracy matrix, calibration, what the gates know;
- `hvcl.report`: one HTML page from run folders;
- `hvcl.serving`: a model as a service that loses nothing which it has acknowledged;
- `hvcl.testing`: contract tests for methods of your own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvcl import core as core
    from hvcl import estimators as estimators
    from hvcl import evaluation as evaluation
    from hvcl import features as features
    from hvcl import gates as gates
    from hvcl import generative as generative
    from hvcl import layers as layers
    from hvcl import learners as learners
    from hvcl import networks as networks
    from hvcl import objective as objective
    from hvcl import ops as ops
    from hvcl import optim as optim
    from hvcl import posteriors as posteriors
    from hvcl import report as report
    from hvcl import reproduce as reproduce
    from hvcl import results as results
    from hvcl import rl as rl
    from hvcl import runs as runs
    from hvcl import serving as serving
    from hvcl import settings as settings
    from hvcl import streams as streams
    from hvcl import testing as testing
    from hvcl.api import create as create
    from hvcl.api import load as load
    from hvcl.api import make_stream as make_stream
    from hvcl.api import run as run
    from hvcl.estimators import ContinualClassifier as ContinualClassifier
    from hvcl.estimators import ContinualRegressor as ContinualRegressor

    __version__: str

_FUNCTIONS = ("create", "load", "make_stream", "run")
_ESTIMATORS = ("ContinualClassifier", "ContinualRegressor")
_MODULES = (
    "core",
    "estimators",
    "evaluation",
    "features",
    "gates",
    "generative",
    "layers",
    "learners",
    "networks",
    "objective",
    "ops",
    "optim",
    "posteriors",
    "report",
    "reproduce",
    "results",
    "rl",
    "runs",
    "serving",
    "settings",
    "streams",
    "testing",
)

__all__ = ["__version__", *_ESTIMATORS, *_FUNCTIONS, *_MODULES]


def __getattr__(name: str) -> Any:
    """Functions and submodules, imported when they are first asked for: torch alone takes a second."""
    if name in _MODULES:
        return importlib.import_module(f"hvcl.{name}")
    if name in _FUNCTIONS:
        value = getattr(importlib.import_module("hvcl.api"), name)
    elif name in _ESTIMATORS:
        value = getattr(importlib.import_module("hvcl.estimators"), name)
    elif name == "__version__":
        value = importlib.import_module("importlib.metadata").version("hvcl")
    else:
        raise AttributeError(f"module 'hvcl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
