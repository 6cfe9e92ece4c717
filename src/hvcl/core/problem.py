"""What a learner knows about the problem before it sees any data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """The shape of inputs and outputs, and what the scenario and the supervision allow a learner to know.

    A learner is built from this and nothing else: it knows no stream, no data set and no file.
    """

    input_shape: tuple[int, ...]
    """Shape of one example."""
    outputs: int
    """Number of output units."""
    task_outputs: tuple[tuple[int, ...], ...] | None = None
    """Task-IL only: the output units of each task's head. Then `observe` and `predict` are given task ids."""
    task_examples: tuple[int, ...] | None = None
    """Number of examples of each task; None without boundaries."""
    task_steps: tuple[int, ...] | None = None
    """Number of `observe` calls of each task; None without boundaries."""

    def examples_of(self, task: int) -> int | None:
        """Number of examples of a task, counted from 0; past the last task that of the last one, None without boundaries."""
        return self.task_examples[min(task, len(self.task_examples) - 1)] if self.task_examples else None

    def steps_of(self, task: int) -> int | None:
        """Number of `observe` calls of a task, likewise."""
        return self.task_steps[min(task, len(self.task_steps) - 1)] if self.task_steps else None
