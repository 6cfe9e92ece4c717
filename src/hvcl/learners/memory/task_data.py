"""The current task's examples, for methods that need them once more when the task ends.

Every epoch shows every example of a task once, so the first `Problem.task_examples` examples that arrive are all of them. They
are kept until the task is over, and then dropped: nothing of a past task is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners.base import State
from hvcl.learners.memory.examples import Stored, from_state, room_for

CHUNK = 256
"""Examples that are processed at once."""


def chunks(examples: Stored) -> Iterator[Stored]:
    """All examples in order, a few at a time."""
    for start in range(0, len(examples), CHUNK):
        yield examples.rows(slice(start, start + CHUNK))


def join(parts: list[Stored]) -> Stored:
    """The examples of all parts, one after another."""
    return Stored(**{name: torch.cat([part.columns()[name] for part in parts]) for name in parts[0].columns()})


class TaskData:
    """Collects the examples of the current task in its first pass. On a task-free stream it keeps nothing.

    Args:
        problem: gives the number of examples of each task.
        limit: keep the first so many of a task only (they arrive in random order); None: all.
    """

    def __init__(self, problem: Problem, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"at least one example of a task must be kept, got {limit}")
        self._problem = problem
        self._limit = limit
        self._task = 0
        self._count = 0
        self._nothing = room_for(0, problem, torch.device("cpu"))
        self._parts: list[Stored] = []

    @property
    def size(self) -> int:
        """How many examples of the current task are to be kept; 0 on a task-free stream."""
        size = self._problem.examples_of(self._task) or 0
        return size if self._limit is None else min(size, self._limit)

    @property
    def missing(self) -> int:
        """How many of them have not arrived yet."""
        return self.size - self._count

    def add(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        """Keep what is still missing from a batch."""
        if self.missing > 0:
            part = Stored(x, y, task).rows(slice(self.missing))
            self._parts.append(part)
            self._count += len(part)

    def take(self) -> list[Stored]:
        """What is kept, as it arrived, which is not kept any longer."""
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> Stored | None:
        """The task is over: its examples (None if none are kept), which are not kept any longer."""
        if self._problem.task_examples is None:
            raise InputError("this method needs a task's examples when it ends: give their number in Problem.task_examples")
        self._task, self._count = self._task + 1, 0
        parts = self.take()
        return join(parts) if parts else None

    def state_dict(self) -> State:
        """The examples that are kept, and the position in the task."""
        return {"task": self._task, "count": self._count, "parts": [part.state() for part in self._parts]}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self._task, self._count = int(state["task"]), int(state["count"])
        self._parts = [from_state(part, self._nothing) for part in state["parts"]]
