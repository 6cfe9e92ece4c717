"""Streams from a user's own torch data sets and loaders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hvcl.core.errors import DataError, InputError
from hvcl.streams.arrays import from_arrays
from hvcl.streams.stream import Stream, StreamConfig
from hvcl.streams.tasks import held_out_rows

HELD_OUT = 0.2
"""Share of each class that becomes test data where none are given."""

GREY = ("1", "L", "LA")
"""Modes of Pillow's pictures that have one channel."""


def from_dataset(
    train: Any,
    test: Any = None,
    *,
    tasks: Sequence[Sequence[int]] | None = None,
    classes_per_task: int | None = None,
    task: Any = None,
    task_test: Any = None,
    config: StreamConfig | None = None,
    scale: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    name: str = "dataset",
) -> Stream:
    """A stream from torch's data sets or loaders, e.g. ``from_dataset(MNIST(...), MNIST(..., train=False), classes_per_task=2)``.

    The examples are read once, in the order in which they come, and kept in memory.

    Args:
        train: what is learned: a data set of pairs (x, y) with a length (or any sequence of such pairs), an `IterableDataset`, or
            a `DataLoader` of batches of pairs. Inputs are tensors, arrays, numbers or pictures of Pillow, all of one shape;
            grey pictures become one channel, all others three. Labels are whole numbers, at least 0.
        test: what is scored, likewise. None: a fifth of each class of `train` (in each task, if `task` numbers them), drawn by
            `seed`, which is then not learned.
        tasks, classes_per_task, task, task_test: what a task is, in one of three ways; see `from_arrays`.
        config: scenario, epochs, batch size, boundaries or task-free; see `StreamConfig`.
        scale: that inputs are divided by; None: 255 for bytes (pictures), else 1.
        limit: examples to take from each, at most. Data without a length must have one: they might never end.
        seed: of the order of examples, and of what is drawn.
        name: what the benchmark is called in reports.

    Raises:
        InputError: the data are no pairs, of different shapes, without a length or empty; says which example.
        DataError: an example could not be read; says which.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    x, y = _collected("train", train, limit)
    if test is not None:
        x_test, y_test = _collected("test", test, limit)
    else:
        if task_test is not None:
            raise InputError("task_test= goes with test=: without it, a part of train with its tasks becomes test data")
        numbers = torch.zeros_like(y) if task is None else torch.as_tensor(task)
        if numbers.shape != y.shape:
            raise InputError(f"task must hold one task number for each of the {len(y)} examples")
        # of every class in every task
        kinds, kind = torch.stack([numbers, y], 1).unique(dim=0, return_inverse=True)
        names = [f"{label} of task {number}" if task is not None else str(label) for number, label in kinds.tolist()]
        held = held_out_rows(kind, HELD_OUT, seed, names)
        kept = torch.ones(len(y), dtype=torch.bool).index_fill_(0, held, False)
        x_test, y_test = x[held], y[held]
        if task is not None:
            task, task_test = numbers[kept], numbers[held]
        x, y = x[kept], y[kept]
    return from_arrays(
        x,
        y,
        x_test,
        y_test,
        tasks=tasks,
        classes_per_task=classes_per_task,
        task=task,
        task_test=task_test,
        config=config,
        scale=(255.0 if x.dtype == torch.uint8 else 1.0) if scale is None else scale,
        seed=seed,
        name=name,
    )


def _collected(role: str, data: Any, limit: int | None) -> tuple[Tensor, Tensor]:
    """All inputs and labels of a data set or loader."""
    inputs: list[Tensor] = []
    labels: list[int] = []
    for x, y in _examples(role, data, limit):
        number = len(labels)
        tensor = _input(role, number, x)
        if inputs and (tensor.shape != inputs[0].shape or tensor.dtype != inputs[0].dtype):
            raise InputError(
                f"example {number} of {role} is {_shape(tensor)}, those before it are {_shape(inputs[0])}: "
                "give all inputs one shape and type, e.g. with a transform that resizes pictures"
            )
        inputs.append(tensor)
        labels.append(_label(role, number, y))
    if not inputs:
        raise InputError(f"{role} is empty: there must be at least one example")
    return torch.stack(inputs), torch.tensor(labels)


def _examples(role: str, data: Any, limit: int | None) -> Iterator[tuple[Any, Any]]:
    """The pairs one by one, at most `limit`."""
    loader = isinstance(data, DataLoader)
    if not loader and not isinstance(data, IterableDataset) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        for number in range(_at_most(len(data), limit)):
            yield _pair(role, number, _read(role, number, lambda number=number: data[number]))
        return
    if not hasattr(data, "__iter__"):
        raise InputError(f"{role} must be a torch Dataset or DataLoader of pairs (x, y), got {type(data).__name__}")
    try:
        len(data)
    except TypeError:
        if limit is None:
            raise InputError(
                f"{role} has no length, and might never end: say how many examples to take with limit=, e.g. limit=10_000"
            ) from None
    count, items = 0, iter(data)
    while limit is None or count < limit:
        item = _read(role, count, lambda: next(items, None))
        if item is None:
            return
        pair = _pair(role, count, item)
        if not loader:
            yield pair
            count += 1
            continue
        for x, y in _batch(role, count, *pair):
            if limit is not None and count >= limit:
                return
            yield x, y
            count += 1


def _batch(role: str, number: int, x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    try:
        sizes = len(x), len(y)
    except TypeError:
        raise InputError(f"{role}: the loader must give batches, got single examples at number {number}") from None
    if sizes[0] != sizes[1]:
        raise InputError(f"{role}: the batch from example {number} on has {sizes[0]} inputs and {sizes[1]} labels")
    return zip(x, y, strict=True)


def _at_most(length: int, limit: int | None) -> int:
    return length if limit is None else min(length, limit)


def _read(role: str, number: int, get: Any) -> Any:
    """An example; whatever a data set of someone else raises becomes a `DataError` that says where."""
    try:
        return get()
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"example {number} of {role} cannot be read: {reason}") from error


def _pair(role: str, number: int, item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        found = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
        raise InputError(f"example {number} of {role} must be a pair (input, label), got {found}")
    return item[0], item[1]


def _input(role: str, number: int, x: Any) -> Tensor:
    if isinstance(x, Tensor):
        tensor = x.detach().cpu()
    else:
        try:
            tensor = picture(x) if is_picture(x) else torch.from_numpy(np.array(x))
        except (TypeError, ValueError, OSError) as error:
            raise InputError(f"the input of example {number} of {role} cannot be read as numbers: {error}") from None
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def _label(role: str, number: int, y: Any) -> int:
    value = y.item() if isinstance(y, Tensor | np.generic | np.ndarray) and y.ndim == 0 else y
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"the label of example {number} of {role} must be a whole number, got {value!r}")
    return value


def _shape(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def is_picture(x: Any) -> bool:
    """Whether `x` is a picture of Pillow, which need not be installed."""
    return type(x).__module__.split(".")[0] == "PIL" and hasattr(x, "convert")


def picture(image: Any) -> Tensor:
    """A picture of Pillow as bytes: ``[1, height, width]`` if it is grey, else ``[3, height, width]``."""
    levels = np.array(image.convert("L" if image.mode in GREY else "RGB"), dtype=np.uint8)
    return torch.from_numpy(levels.reshape(*levels.shape[:2], -1).transpose(2, 0, 1).copy())
