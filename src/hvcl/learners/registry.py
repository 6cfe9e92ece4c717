"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hvcl.core.configuration import configure
from hvcl.core.errors import InputError
from hvcl.core.plugins import load_plugins
from hvcl.core.problem import Problem
from hvcl.core.random import check_seed, float32
from hvcl.core.registry import Registry, first_line
from hvcl.learners.base import Learner

LearnerClass = TypeVar("LearnerClass", bound=type[Learner])


@dataclass(frozen=True)
class Method:
    """A registered method: its learner, the dataclass that configures it, and one line about it."""

    name: str
    learner: Callable[[Problem, Any, int], Learner]
    config: type[Any]
    description: str
    needs_all_data: bool
    one_pass: bool


_METHODS: Registry[Method] = Registry("method")

ENTRY_POINTS = "hvcl.methods"
"""Entry points by which installed packages make their methods known."""


def register(name: str, config: type[Any]) -> Callable[[LearnerClass], LearnerClass]:
    """Class decorator: make a learner known by `name`. Its constructor takes (problem, config, seed).

    The first line of the class's docstring is its description.
    """

    def decorate(learner: LearnerClass) -> LearnerClass:
        _METHODS[name] = Method(name, learner, config, first_line(learner, name), learner.needs_all_data, learner.one_pass)
        return learner

    return decorate


def known_methods() -> dict[str, Method]:
    """All registered methods by name, those of installed packages included."""
    load_plugins(ENTRY_POINTS, _METHODS)
    return dict(_METHODS)


def method(name: str) -> Method:
    """The method called `name`; unknown names raise `UnknownNameError`."""
    if name not in _METHODS:
        load_plugins(ENTRY_POINTS, _METHODS)
    return _METHODS[name]


def create(name: str, problem: Problem, seed: int = 0, **settings: Any) -> Learner:
    """A new learner, e.g. ``create("hvcl", stream.problem, seed=1, experts=4)``; `settings` are its configuration's fields."""
    chosen = method(name)
    check_seed(seed)
    if not isinstance(problem, Problem):
        raise InputError(f"a learner is made for a Problem (a stream's is stream.problem), got {type(problem).__name__}")
    with float32():
        return chosen.learner(problem, configure(chosen.config, settings), seed)
