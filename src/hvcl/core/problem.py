"""What a learner is told about the problem before it sees any data."""

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
