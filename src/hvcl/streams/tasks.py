"""Tasks: which examples belong together, and what the scenario makes of their labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError


class Scenario(StrEnum):
    """What must be predicted at test time, and what is given (van de Ven & Tolias, 2019)."""

    TASK = "task"
    """The task is given; every task has a head of its own."""
    DOMAIN = "domain"
    """The task is not given; one shared head, the same question in every task."""
    CLASS = "class"
    """The task is not given; all classes compete."""


@dataclass(frozen=True)
class Examples:
    """Inputs and targets of one task. Inputs may be shared storage: `index` picks rows, `pixels` permutes the features."""

    x: Tensor
    y: Tensor
    index: Tensor
    scale: float = 1.0
    pixels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Float inputs (divided by `scale`) and targets at `positions`."""
        x = self.x.index_select(0, self.index[positions])
        if self.pixels is not None:
            x = x.flatten(1).index_select(1, self.pixels).view_as(x)
        x = x.float()  # a copy already, or made one by the selection above: free to be scaled in place
        return (x.div_(self.scale) if self.scale != 1.0 else x), self.y[positions]

    def subset(self, positions: Tensor) -> Examples:
        """The examples at `positions`, with the same storage of inputs."""
        return replace(self, y=self.y[positions], index=self.index[positions])


@dataclass(frozen=True)
class Task:
    """One task: a name for people, its training and its test examples."""

    name: str
    train: Examples
    test: Examples


@dataclass(frozen=True)
class TestSet:
    """What a learner is scored on; `task` is the id it is given in Task-IL, None elsewhere."""

    __test__ = False  # not a test class, whatever pytest makes of the name
    name: str
    examples: Examples
    task: int | None

    def batches(self, size: int = 1000) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(x, y, task ids or None), in order."""
        for positions in torch.arange(len(self.examples)).split(size):
            x, y = self.examples.take(positions)
            yield x, y, None if self.task is None else torch.full((len(y),), self.task)


@dataclass(frozen=True)
class Part:
    """A task before the scenario gives its labels a meaning: rows of the training and test arrays, classes in order."""

    name: str
    classes: tuple[int, ...]
    train_rows: Tensor
    test_rows: Tensor
    pixels: Tensor | None = None


@dataclass(frozen=True)
class Labelled:
    """Tasks with targets, and the outputs that the scenario needs."""

    tasks: list[Task]
    outputs: int
    task_outputs: tuple[tuple[int, ...], ...] | None


def label(
    parts: Sequence[Part],
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    scale: float,
    scenario: Scenario,
) -> Labelled:
    """Give every example its target in `scenario`.

    - Domain-IL: the class's place in its task, so all tasks share one head.
    - Class-IL and Task-IL: one output per class. Where tasks share classes (permuted inputs), every task has outputs of
      its own for them. Task-IL also says which outputs form each task's head.
    """
    every_class = sorted({c for part in parts for c in part.classes})
    disjoint = sum(len(part.classes) for part in parts) == len(every_class)
    heads: list[tuple[int, ...]] = []
    start = 0
    for part in parts:
        if scenario is Scenario.DOMAIN:
            heads.append(tuple(range(len(part.classes))))
        elif disjoint:
            heads.append(tuple(every_class.index(c) for c in part.classes))
        else:
            heads.append(tuple(range(start, start + len(part.classes))))
            start += len(part.classes)
    tasks = []
    for part, head in zip(parts, heads, strict=True):
        sides = []
        for (x, y), rows in ((train, part.train_rows), (test, part.test_rows)):
            # a search, not a table: labels may be large numbers
            classes, order = torch.tensor(part.classes).sort()
            targets = torch.tensor(head)[order][torch.searchsorted(classes, y[rows])]
            sides.append(Examples(x, targets, rows, scale, part.pixels))
        if not len(sides[0]) or not len(sides[1]):
            raise InputError(f"task {part.name!r} has {len(sides[0])} training and {len(sides[1])} test examples: it needs both")
        tasks.append(Task(part.name, sides[0], sides[1]))
    outputs = max(unit for head in heads for unit in head) + 1
    return Labelled(tasks, outputs, tuple(heads) if scenario is Scenario.TASK else None)


def split_by_class(
    train_y: Tensor, test_y: Tensor, groups: Sequence[Sequence[int]], names: Sequence[str] | None = None
) -> list[Part]:
    """One part per group of classes."""
    parts = []
    for i, group in enumerate(groups):
        wanted = torch.tensor(list(group))
        parts.append(
            Part(
                name=names[i] if names else _group_name(group),
                classes=tuple(int(c) for c in group),
                train_rows=torch.isin(train_y, wanted).nonzero().flatten(),
                test_rows=torch.isin(test_y, wanted).nonzero().flatten(),
            )
        )
    return parts


def _group_name(group: Sequence[int]) -> str:
    return "/".join(map(str, group)) if len(group) <= 3 else f"{group[0]}..{group[-1]}"


def hold_out(task: Task, fraction: float, seed: int, number: int) -> Task:
    """Replace the test examples by a random part of the training examples, which training then does not see."""
    order = torch.from_numpy(np.random.default_rng([seed, 1, number]).permutation(len(task.train)))
    held = max(1, round(fraction * len(order)))
    if held >= len(order):
        raise InputError(f"task {task.name!r} has {len(order)} training examples: holding out {fraction:.0%} leaves none")
    return replace(task, train=task.train.subset(order[held:].sort()[0]), test=task.train.subset(order[:held].sort()[0]))


def held_out_rows(y: Tensor, share: float, seed: int, names: Sequence[str] | None = None) -> Tensor:
    """Rows that become test data: a share of each class, at least one row, drawn by `seed`; sorted.

    Args:
        y: label of every row.
        share: between 0 and 1.
        seed: of the choice.
        names: of the classes, for errors.
    """
    chosen = []
    for label in y.unique().tolist():
        rows = (y == label).nonzero().flatten()
        if len(rows) < 2:
            raise InputError(f"class {names[label] if names else label} has one example: it needs one to learn and one to test")
        order = torch.from_numpy(np.random.default_rng([seed, 4, label]).permutation(len(rows)))
        chosen.append(rows[order[: min(max(1, round(share * len(rows))), len(rows) - 1)]])
    return torch.cat(chosen).sort()[0]
