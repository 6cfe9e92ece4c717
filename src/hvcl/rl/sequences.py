"""Chains of tasks by name: `classic`, `bullet`, `mujoco`, or gymnasium ids with commas between them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from hvcl.core.errors import InputError
from hvcl.core.registry import Registry
from hvcl.rl.bullet import make_bullet
from hvcl.rl.classic import make_cartpole, make_pendulum, make_reach
from hvcl.rl.environments import Task, TaskSequence, own_tasks


def make_mujoco(name: str) -> gymnasium.Env[Any, Any]:
    """A MuJoCo task, version 5; `InputError` if MuJoCo is not installed."""
    if importlib.util.find_spec("mujoco") is None:
        raise InputError(f"{name} needs MuJoCo: install it with pip install 'hvcl[mujoco]'")
    mujoco: Any = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)  # gymnasium's own files use deprecated words: two lines and a log each time
    try:
        return gymnasium.make(f"{name}-v5", **MUJOCO[name])
    finally:
        mujoco.set_mju_user_warning(before)


MUJOCO: dict[str, dict[str, Any]] = {
    "Walker2d": {},
    "HalfCheetah": {},
    "Ant": {"include_cfrc_ext_in_observation": False},  # 27 numbers, as many as the paper's chain has within one
    "InvertedDoublePendulum": {},
    "Hopper": {},
}


def _classic() -> tuple[Task, ...]:
    return (
        Task("Reach", make_reach, low=0.0, high=45.0),
        Task("Pendulum", make_pendulum, low=122.0, high=190.0),
        Task("CartPole", make_cartpole, low=20.0, high=200.0),
    )


def _bullet() -> tuple[Task, ...]:
    # low: about the mean return of random actions; high: about what a good SAC reaches in a million steps
    scales = {
        "Walker2D": (16.0, 2200.0),
        "HalfCheetah": (-1250.0, 2800.0),
        "Ant": (370.0, 3100.0),
        "InvertedDoublePendulum": (330.0, 9350.0),
        "Hopper": (18.0, 2600.0),
    }
    return tuple(Task(name, partial(make_bullet, name), *scale) for name, scale in scales.items())


def _mujoco() -> tuple[Task, ...]:
    scales = {
        "Walker2d": (2.0, 4200.0),
        "HalfCheetah": (-280.0, 9500.0),
        "Ant": (-50.0, 4500.0),
        "InvertedDoublePendulum": (55.0, 9350.0),
        "Hopper": (18.0, 2300.0),
    }
    return tuple(Task(name, partial(make_mujoco, name), *scale) for name, scale in scales.items())


@dataclass(frozen=True)
class NamedSequence:
    """A registered sequence of tasks, and one line about it."""

    tasks: Callable[[], tuple[Task, ...]]
    description: str


SEQUENCES: Registry[NamedSequence] = Registry("sequence")
"""Every named sequence of tasks."""
SEQUENCES["classic"] = NamedSequence(_classic, "point mass, pendulum, cart-pole: small, needs gymnasium alone")
SEQUENCES["bullet"] = NamedSequence(
    _bullet, "Walker2D, HalfCheetah, Ant, InvertedDoublePendulum, Hopper of PyBullet: the paper's chain"
)
SEQUENCES["mujoco"] = NamedSequence(_mujoco, "the same five in MuJoCo, version 5, padded to 27 and 8")


def tasks_of(name: str) -> tuple[Task, ...]:
    """The tasks of the chain called `name`, or with these gymnasium ids; none of them is made yet."""
    ids = [word.strip() for word in name.split(",") if word.strip()]
    if name not in SEQUENCES and (len(ids) > 1 or re.search(r"-v\d+$", name)):
        return own_tasks(ids)
    return SEQUENCES[name].tasks()


def sequence(name: str) -> TaskSequence:
    """The chain called `name`, or one of gymnasium ids, e.g. ``sequence("Pendulum-v1,MountainCarContinuous-v0")``."""
    return TaskSequence(name, tasks_of(name))
