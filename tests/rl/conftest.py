import gymnasium
import numpy as np
import pytest

from hvcl.rl import Task, TaskSequence


class Guess(gymnasium.Env):
    """One step: the nearer the action is to `goal` times a sign that is shown, the better. The simplest thing to learn."""

    def __init__(self, goal=0.7, size=2):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.goal, self.size = goal, size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.full(self.size, self.sign, np.float32), {}

    def step(self, action):
        return np.full(self.size, self.sign, np.float32), 1 - abs(float(action[0]) - self.goal * self.sign), True, False, {}


@pytest.fixture
def guess():
    return TaskSequence("guess", (Task("guess", Guess, 0.0, 1.0),))


@pytest.fixture
def guesses():
    """Two tasks with spaces of different sizes and different answers."""
    return TaskSequence("guesses", (Task("a", Guess), Task("b", lambda: Guess(-0.7, 3))))
