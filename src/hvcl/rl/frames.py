"""Pictures of what an agent does in each task, for the report."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from hvcl.errors import RunError
from hvcl.rl.runs import RLRunFolder
from hvcl.rl.sequences import sequence

LONGEST = 1_000
"""Steps of an episode that are looked at."""


def frames_of(folder: Path, count: int = 6) -> list[tuple[str, list[str]]]:
    """For each task, `count` pictures of one episode of the first finished seed's agent, as data URIs.

    None where there is no renderer: gymnasium's own tasks need pygame.
    """
    run = RLRunFolder(folder)
    config = run.settings()
    done = [seed for seed in config.seeds if run.seed(seed).result() is not None]
    checkpoint = run.seed(done[0]).load_checkpoint() if done else None
    if checkpoint is None:
        raise RunError(f"{folder} has no finished seed to take pictures of")
    tasks = sequence(config.sequence)
    agent = config.make_agent(tasks, done[0])
    agent.load_state_dict(checkpoint["agent"])
    strips = []
    for number, task in enumerate(tasks.tasks):
        environment = tasks.environment(number)
        pictures: list[NDArray[np.uint8]] = []
        observation, _ = environment.reset(seed=done[0])
        over = False
        while not over and len(pictures) < LONGEST:
            picture = _picture(environment.unwrapped)
            if picture is None:
                break
            pictures.append(picture)
            observation, _, terminated, truncated, _ = environment.step(agent.predict(observation[None], number)[0])
            over = terminated or truncated
        environment.close()
        chosen = np.linspace(0, len(pictures) - 1, min(count, len(pictures))).astype(int)
        strips.append((task.name, [data_uri(pictures[i]) for i in chosen]))
    return strips


def _picture(environment: Any) -> NDArray[np.uint8] | None:
    environment.render_mode = "rgb_array"
    try:
        picture = environment.render()
    except (NotImplementedError, gymnasium.error.Error):
        return None
    return None if picture is None else np.asarray(picture, np.uint8)


def data_uri(picture: NDArray[np.uint8]) -> str:
    """A picture ``[height, width, 3]`` as PNG in a data URI."""
    height, width, _ = picture.shape
    lines = b"".join(b"\0" + row.tobytes() for row in picture)  # every line begins with its filter: none

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()
