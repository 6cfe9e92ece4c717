import gymnasium
import numpy as np
import pytest

from hvcl.rl import Sequence, Task


class Guess(gymnasium.Env):
    """One step: the nearer the action is to a goal that the observation names, the better. The simplest thing to learn."""

    def __init__(self, goal=0.5, size=2):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.goal, self.size = goal, size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(self.size, np.float32), {}

    def step(self, action):
        return np.ones(self.size, np.float32), 1 - abs(float(action[0]) - self.goal), True, False, {}


@pytest.fixture
def guess():
    return Sequence("guess", (Task("guess", Guess, 0.0, 1.0),))


@pytest.fixture
def guesses():
    """Two tasks with spaces of different sizes and different answers."""
    return Sequence("guesses", (Task("a", Guess), Task("b", lambda: Guess(-0.5, 3))))
