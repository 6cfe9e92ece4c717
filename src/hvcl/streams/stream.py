"""Streams: tasks one after another, as batches, with boundaries or without."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.room import check_memory, check_steps
from hvcl.streams.events import Batch, TaskEnd
from hvcl.streams.tasks import Labelled, Scenario, Task, TestSet, hold_out


@dataclass(frozen=True)
class StreamConfig:
    """How tasks become a stream."""

    scenario: Scenario = Scenario.DOMAIN
    """What is asked at test time: task (the task is given), domain (one shared head), class (all classes compete)."""
    task_free: bool = False
    """Say nothing about where a task ends: a stream of batches and labels, nothing else."""
    blur: float = 0.0
    """Task-free only: width of the transition between neighbouring tasks, in tasks (0 sharp, 1 always mixing)."""
    epochs: int = 1
    """Passes over each task's data before the next task comes."""
    batch_size: int = 256
    """Examples in a batch."""
    class_order: str = "label"
    """Order in which classes are dealt to tasks: label, random (by the stream's seed), or a list such as 3,1,4,0,2."""
    tasks: int | None = None
    """Number of tasks, where the benchmark leaves it open (permuted inputs); none takes the benchmark's own."""
    classes_per_task: int | None = None
    """Classes of each task, where the benchmark leaves it open (folder:DIR)."""
    size: int | None = None
    """Side in pixels that the pictures of folder:DIR are resized to; none: all have one size, and keep it."""
    validation: float = 0.0
    """Score on this fraction of the training data, held out, instead of the test set: for choosing settings."""

    def __post_init__(self) -> None:
        if self.scenario not in list(Scenario):
            raise InputError(f"scenario must be one of {', '.join(Scenario)}, got {self.scenario!r}")
        object.__setattr__(self, "scenario", Scenario(self.scenario))
        if self.epochs < 1 or self.batch_size < 1:
            raise InputError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")
        if not 0 <= self.blur <= 1:
            raise InputError(f"blur must lie between 0 and 1, got {self.blur}")
        if self.blur and not self.task_free:
            raise InputError("a blurred stream has no boundaries to tell: use blur together with task_free")
        if not 0 <= self.validation < 1:
            raise InputError(f"validation must lie in [0, 1), got {self.validation}")

    @property
    def supervision(self) -> str:
        """The supervision of training: "boundaries" or "task-free"."""
        return "task-free" if self.task_free else "boundaries"


class Stream:
    """Tasks as a sequence of events, reproducible from (tasks, config, seed) and enterable at any place.

    With boundaries, every task's data come `epochs` times, each time in a new random order, and then a `TaskEnd` that the
    learner is told. Task-free streams send the same batches and keep the ends to themselves; blurred ones let the mix of
    neighbouring tasks shift gradually.
    """

    def __init__(
        self, labelled: Labelled, config: StreamConfig, seed: int, name: str = "arrays", cumulative: bool = False
    ) -> None:
        if seed < 0:
            raise InputError(f"seed must be at least 0, got {seed}")
        self.labelled = labelled
        self.config = config
        self.seed = seed
        self.name = name
        tasks = labelled.tasks
        if config.validation:
            tasks = [hold_out(task, config.validation, seed, i) for i, task in enumerate(tasks)]
        self.tasks = tasks
        self.is_cumulative = cumulative
        _check_length(tasks, config, cumulative)
        self._schedule: _Schedule
        if cumulative:
            self._schedule = _Sharp([tasks[: i + 1] for i in range(len(tasks))], config, seed)
        elif config.blur:
            self._schedule = _Blurred(tasks, config, seed)
        else:
            self._schedule = _Sharp([[task] for task in tasks], config, seed)

    def cumulative(self) -> Stream:
        """The same tasks, but each part of the stream holds the data of all tasks so far: for upper bounds."""
        return Stream(self.labelled, self.config, self.seed, self.name, cumulative=True)

    @property
    def problem(self) -> Problem:
        """What a learner may know before it sees any data."""
        return Problem(
            input_shape=tuple(self.tasks[0].train.x.shape[1:]),
            outputs=self.labelled.outputs,
            task_outputs=self.labelled.task_outputs,
            task_examples=None if self.config.task_free else self._schedule.examples,
            task_steps=None if self.config.task_free else self._schedule.steps,
        )

    @cached_property
    def tests(self) -> list[TestSet]:
        """One test set a task."""
        given = self.config.scenario is Scenario.TASK
        return [TestSet(task.name, task.test, i if given else None) for i, task in enumerate(self.tasks)]

    def __len__(self) -> int:
        """Number of events."""
        return sum(self._schedule.steps) + len(self.tasks)

    def events(self, start: int = 0) -> Iterator[Batch | TaskEnd]:
        """The events from number `start` on."""
        first = 0
        for segment, steps in enumerate(self._schedule.steps):
            for step in range(max(start - first, 0), steps):
                yield self._batch(segment, step)
            if start <= first + steps:
                yield TaskEnd(segment, announced=not self.config.task_free)
            first += steps + 1

    def __iter__(self) -> Iterator[Batch | TaskEnd]:
        return self.events()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All batches as pairs (x, y), for loops of one's own: ``for x, y in stream.batches(): learner.observe(x, y)``.

        The ends of tasks are left out, and with them the moments to call `Learner.end_task`: learners that need boundaries, and
        Task-IL, whose batches come with task ids (`InputError` here), want `events` or `hvcl.run`.
        """
        if self.config.scenario is Scenario.TASK:
            raise InputError("batches of a Task-IL stream come with task ids: iterate over events(), or use hvcl.run")
        return ((event.x, event.y) for event in self.events() if isinstance(event, Batch))

    def _batch(self, segment: int, step: int) -> Batch:
        positions, origin = self._schedule.batch(segment, step)
        only = self._schedule.only_task(segment)
        numbers = origin.unique().tolist() if only is None else [only]
        if len(numbers) == 1:
            x, y = self.tasks[numbers[0]].train.take(positions)
        else:
            pieces = {n: (origin == n).nonzero().flatten() for n in numbers}
            taken = {n: self.tasks[n].train.take(positions[rows]) for n, rows in pieces.items()}
            back = torch.cat(list(pieces.values())).argsort()
            x = torch.cat([piece for piece, _ in taken.values()])[back]
            y = torch.cat([piece for _, piece in taken.values()])[back]
        return Batch(x, y, origin if self.config.scenario is Scenario.TASK else None, segment)


def _check_length(tasks: list[Task], config: StreamConfig, cumulative: bool) -> None:
    """Raise `InputError` if the stream would go on for years, or its order does not fit into memory."""
    sizes = [len(task.train) for task in tasks]
    if cumulative:
        sizes = list(itertools.accumulate(sizes))
    steps = config.epochs * sum(-(-size // config.batch_size) for size in sizes)
    what = f"{config.epochs:,} epochs of {len(sizes)} tasks"
    check_steps(steps, what)
    if config.blur:  # the whole order is known beforehand
        check_memory(_BYTES_OF_ORDER * config.epochs * sum(sizes), f"the blurred order of {what}")


_BYTES_OF_ORDER = 64
"""Of one example, while the order is made: its place, task and moment, and what sorting needs."""


class _Schedule(ABC):
    """Which examples make up which batch."""

    steps: tuple[int, ...]
    """Batches in each task's part of the stream."""
    examples: tuple[int, ...]
    """Distinct examples in each task's part."""

    @abstractmethod
    def batch(self, segment: int, step: int) -> tuple[Tensor, Tensor]:
        """Positions within their task and task numbers of the examples in one batch."""

    def only_task(self, segment: int) -> int | None:
        """The number of the task that all examples of a part come from, if that is known beforehand."""
        return None


