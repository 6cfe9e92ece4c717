"""The front door: a stream, a learner, a run, a saved learner, each by one call. `import hvcl` has them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvcl import learners
from hvcl.core.configuration import field_types
from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.saved import saved_kind
from hvcl.evaluation import AccuracyMatrix
from hvcl.learners import Learner, method
from hvcl.runs import RunConfig
from hvcl.runs import run as run_loop
from hvcl.streams import Stream, StreamConfig, make_stream

__all__ = ["create", "load", "make_stream", "run"]


def create(name: str, problem: Problem | Stream, seed: int = 0, **settings: Any) -> Learner:
    """A new learner, e.g. ``create("hvcl", stream, seed=1, experts=4)``.

    Args:
        name: of a method; ``hvcl list`` shows them.
        problem: the problem, or the stream that poses it.
        seed: of everything random.
        settings: fields of the method's configuration; the others take its defaults, not those tuned for a benchmark.
    """
    if isinstance(problem, Stream):
        stream = problem.cumulative() if method(name).needs_all_data and not problem.is_cumulative else problem
        problem = stream.problem
    return learners.create(name, problem, seed, **settings)


def load(path: str | Path, *, device: str | None = None) -> Any:
    """The learner or estimator that was saved in a file; it goes on bit-identically.

    Args:
        path: of the file.
        device: of a learner: where to compute; None: where the learner did that was saved.

    Raises:
        RunError: the file is missing, damaged, or from a newer version or a method that is not installed.
    """
    if saved_kind(Path(path)) == "estimator":
        from hvcl.estimators import load as load_estimator  # it takes scikit-learn, which learners do without

        return load_estimator(path)
    return learners.load(path, device=device)


def run(stream: Stream | str, learner: Learner | str, seed: int = 0, **settings: Any) -> AccuracyMatrix:
    """Let a learner learn a stream from beginning to end, and return its accuracies on every task after each task.

    Nothing is written to disk; for run folders, many seeds and resuming there are ``hvcl run`` and `hvcl.runs`. Two names give
    what ``hvcl run <stream> --method <learner> --seeds <seed>`` gives, with the settings tuned for the benchmark.

    Args:
        stream: a stream, or the name of a benchmark.
        learner: a learner, which learns on, or the name of a method, of which a new one is made.
        seed: of what is named.
        settings: of what is named: fields of `StreamConfig` for a benchmark, of the method's configuration for a method.
    """
    if isinstance(learner, str):
        if isinstance(stream, Stream):
            return run_loop(stream, create(learner, stream, seed, **settings))
        fields = field_types(StreamConfig)
        of_stream = {name: value for name, value in settings.items() if name in fields}
        of_learner = {name: value for name, value in settings.items() if name not in fields}
        config = RunConfig.make(stream, learner, (seed,), of_stream, of_learner)
        stream = config.make_stream(seed)
        return run_loop(stream, config.make_learner(stream, seed))
    if isinstance(stream, str):
        return run_loop(make_stream(stream, seed=seed, **settings), learner)
    if settings:
        raise InputError(f"stream and learner are there already, and take no settings: leave out {', '.join(settings)}")
    return run_loop(stream, learner)
