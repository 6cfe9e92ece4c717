"""The chains of robots, where their physics is installed."""

import numpy as np
import pytest

from hvcl.rl import sequence


@pytest.mark.parametrize(
    ("name", "needs", "tasks", "sizes"),
    [
        ("bullet", "pybullet", ["Walker2D", "HalfCheetah", "Ant", "InvertedDoublePendulum", "Hopper"], (28, 8)),
        ("mujoco", "mujoco", ["Walker2d", "HalfCheetah", "Ant", "InvertedDoublePendulum", "Hopper"], (27, 8)),
    ],
)
def test_the_papers_order_common_spaces_and_the_same_episode_for_the_same_seed(name, needs, tasks, sizes, tmp_path, monkeypatch):
    pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)
    chain = sequence(name)
    assert [task.name for task in chain.tasks] == tasks
    assert (chain.observations, chain.actions) == sizes
    assert [int(mask.sum()) for mask in chain.masks] == [6, 6, 8, 1, 3]
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 8)).astype(np.float32)
    for number in range(len(tasks)):
        new, used = chain.environment(number), chain.environment(number)
        used.reset(seed=9)
        used.step(actions[0])  # what was before a reset leaves no trace
        trails = []
        for environment in (new, used):
            steps = [environment.reset(seed=3)[0]]
            for action in actions:
                observation, reward, terminated, _, _ = environment.step(action)
                steps += [observation, np.array([reward])]
                if terminated:
                    break
            trails.append(np.concatenate(steps))
            environment.close()
        np.testing.assert_array_equal(*trails)
    assert not list(tmp_path.iterdir())  # no log of warnings