class _Sharp(_Schedule):
    """Each part of the stream shuffles the examples of its tasks, once an epoch."""

    def __init__(self, parts: list[list[Task]], config: StreamConfig, seed: int) -> None:
        self.sizes = [[len(task.train) for task in part] for part in parts]
        self.first = [0 if len(part) > 1 else i for i, part in enumerate(parts)]
        self.batch_size, self.seed = config.batch_size, seed
        self.examples = tuple(map(sum, self.sizes))
        self.per_epoch = [-(-n // config.batch_size) for n in self.examples]
        self.steps = tuple(config.epochs * n for n in self.per_epoch)
        self._current: tuple[int, int] | None = None

    def only_task(self, segment: int) -> int | None:
        return self.first[segment] if len(self.sizes[segment]) == 1 else None

    def batch(self, segment: int, step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, self.per_epoch[segment])
        if self._current != (segment, epoch):
            sizes = self.sizes[segment]
            order = np.random.default_rng([self.seed, 0, segment, epoch]).permutation(sum(sizes))
            starts = np.concatenate([[0], np.cumsum(sizes)])
            part = np.searchsorted(starts, order, side="right") - 1
            self._positions = torch.from_numpy(order - starts[part])
            self._origin = torch.from_numpy(part + self.first[segment])
            self._current = (segment, epoch)
        rows = slice(place * self.batch_size, (place + 1) * self.batch_size)
        return self._positions[rows], self._origin[rows]


class _Blurred(_Schedule):
    """Every example's moment is moved by a random amount of up to half the blur, in tasks, and the stream sorted by moment.

    Each example still comes exactly `epochs` times. Around a boundary the share of the next task rises linearly from 0
    to 1 over `blur` tasks.
    """

    def __init__(self, tasks: list[Task], config: StreamConfig, seed: int) -> None:
        random = np.random.default_rng([seed, 2])
        moments, positions, origin = [], [], []
        for number, task in enumerate(tasks):
            n = len(task.train)
            order = np.concatenate([random.permutation(n) for _ in range(config.epochs)])
            moments.append(number + (np.arange(len(order)) + 0.5) / len(order))
            positions.append(order)
            origin.append(np.full(len(order), number))
        moment = np.concatenate(moments)
        moment = moment + config.blur * (random.random(len(moment)) - 0.5)
        order = np.argsort(moment, kind="stable")
        self.positions = torch.from_numpy(np.concatenate(positions)[order])
        self.origin = torch.from_numpy(np.concatenate(origin)[order])
        self.batch_size = config.batch_size
        self.examples = tuple(len(task.train) for task in tasks)
        ends = np.cumsum([len(m) for m in moments]) / config.batch_size
        self.ends = [0, *(int(np.ceil(end)) if i == len(ends) - 1 else round(float(end)) for i, end in enumerate(ends))]
        self.steps = tuple(b - a for a, b in itertools.pairwise(self.ends))

    def batch(self, segment: int, step: int) -> tuple[Tensor, Tensor]:
        place = self.ends[segment] + step
        rows = slice(place * self.batch_size, (place + 1) * self.batch_size)
        return self.positions[rows], self.origin[rows]
