"""Methods of continual reinforcement learning by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hvcl.core.configuration import configure
from hvcl.core.plugins import load_plugins
from hvcl.core.registry import Registry, first_line
from hvcl.rl.agent import Agent

AgentClass = TypeVar("AgentClass", bound=type[Agent])


@dataclass(frozen=True)
class Method:
    """A registered method: its agent, the dataclass that configures it, and one line about it."""

    name: str
    agent: Callable[[int, int, Any, int], Agent]
    config: type[Any]
    description: str


_METHODS: Registry[Method] = Registry("method of reinforcement learning")

ENTRY_POINTS = "hvcl.rl_methods"
"""Entry points by which installed packages make their methods known."""


def register(name: str, config: type[Any]) -> Callable[[AgentClass], AgentClass]:
    """Class decorator: make an agent known by `name`. Its constructor takes (observations, actions, config, seed)."""

    def decorate(agent: AgentClass) -> AgentClass:
        _METHODS[name] = Method(name, agent, config, first_line(agent, name))
        return agent

    return decorate


def known_methods() -> dict[str, Method]:
    """All methods by name, those of installed packages included."""
    load_plugins(ENTRY_POINTS, _METHODS)
    return dict(_METHODS)


def method(name: str) -> Method:
    """The method called `name`; unknown names raise `UnknownNameError`."""
    if name not in _METHODS:
        load_plugins(ENTRY_POINTS, _METHODS)
    return _METHODS[name]


def create(name: str, observations: int, actions: int, seed: int = 0, **settings: Any) -> Agent:
    """A new agent, e.g. ``create("hvcl", sequence.observations, sequence.actions, seed=1, experts=4)``."""
    chosen = method(name)
    return chosen.agent(observations, actions, configure(chosen.config, settings), seed)
