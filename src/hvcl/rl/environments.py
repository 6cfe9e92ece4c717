"""Chains of continuous-control tasks with one common observation and action space.

Tasks differ in how many numbers they show and how many they take. A `TaskSequence` makes them alike: observations are filled up
with zeros to the longest one, actions live in [-1, 1]^A with A the largest number of actions, and a task reads the first of
them. Which ones it reads is its `mask`: what is not read must not count in log-probabilities, entropy targets or critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvcl.core.errors import InputError

try:
    import gymnasium
except ImportError:  # pragma: no cover - the message is all there is
    raise InputError("reinforcement learning needs gymnasium: install it with pip install 'hvcl[rl]'") from None

Array = NDArray[np.float32]
Make = Callable[[], "gymnasium.Env[Any, Any]"]


@dataclass(frozen=True)
class Task:
    """A named environment, and the returns between which its scores are scaled."""

    name: str
    make: Make
    low: float = 0.0
    """Return that counts as 0: that of random actions."""
    high: float = 1.0
    """Return that counts as 1: a stated reference."""


@dataclass(frozen=True)
class Spaces:
    """The sizes of one task's spaces."""

    observations: int
    actions: int


class Padded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment seen through common spaces: observations ``[D]`` filled up with zeros, actions in [-1, 1]^A.

    The first actions are clipped and scaled to the environment's own range; the others are not read. Observations, rewards and
    actions that are not finite numbers raise an `InputError`: one of them would spoil everything that is learned afterwards.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any], observations: int, actions: int) -> None:
        super().__init__(environment)
        own = spaces_of(environment)
        self._name = name_of(environment)
        space = environment.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        self._seen, self._read = own.observations, own.actions
        self._shape = space.shape
        self._centre = ((space.high + space.low) / 2).reshape(-1)
        self._half = ((space.high - space.low) / 2).reshape(-1)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observations,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (actions,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin a new episode; returns the padded observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._pad(observation), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One step with the actions that the environment reads."""
        own = self._centre + self._half * np.clip(action[: self._read], -1.0, 1.0)
        if not np.isfinite(own).all():
            raise InputError(
                f"the agent's actions in {self._name} are not numbers any more: its networks have diverged, "
                "try a smaller learning_rate"
            )
        observation, reward, terminated, truncated, info = self.env.step(own.reshape(self._shape).astype(np.float32))
        if not math.isfinite(reward):
            raise InputError(f"{self._name} gave the reward {reward}: rewards must be finite numbers")
        return self._pad(observation), float(reward), bool(terminated), bool(truncated), info

    def _pad(self, observation: Any) -> Array:
        padded = np.zeros(self.observation_space.shape or (), np.float32)
        padded[: self._seen] = np.asarray(observation, np.float32).reshape(-1)
        if not np.isfinite(padded).all():
            raise InputError(f"{self._name} shows observations that are not finite numbers: {observation}")
        return padded


@dataclass(frozen=True)
class TaskSequence:
    """Tasks in the order in which they are learned, in common spaces."""

    name: str
    tasks: tuple[Task, ...]
    observations: int = field(init=False)
    """D: the longest observation."""
    actions: int = field(init=False)
    """A: the largest number of actions."""
    masks: tuple[Array, ...] = field(init=False)
    """For each task, 1 for the actions that it reads and else 0, ``[A]``."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("a sequence needs at least one task")
        if len({task.name for task in self.tasks}) < len(self.tasks):
            raise InputError(f"the tasks of a sequence need different names, got {', '.join(t.name for t in self.tasks)}")
        spaces = []
        for task in self.tasks:
            environment = task.make()
            spaces.append(spaces_of(environment))
            environment.close()
        object.__setattr__(self, "observations", max(space.observations for space in spaces))
        object.__setattr__(self, "actions", max(space.actions for space in spaces))
        places = np.arange(self.actions)
        object.__setattr__(self, "masks", tuple((places < space.actions).astype(np.float32) for space in spaces))

    @classmethod
    def of(cls, environments: Iterable[Make | str], name: str = "own") -> TaskSequence:
        """A custom sequence: gymnasium ids, or functions that make an environment; spaces are padded as needed."""
        return cls(name, own_tasks(environments))

    def environment(self, task: int) -> Padded:
        """A new environment of one task in the common spaces."""
        return Padded(self.tasks[task].make(), self.observations, self.actions)

    def vector(self, tasks: Iterable[int]) -> gymnasium.vector.SyncVectorEnv:
        """New environments of these tasks (one may be named several times), stepped together.

        An episode that ends is followed by the next in the same step; its last observation is in ``info["final_obs"]``.
        """
        makers = [lambda task=task: self.environment(task) for task in tasks]
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)


def own_tasks(environments: Iterable[Make | str]) -> tuple[Task, ...]:
    """Custom tasks, whose environments are not made yet. There are no reference returns for them: performance is the return."""
    tasks = []
    for number, given in enumerate(environments):
        if not isinstance(given, str) and not callable(given):
            raise InputError(f"a task is the id of a gymnasium environment or a function that makes one, got {given!r}")
        label = given if isinstance(given, str) else getattr(given, "__name__", "task")
        tasks.append(Task(f"{number + 1} {label}", _maker(given)))
    return tuple(tasks)


def name_of(environment: gymnasium.Env[Any, Any]) -> str:
    """What to call an environment in messages."""
    return environment.spec.id if environment.spec is not None else type(environment.unwrapped).__name__


def spaces_of(environment: gymnasium.Env[Any, Any]) -> Spaces:
    """The sizes of an environment's spaces; `InputError` for spaces that are not vectors of numbers."""
    if not isinstance(environment, gymnasium.Env):
        raise InputError(f"a task's function must make a gymnasium environment, it made {environment!r}")
    name = name_of(environment)
    observation, action = environment.observation_space, environment.action_space
    if not isinstance(action, gymnasium.spaces.Box):
        raise InputError(f"{name} has actions of kind {type(action).__name__}: SAC and PPO here need continuous ones (a Box)")
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        raise InputError(f"{name} has unbounded actions: wrap it in gymnasium.wrappers.RescaleAction or clip them first")
    if not isinstance(observation, gymnasium.spaces.Box):
        kind = type(observation).__name__
        raise InputError(f"{name} has observations of kind {kind}: flatten them with gymnasium.wrappers.FlattenObservation")
    if len(observation.shape) > 1:
        shape = "x".join(map(str, observation.shape))
        raise InputError(f"{name} shows images or matrices ({shape}): only vectors are known here, extract features first")
    return Spaces(int(np.prod(observation.shape)), int(np.prod(action.shape)))


def _maker(given: Make | str) -> Make:
    if not isinstance(given, str):
        return given
    name = given

    def make() -> gymnasium.Env[Any, Any]:
        try:
            return gymnasium.make(name)
        except gymnasium.error.DependencyNotInstalled as error:
            raise InputError(f"{name} needs a package that is not installed ({error})") from None
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            raise InputError(f"gymnasium cannot make {name!r}: {' '.join(str(error).split())}") from None

    return make
