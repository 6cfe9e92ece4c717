"""Streams from a user's own data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.streams.stream import Stream, StreamConfig
from hvcl.streams.tasks import Part, label, split_by_class


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any,
    y_test: Any,
    *,
    tasks: Sequence[Sequence[int]] | None = None,
    classes_per_task: int | None = None,
    task: Any = None,
    task_test: Any = None,
    config: StreamConfig | None = None,
    scale: float = 1.0,
    seed: int = 0,
    name: str = "arrays",
) -> Stream:
    """A stream from arrays: numpy arrays, tensors, or anything numpy can read.

    Say in one of three ways what a task is:

    - ``tasks=[(0, 1), (2, 3)]``: the classes of each task;
    - ``classes_per_task=2``: classes dealt out in the order of `config.class_order`;
    - ``task=...``, ``task_test=...``: the task number (0, 1, ...) of every example, for shifts that are not in the classes.

    Args:
        x, x_test: inputs ``[N, ...]``, floating point (finite) or integers; divided by `scale`.
        y, y_test: integer class labels ``[N]``, at least 0.
        config: scenario, epochs, batch size, boundaries or task-free; see `StreamConfig`.
        seed: of the order of examples, and of classes where that is random.
        name: what the benchmark is called in reports.
    """
    config = config or StreamConfig()
    train, test = _examples("x", x, y), _examples("x_test", x_test, y_test)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InputError(f"x has examples of shape {tuple(train[0].shape[1:])}, x_test of {tuple(test[0].shape[1:])}")
    if not 0 < scale < math.inf:
        raise InputError(f"scale must be positive, got {scale}")
    ways = [tasks is not None, classes_per_task is not None, task is not None]
    if sum(ways) != 1:
        raise InputError("say what a task is in exactly one way: tasks=, classes_per_task=, or task= with task_test=")
    if task_test is not None and task is None:
        raise InputError("task_test= goes with task=: give both or none")
    if config.tasks is not None or config.classes_per_task is not None:
        raise InputError("arrays have as many tasks as the arguments say: leave config.tasks and config.classes_per_task out")
    if config.size is not None:
        raise InputError("arrays are taken as they are: resize pictures before, and leave config.size out")
    if classes_per_task is None and config.class_order != "label":
        raise InputError("class_order has a meaning only together with classes_per_task")
    if task is not None:
        parts = _parts_by_number(train[1], test[1], task, task_test)
    else:
        classes = train[1].unique().tolist()
        groups = tasks if tasks is not None else deal(order_classes(classes, config.class_order, seed), classes_per_task or 0)
        if tasks is not None:
            groups = _groups(tasks)
        elif not bool(torch.isin(test[1], train[1]).all()):
            raise InputError("y_test has classes that y does not have")
        unknown = sorted({c for group in groups for c in group} - set(classes))
        if unknown:
            raise InputError(f"classes {unknown} do not occur in y")
        parts = split_by_class(train[1], test[1], groups)
    return Stream(label(parts, train, test, scale, config.scenario), config, seed, name)


def order_classes(classes: Sequence[int], order: str, seed: int) -> list[int]:
    """`classes` in the order "label", "random" (by `seed`), or as listed, e.g. "3,1,4,0,2"."""
    if order == "label":
        return sorted(classes)
    if order == "random":
        return [int(c) for c in np.random.default_rng([seed, 3]).permutation(sorted(classes))]
    try:
        listed = [int(c) for c in order.split(",")]
    except ValueError:
        raise InputError(f"class_order must be label, random or a list of classes such as 3,1,4,0,2, got {order!r}") from None
    if sorted(listed) != sorted(classes):
        raise InputError(f"class_order must name each of the {len(classes)} classes once, got {order!r}")
    return listed


def deal(classes: Sequence[int], per_task: int) -> list[list[int]]:
    """Classes in groups of `per_task`, in order."""
    if per_task < 1 or len(classes) % per_task:
        raise InputError(f"{len(classes)} classes cannot be dealt in groups of {per_task}")
    return [list(classes[i : i + per_task]) for i in range(0, len(classes), per_task)]


def _groups(tasks: Any) -> list[list[int]]:
    try:
        groups = [[int(c) for c in group] for group in tasks]
    except (TypeError, ValueError):
        raise InputError(f"tasks must be groups of classes such as [(0, 1), (2, 3)], got {tasks!r}") from None
    if not groups or not all(groups) or any(len(set(group)) < len(group) for group in groups):
        raise InputError(f"every task needs at least one class, each once, got {tasks!r}")
    return groups


def _examples(name: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = _tensor(name, x), _tensor(name.replace("x", "y"), y)
    if inputs.dim() < 2 or not len(inputs):
        raise InputError(f"{name} must hold at least one example, [N, features...], got shape {tuple(inputs.shape)}")
    if labels.shape != inputs.shape[:1]:
        raise InputError(f"{name} has {len(inputs)} examples, but the labels have shape {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool or int(labels.long().min()) < 0:
        raise InputError(f"the labels of {name} must be integers, at least 0")
    if inputs.is_complex():
        raise InputError(f"{name} must hold real numbers, got {inputs.dtype}")
    if inputs.is_floating_point():
        inputs = inputs.float()
        if not bool(inputs.isfinite().all()):
            rows = (~inputs.flatten(1).isfinite().all(1)).nonzero().flatten()
            raise InputError(f"{name} has NaN or infinite values in {len(rows)} examples, the first is number {int(rows[0])}")
    return inputs, labels.long()


def _tensor(name: str, values: Any) -> Tensor:
    try:
        return values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be read as an array: {error}") from None


def _parts_by_number(train_y: Tensor, test_y: Tensor, task: Any, task_test: Any) -> list[Part]:
    if task_test is None:
        raise InputError("task= gives the training examples' tasks: give task_test= for the test examples as well")
    numbers, test_numbers = _tensor("task", task), _tensor("task_test", task_test)
    if numbers.shape != train_y.shape or test_numbers.shape != test_y.shape:
        raise InputError("task and task_test must hold one task number for every example")
    if numbers.is_floating_point() or sorted(numbers.unique().tolist()) != list(range(int(numbers.max()) + 1)):
        raise InputError("task numbers must be the integers 0, 1, 2, ... without gaps")
    if test_numbers.is_floating_point() or not bool(torch.isin(test_numbers, numbers).all()):
        raise InputError("task_test must hold task numbers that task has as well")
    parts = []
    for number in range(int(numbers.max()) + 1):
        rows, test_rows = (numbers == number).nonzero().flatten(), (test_numbers == number).nonzero().flatten()
        classes = train_y[rows].unique()
        if not bool(torch.isin(test_y[test_rows], classes).all()):
            raise InputError(f"task {number} has test labels that its training data do not have")
        parts.append(Part(f"task {number + 1}", tuple(classes.tolist()), rows, test_rows))
    return parts
