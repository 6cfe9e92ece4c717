"""The loop that everything runs through: tasks one after another, in stages that can be repeated exactly.

A stage is a stretch of steps between two evaluations. It begins with new environments, whose seeds follow from the place in the
run, so nothing but the agent's state is carried from stage to stage: a run that is killed goes on from the end of the last stage
and ends bit-identically. Episodes under way at the end of a stage are broken off (not terminated: their last value is
bootstrapped).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hvcl.core.errors import InputError
from hvcl.core.room import check_steps
from hvcl.rl.agent import Agent
from hvcl.rl.environments import TaskSequence
from hvcl.rl.evaluation import Outcome, evaluate, seeds
from hvcl.rl.part import Terms
from hvcl.rl.replay import Transitions

EVALUATION, TRAINING = 1, 2
"""The purposes of seeds, which keep training and evaluation apart."""


MOST_ENVIRONMENTS = 10_000
"""Environments of each task that are stepped side by side."""

MOST_EPISODES = 10_000_000
"""Episodes of each task in all evaluations."""


@dataclass(frozen=True)
class TrainingProtocol:
    """The length of training, and how often the agent is evaluated."""

    steps: int = 60_000
    """Steps of each task, over all its environments."""
    environments: int = 1
    """Environments that are stepped side by side."""
    evaluate_every: int = 5_000
    """Steps between evaluations of all tasks seen; the run can be resumed from there."""
    episodes: int = 3
    """Episodes of each task in an evaluation."""
    final_episodes: int = 10
    """Episodes of a task in the evaluation right after it was learned, which J(t) is normalised with, and in the last one."""

    def __post_init__(self) -> None:
        if min(self.steps, self.environments, self.evaluate_every, self.episodes, self.final_episodes) < 1:
            raise InputError("steps, environments, evaluate_every, episodes and final_episodes must be at least 1")
        check_steps(self.steps, f"{self.steps:,} steps of each task")
        if self.environments > MOST_ENVIRONMENTS:
            raise InputError(f"environments must be at most {MOST_ENVIRONMENTS:,}, got {self.environments:,}")
        evaluations = -(-self.steps // self.evaluate_every)
        if evaluations * self.episodes + self.final_episodes > MOST_EPISODES:
            raise InputError(
                f"{evaluations:,} evaluations of {self.episodes:,} episodes and {self.final_episodes:,} at the end are more than "
                f"{MOST_EPISODES:,} episodes of each task: evaluate less often (evaluate_every), or with fewer episodes"
            )


@dataclass
class Position:
    """Where a run is: the phase (a task, or all of them at once) and the steps taken in it."""

    phase: int = 0
    step: int = 0


@dataclass(frozen=True)
class Stage:
    """The results of one stage."""

    phase: int
    step: int
    """Steps taken in the phase so far."""
    finished: bool
    """Whether the phase is over."""
    training: list[float]
    """Returns of the episodes that ended in it."""
    terms: Terms
    """Loss terms, averaged over the steps that learned."""
    outcomes: dict[int, Outcome]
    """By task: those seen so far."""


Watch = Callable[[int, float | None], None]
"""Called after every step with the steps taken in the phase, and the return of the last episode."""


def run(
    sequence: TaskSequence,
    agent: Agent,
    protocol: TrainingProtocol,
    seed: int,
    *,
    on_stage: Callable[[Stage, Position], None] = lambda stage, position: None,
    watch: Watch = lambda step, last: None,
    position: Position | None = None,
) -> None:
    """All tasks of the sequence, from `position` on. `on_stage` gets what a stage brought and where the next one begins."""
    check_room(agent, sequence)
    every = tuple(range(len(sequence.tasks)))
    phases = [every] if agent.all_tasks_at_once else [(task,) for task in every]
    position = position or Position()
    while position.phase < len(phases):
        phase, tasks = position.phase, phases[position.phase]
        total = protocol.steps * len(tasks)
        if position.step == 0:
            agent.on_task_start(phase, total)
        goal = min(total, (position.step // protocol.evaluate_every + 1) * protocol.evaluate_every)
        step, training, terms = play(sequence, agent, tasks * protocol.environments, position, goal, seed, watch)
        finished = step >= total
        if finished:
            agent.on_task_end()
        outcomes = {}
        for task in range(max(tasks) + 1):
            counts = finished and (task in tasks or phase == len(phases) - 1)
            episodes = protocol.final_episodes if counts else protocol.episodes
            outcomes[task] = evaluate(agent, sequence, task, episodes, seed, EVALUATION, phase, step)
        position = Position(phase + 1, 0) if finished else Position(phase, step)
        on_stage(Stage(phase, step, finished, training, terms, outcomes), position)


def check_room(agent: Agent, sequence: TaskSequence) -> None:
    """Raise `InputError` if the sequence has more tasks than the agent has room for."""
    if agent.most_tasks is not None and len(sequence.tasks) > agent.most_tasks:
        raise InputError(
            f"there are heads for {agent.most_tasks} tasks, and {sequence.name} has {len(sequence.tasks)}: set heads"
        )


def play(
    sequence: TaskSequence, agent: Agent, tasks: tuple[int, ...], position: Position, goal: int, seed: int, watch: Watch
) -> tuple[int, list[float], Terms]:
    """One stage: steps in new environments of `tasks`, up to `goal`; the returns of finished episodes, and mean loss terms."""
    environments = sequence.vector(tasks)
    masks = np.stack([sequence.masks[task] for task in tasks])
    observation, _ = environments.reset(seed=[*seeds(len(tasks), seed, TRAINING, position.phase, position.step)])
    running, returns = np.zeros(len(tasks)), []
    sums: dict[str, list[float]] = {}
    step = position.step
    while step < goal:
        action = agent.act(observation)
        following, reward, terminated, truncated, info = environments.step(action)
        arrived = following
        ended = terminated | truncated
        if ended.any():  # the next episode has begun in the same step
            arrived = following.copy()
            arrived[ended] = np.stack(info["final_obs"][ended])
        gained, over = reward.astype(np.float32), terminated.astype(np.float32)
        terms = agent.observe(Transitions(observation, action * masks, gained, arrived, over, masks))
        for name, value in terms.items():
            total, count = sums.get(name, (0.0, 0))
            sums[name] = [total + value, count + 1]
        running += gained
        returns += running[ended].tolist()
        running[ended] = 0.0
        observation = following
        step += len(tasks)
        watch(step, returns[-1] if returns else None)
    environments.close()
    return step, returns, {name: total / count for name, (total, count) in sums.items()}
