"""What a stream says: batches, and the ends of tasks."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Examples to learn from. `task` holds every example's task id in Task-IL, and is None elsewhere."""

    x: Tensor
    y: Tensor
    task: Tensor | None
    segment: int
    """Which task's part of the stream this is; for logs, never for learners."""


class TaskEnd(NamedTuple):
    """A task's part of the stream is over: time to evaluate. `announced` says whether the learner may know."""

    task: int
    announced: bool
