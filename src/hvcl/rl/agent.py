"""The interface that every agent implements, whatever its algorithm and method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hvcl.core.errors import InputError
from hvcl.core.state import State, replace_state
from hvcl.rl.environments import Array, TaskSequence
from hvcl.rl.part import Terms
from hvcl.rl.replay import Transitions

if TYPE_CHECKING:
    from hvcl.rl.loop import Stage

__all__ = ["Agent", "AgentConfig", "State"]


@dataclass(frozen=True)
class AgentConfig:
    """What every agent's networks and returns need."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers of actor and critics."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    discount: float = 0.99
    """gamma, what a reward one step later is worth."""

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden must name at least one layer of at least one unit, got {self.hidden}")
        if not (self.learning_rate > 0 and 0 <= self.discount <= 1):
            raise InputError("learning_rate must be positive, and discount lie in [0, 1]")


class Agent(ABC):
    """Acts in environments and learns from transitions; the training loop announces where tasks begin and end.

    It knows no environment and no file format of a run. All that it remembers is in its `state_dict`: an agent that loads it goes
    on bit-identically.

    Args:
        observations: D, the length of an observation.
        actions: A, the number of actions; they lie in [-1, 1].
        seed: of everything random.
    """

    config: Any
    """The settings: every method keeps what its constructor was given."""
    all_tasks_at_once: ClassVar[bool] = False
    """Upper bounds only: every step is taken in all tasks."""
    most_tasks: int | None = None
    """Tasks that there is room for, where it is limited."""

    def __init__(self, observations: int, actions: int, seed: int) -> None:
        if observations < 1 or actions < 1:
            raise InputError(f"observations and actions must be at least 1, got {observations} and {actions}")
        self.observations, self.actions, self.seed = observations, actions, seed

    @abstractmethod
    def act(self, observations: Array) -> Array:
        """Actions ``[n, A]`` for observations ``[n, D]``, with the exploration of training."""

    @abstractmethod
    def observe(self, transitions: Transitions) -> Terms:
        """Learn from the transitions of one step; returns the named terms of the loss, empty without an update."""

    @abstractmethod
    def predict(self, observations: Array, task: int | None = None) -> Array:
        """Actions ``[n, A]`` for observations ``[n, D]``, without exploration. Does not change the agent.

        Agents with a head for every task need `task`; the others ignore it.
        """

    def on_task_start(self, task: int, steps: int) -> None:
        """Task number `task` begins and lasts for `steps` steps. Task-free agents ignore it."""

    def on_task_end(self) -> None:
        """The current task ends: a method consolidates here. Task-free agents ignore it."""

    def learn(self, tasks: TaskSequence, steps: int, environments: int = 1) -> list[Stage]:
        """Learn tasks one after another, `steps` steps each; returns a stage for each, with an evaluation on all tasks so far.

        For evaluations in between, hooks and resuming there is `hvcl.rl.run`.
        """
        from hvcl.rl.loop import TrainingProtocol, run

        stages: list[Stage] = []
        protocol = TrainingProtocol(steps=steps, environments=environments, evaluate_every=steps * len(tasks.tasks))
        run(tasks, self, protocol, self.seed, on_stage=lambda stage, _: stages.append(stage))
        return stages

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """Number of learned numbers that actions depend on."""

    @abstractmethod
    def state_dict(self) -> State:
        """All of it: networks, optimisers, replay, random states."""

    def load_state_dict(self, state: State) -> None:
        """Go on bit-identically from `state`, which an agent of the same sizes with the same settings gave.

        A state that does not fit raises `RunError`, which says where, and nothing has changed.
        """
        replace_state(self, state, "agent")

    @abstractmethod
    def restore(self, state: State) -> None:
        """`load_state_dict` without the precautions: what a method implements. It may raise any error half-way."""

    def usage(self, observations: Array) -> dict[str, list[float]]:
        """For every layer that has experts, the share of these observations that each of them serves; empty without."""
        return {}

    def save(self, path: str | Path) -> None:
        """Write the agent to one file, from which `hvcl.rl.load` builds it again; atomically, also over an older file."""
        from hvcl.rl.saving import save  # it knows all methods, which know this

        save(self, path)

    def check(self, observations: Array) -> Array:
        """The observations as float32, or an `InputError` for what does not fit."""
        array: Array = np.asarray(observations, np.float32)
        if array.ndim != 2 or array.shape[1] != self.observations:
            raise InputError(f"observations must have shape (n, {self.observations}), got {array.shape}")
        if not np.isfinite(array).all():
            raise InputError("observations must be finite numbers")
        return array
