"""The PyBullet locomotion environments behind gymnasium's interface (extra `bullet`).

`pybullet_envs` was written for the gym of 2018: it registers itself there at import, and its steps give four values. Here its
classes are imported past that registration, with gymnasium in gym's place, and wrapped.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import gymnasium
import numpy as np

from hvcl.core.errors import InputError

EPISODE = 1000
"""Steps of an episode, as `pybullet_envs` registers these tasks."""

CLASSES = {
    "Walker2D": ("gym_locomotion_envs", "Walker2DBulletEnv"),
    "HalfCheetah": ("gym_locomotion_envs", "HalfCheetahBulletEnv"),
    "Ant": ("gym_locomotion_envs", "AntBulletEnv"),
    "InvertedDoublePendulum": ("gym_pendulum_envs", "InvertedDoublePendulumBulletEnv"),
    "Hopper": ("gym_locomotion_envs", "HopperBulletEnv"),
}


class Bullet(gymnasium.Env[Any, Any]):
    """One PyBullet task. The first reset after loading differs from later ones in the last bit: it is thrown away."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 - as gymnasium has it
    render_mode = "rgb_array"

    def __init__(self, name: str) -> None:
        module, cls = CLASSES[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._inner = getattr(_modules()[module], cls)()
        self.observation_space = self._inner.observation_space
        self.action_space = self._inner.action_space
        self._fresh = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode, the same for the same seed."""
        if self._fresh:
            self._inner.reset()
            self._fresh = False
        if seed is not None:
            self._inner.seed(seed)
        return np.asarray(self._inner.reset(), np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        observation, reward, done, info = self._inner.step(action)
        return np.asarray(observation, np.float32), float(reward), bool(done), False, info

    def render(self) -> Any:
        """The picture of a camera that follows the robot."""
        return self._inner.render(mode="rgb_array")

    def close(self) -> None:
        """Leave the physics server."""
        self._inner.close()


def make_bullet(name: str) -> gymnasium.Env[Any, Any]:
    """A PyBullet task with its limit of steps; `InputError` if PyBullet is not installed."""
    if importlib.util.find_spec("pybullet") is None:
        raise InputError(f"{name} needs PyBullet: install it with pip install 'hvcl[bullet]'")
    return gymnasium.wrappers.TimeLimit(Bullet(name), EPISODE)


@cache
def _modules() -> dict[str, types.ModuleType]:
    """The modules of `pybullet_envs` that hold the tasks."""
    with _as_gym():
        return {name: importlib.import_module(f"pybullet_envs.{name}") for name in {module for module, _ in CLASSES.values()}}


@contextmanager
def _as_gym() -> Iterator[None]:
    """While `pybullet_envs` is imported, gymnasium answers to the name gym, and the package skips its registration."""
    found = importlib.util.find_spec("pybullet_envs")
    assert found is not None
    package = types.ModuleType("pybullet_envs")
    package.__path__ = list(found.submodule_search_locations or [])
    resources = types.ModuleType("pkg_resources")  # gone from setuptools; only one function of it is asked for
    resources.parse_version = _version  # type: ignore[attr-defined]
    names = {name.replace("gymnasium", "gym", 1): module for name, module in sys.modules.items() if _is_gymnasium(name)}
    names |= {"pybullet_envs": package, "pkg_resources": resources}
    before = {name: sys.modules.get(name) for name in names if name != "pybullet_envs"}
    path = list(sys.path)
    sys.modules.update(names)
    sys.path.extend(package.__path__)  # its modules import each other by their bare names
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _is_gymnasium(name: str) -> bool:
    return name == "gymnasium" or name.startswith("gymnasium.")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
