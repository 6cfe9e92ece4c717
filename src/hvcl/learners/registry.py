"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    choices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of which a value is a method of its own: its name, by setting and value."""


_METHODS: Registry[Method] = Registry("method")

ENTRY_POINTS = "hvcl.methods"
"""Entry points by which installed packages make their methods known."""


def register(
    name: str, config: type[Any], choices: Mapping[str, Mapping[str, str]] | None = None
) -> Callable[[LearnerClass], LearnerClass]:
    """Class decorator: make a learner known by `name`. Its constructor takes (problem, config, seed).

    The first line of the class's docstring is its description. `choices` are settings of which a value makes it another method:
    ``{"gate": {"generative": "hvcl-growing"}}``.
    """

    def decorate(learner: LearnerClass) -> LearnerClass:
        line = first_line(learner, name)
        _METHODS[name] = Method(name, learner, config, line, learner.needs_all_data, learner.one_pass, choices or {})
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


def chosen_method(name: str, settings: Mapping[str, Any]) -> str:
    """The method that `name` with these settings is: another one, where a value of a setting is a method of its own."""
    for setting, values in method(name).choices.items():
        other = values.get(settings.get(setting, ""))
        if other is not None:
            return other
    return name


def create(name: str, problem: Problem, seed: int = 0, **settings: Any) -> Learner:
    """A new learner, e.g. ``create("hvcl", stream.problem, seed=1, experts=4)``; `settings` are its configuration's fields."""
    chosen = method(chosen_method(name, settings))
    check_seed(seed)
    if not isinstance(problem, Problem):
        raise InputError(f"a learner is made for a Problem (a stream's is stream.problem), got {type(problem).__name__}")
    with float32():
        return chosen.learner(problem, configure(chosen.config, settings), seed)
