"""Evaluation of an agent in a task, without exploration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvcl.core.errors import InputError
from hvcl.rl.agent import Agent
from hvcl.rl.environments import Array, TaskSequence

USAGE_OBSERVATIONS = 1_000
"""Observations of a task from which the use of experts is read, at most."""

LONGEST = 100_000
"""Steps after which an episode is taken never to end."""


@dataclass(frozen=True)
class Outcome:
    """The returns of some episodes, and which experts answered in them."""

    returns: list[float]
    usage: dict[str, list[float]]

    @property
    def mean(self) -> float:
        """Mean return over the episodes."""
        return sum(self.returns) / len(self.returns)


def seeds(count: int, *place: int) -> list[int]:
    """Seeds for environments, different for every `place`, always the same for the same one."""
    return [int(word) for word in np.random.SeedSequence(place).generate_state(count) >> 1]


def evaluate(agent: Agent, sequence: TaskSequence, task: int, episodes: int, *place: int) -> Outcome:
    """Whole episodes in new environments of one task, side by side; the agent is not changed."""
    environments = [sequence.environment(task) for _ in range(episodes)]
    starts = zip(environments, seeds(episodes, *place, task), strict=True)
    current: dict[int, Array] = {i: environment.reset(seed=seed)[0] for i, (environment, seed) in enumerate(starts)}
    returns = [0.0] * episodes
    seen: list[Array] = []
    rows = steps = 0
    while current:
        if (steps := steps + 1) > LONGEST:
            name = sequence.tasks[task].name
            raise InputError(f"episodes of {name} do not end within {LONGEST} steps: wrap it in gymnasium.wrappers.TimeLimit")
        observations = np.stack(list(current.values()))
        if rows < USAGE_OBSERVATIONS:
            seen.append(observations)
            rows += len(observations)
        for i, action in zip(list(current), agent.predict(observations, task), strict=True):
            current[i], reward, terminated, truncated, _ = environments[i].step(action)
            returns[i] += reward
            if terminated or truncated:
                del current[i]
    for environment in environments:
        environment.close()
    return Outcome(returns, agent.usage(np.concatenate(seen)))
