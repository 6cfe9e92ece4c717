"""Pictures of what an agent does in each task, for the report."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvcl.core.errors import RunError
from hvcl.core.pictures import data_uri, encode
from hvcl.rl.agent import Agent
from hvcl.rl.environments import Array, TaskSequence
from hvcl.rl.sequences import sequence
from hvcl.runs.folder import RunFolder
from hvcl.runs.reinforcement import RLConfig

LONGEST = 1_000
"""Steps of an episode that are looked at."""


@dataclass(frozen=True)
class Strip:
    """What an agent does in one task."""

    task: str
    pictures: list[str]
    """Data URIs, in the order of time."""
    reason: str = ""
    """Why there are none: gymnasium's own tasks need pygame, MuJoCo needs OpenGL."""


def frames_of(folder: Path, count: int = 6, modules: Collection[str] = ()) -> list[Strip]:
    """For each task, `count` pictures of one episode of the first finished seed's agent.

    gymnasium imports the module in the name of an environment ("module:Name-v0"), which runs code: only those in `modules` are
    imported, whatever the folder says.
    """
    run = RunFolder(folder)
    config = run.config()
    if not isinstance(config, RLConfig):
        raise RunError(f"{folder} holds no agents to take pictures of: report without --frames")
    named = {word.rpartition(":")[0].strip() for word in config.sequence.split(",") if ":" in word}
    unknown = sorted(named - set(modules))
    if unknown:
        raise RunError(
            f"{folder} names environments of the module {unknown[0]!r}, whose code would be run: if you trust it, say "
            f"--import {unknown[0]}, else report without --frames"
        )
    done = [seed for seed in config.seeds if run.seed(seed).result() is not None]
    checkpoint = run.seed(done[0]).load_checkpoint() if done else None
    if checkpoint is None:
        raise RunError(f"{folder} has no finished seed to take pictures of: report without --frames, or finish it with --resume")
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")):
        os.environ["MUJOCO_GL"] = "egl"  # MuJoCo would look for a window, and end the whole process where there is none
    tasks = sequence(config.sequence)
    agent = config.make_agent(tasks, done[0])
    agent.load_state_dict(checkpoint["agent"])
    strips = []
    for number, task in enumerate(tasks.tasks):
        actions = _episode(agent, tasks, number, done[0])
        try:
            pictures = _pictures(tasks, number, done[0], actions, count)
        except Exception as error:  # every renderer has errors of its own
            reason = " ".join(str(error).split()) or type(error).__name__
            strips.append(Strip(task.name, [], reason))
        else:
            strips.append(Strip(task.name, [data_uri(encode(picture)) for picture in pictures]))
    return strips


def _episode(agent: Agent, tasks: TaskSequence, task: int, seed: int) -> list[Array]:
    """What the agent does in one episode."""
    environment = tasks.environment(task)
    observation, _ = environment.reset(seed=seed)
    actions: list[Array] = []
    over = False
    while not over and len(actions) < LONGEST:
        actions.append(agent.predict(observation[None], task)[0])
        observation, _, terminated, truncated, _ = environment.step(actions[-1])
        over = terminated or truncated
    environment.close()
    return actions


def _pictures(tasks: TaskSequence, task: int, seed: int, actions: list[Array], count: int) -> list[NDArray[np.uint8]]:
    """Pictures of the same episode once more, evenly over it: rendering takes longer than everything else."""
    environment = tasks.environment(task)
    inner: Any = environment.unwrapped
    inner.render_mode = "rgb_array"
    wanted = set(np.linspace(0, len(actions) - 1, min(count, len(actions))).astype(int).tolist())
    pictures = []
    try:
        environment.reset(seed=seed)
        for step, action in enumerate(actions):
            if step in wanted:
                pictures.append(np.asarray(inner.render(), np.uint8))
            environment.step(action)
    finally:
        environment.close()
    return pictures
