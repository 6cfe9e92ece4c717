"""Three small tasks that need gymnasium alone, with spaces of different sizes: 2 and 2, 3 and 1, 4 and 1."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import TimeLimit, TransformReward

LOWEST = 16.2736044
"""The pendulum's largest cost in a step."""


class Reach(gymnasium.Env[Any, Any]):
    """A point in the plane that is to be moved to the origin: the reward is 1 minus its distance. The simplest task there is."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as gymnasium has it

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._place = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A random place in the square [-1, 1]^2."""
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move by at most a fifth in each direction."""
        self._place = np.clip(self._place + 0.2 * np.asarray(action, np.float32), -2.0, 2.0)
        return self._place.copy(), 1.0 - float(np.linalg.norm(self._place)), False, False, {}

    def render(self) -> Any:
        """The square [-2, 2]^2 with the origin and the point."""
        picture = np.full((120, 120, 3), 255, np.uint8)
        for place, colour in ((np.zeros(2), (180, 180, 180)), (self._place, (200, 40, 40))):
            across, down = np.clip((place * (1, -1) + 2) * 30, 3, 116).astype(int)
            picture[down - 3 : down + 4, across - 3 : across + 4] = colour
        return picture


class ContinuousCartPole(CartPoleEnv):
    """Cart-pole with a force between -10 and 10 in place of a push to the left or right."""

    def __init__(self) -> None:
        super().__init__()
        self._force = self.force_mag
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step with a force of the action's size and direction."""
        push = float(np.clip(np.asarray(action).reshape(-1)[0], -1.0, 1.0))
        # the parent knows one force to the right or left: give it this one
        discrete, self.force_mag = self.action_space, self._force * push
        self.action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]
        try:
            observation, reward, terminated, truncated, info = super().step(1)  # type: ignore[no-untyped-call]
        finally:
            self.action_space = discrete
        return observation, float(reward), terminated, truncated, info


def make_reach() -> gymnasium.Env[Any, Any]:
    """`Reach` with episodes of 50 steps."""
    return TimeLimit(Reach(), 50)


def make_pendulum() -> gymnasium.Env[Any, Any]:
    """gymnasium's pendulum: swing it up and hold it, 200 steps; rewards moved from [-16.3, 0] to [0, 1]."""
    return TransformReward(gymnasium.make("Pendulum-v1"), lambda reward: 1.0 + float(reward) / LOWEST)


def make_cartpole() -> gymnasium.Env[Any, Any]:
    """Cart-pole with a continuous force, 200 steps."""
    return TimeLimit(ContinuousCartPole(), 200)
