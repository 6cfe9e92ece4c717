"""Streams from a user's own arrays: the three ways to say what a task is, and all that can be wrong with data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.streams.arrays import deal, from_arrays, order_classes
from hvcl.streams.events import Batch
from hvcl.streams.stream import Stream, StreamConfig

Y = np.array([0, 1, 2, 3] * 3)
Y_TEST = np.array([3, 2, 1, 0, 3, 2, 1, 0])
X = np.arange(36, dtype=np.float32).reshape(12, 3)
X_TEST = 1000 + np.arange(24, dtype=np.float32).reshape(8, 3)


def make(*, settings: dict[str, Any] | None = None, **changes: Any) -> Stream:
    """Four classes in two tasks, unless changed; `None` takes an argument away."""
    arguments = {"x": X, "y": Y, "x_test": X_TEST, "y_test": Y_TEST} | changes
    return from_arrays(**arguments, config=StreamConfig(**(settings or {})))


def rows(stream: Stream) -> list[dict[int, int]]:
    """Of each task: the target of every training row."""
    found: list[dict[int, int]] = [{} for _ in stream.tasks]
    for event in stream:
        if isinstance(event, Batch):
            for x, y in zip(event.x, event.y, strict=True):
                assert x.tolist() == X[int(x[0]) // 3].tolist()
                found[event.segment][int(x[0]) // 3] = int(y)
    return found


def final_rows(stream: Stream) -> list[dict[int, int]]:
    return [
        {int(x[0] - 1000) // 3: int(y) for xs, ys, _ in test.batches() for x, y in zip(xs, ys, strict=True)}
        for test in stream.tests
    ]


def expected(task_of: Callable[[int], int | None], target: Callable[[int], int], labels: np.ndarray = Y) -> list[dict[int, int]]:
    found: list[dict[int, int]] = [{}, {}]
    for row, c in enumerate(labels.tolist()):
        if (task := task_of(c)) is not None:
            found[task][row] = target(c)
    return found


# -- the three ways -------------------------------------------------------------------------------------------------------


def test_tasks_by_their_classes() -> None:
    stream = make(tasks=[(3, 0), (2,)])
    place, target = {3: 0, 0: 0, 2: 1}, {3: 0, 0: 1, 2: 0}
    assert rows(stream) == expected(place.get, target.__getitem__)
    assert final_rows(stream) == expected(place.get, target.__getitem__, Y_TEST)
    assert [test.name for test in stream.tests] == ["3/0", "2"]
    assert stream.problem.outputs == 2


@pytest.mark.parametrize(
    ("order", "groups"), [("label", [(0, 1), (2, 3)]), ("3,1,0,2", [(3, 1), (0, 2)]), (" 2, 3,1 ,0", [(2, 3), (1, 0)])]
)
def test_classes_dealt_out_in_order(order: str, groups: list[tuple[int, ...]]) -> None:
    stream = make(classes_per_task=2, settings={"class_order": order})
    place = {c: task for task, group in enumerate(groups) for c in group}
    target = {c: group.index(c) for group in groups for c in group}
    assert rows(stream) == expected(place.get, target.__getitem__)
    assert final_rows(stream) == expected(place.get, target.__getitem__, Y_TEST)


def test_classes_dealt_out_at_random_follow_the_seed() -> None:
    groups = {}
    for seed in range(20):
        names, again = (
            [test.name for test in make(classes_per_task=1, seed=seed, settings={"class_order": "random"}).tests]
            for _ in range(2)
        )
        assert names == again
        assert sorted(names) == ["0", "1", "2", "3"]
        groups[seed] = tuple(names)
    assert len(set(groups.values())) > 8  # of 24 orders; twenty random ones have 8 or fewer with probability below 1e-4


def test_class_il_outputs_follow_the_labels_whatever_the_order() -> None:
    stream = make(classes_per_task=2, settings={"class_order": "3,1,0,2", "scenario": "class"})
    place = {3: 0, 1: 0, 0: 1, 2: 1}
    assert rows(stream) == expected(place.get, lambda c: c)
    assert stream.problem.outputs == 4


def test_tasks_by_number() -> None:
    task, task_test = np.array([1, 0, 0] * 4), np.array([0, 0, 1, 1, 0, 1, 0, 1])
    stream = make(task=task, task_test=task_test, settings={"scenario": "domain"})
    assert rows(stream) == [{row: int(Y[row]) for row in range(12) if task[row] == number} for number in (0, 1)]
    assert final_rows(stream) == [{row: int(Y_TEST[row]) for row in range(8) if task_test[row] == number} for number in (0, 1)]
    assert [test.name for test in stream.tests] == ["task 1", "task 2"]
    assert stream.problem.outputs == 4


def test_tasks_by_number_that_share_classes_have_heads_of_their_own() -> None:
    task, task_test = np.array([1, 0, 0] * 4), np.array([0, 0, 1, 1, 0, 1, 0, 1])
    stream = make(task=task, task_test=task_test, settings={"scenario": "task"})
    assert stream.problem.task_outputs == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert rows(stream)[1] == {row: 4 + int(Y[row]) for row in range(12) if task[row] == 1}


# -- kinds of arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        torch.from_numpy,
        lambda a: torch.from_numpy(a).clone().requires_grad_(a.dtype.kind == "f"),
        lambda a: a.tolist(),
        lambda a: tuple(map(tuple, a)) if a.ndim > 1 else tuple(a),
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        np.asfortranarray,
        lambda a: a.astype({"f": "f8", "i": "i2"}[a.dtype.kind]),
        lambda a: a.astype({"f": "i8", "i": "u1"}[a.dtype.kind]),
    ],
    ids=["tensors", "tensors with gradients", "lists", "tuples", "reversed", "fortran", "double and short", "integers and bytes"],
)
def test_every_kind_of_array_gives_the_same_stream(convert: Callable[[np.ndarray], Any]) -> None:
    reference = make(classes_per_task=2)
    other = make(x=convert(X), y=convert(Y), x_test=convert(X_TEST), y_test=convert(Y_TEST), classes_per_task=2)
    assert other.problem == reference.problem
    for a, b in zip(reference, other, strict=True):
        if isinstance(a, Batch):
            assert isinstance(b, Batch)
            assert b.x.dtype == torch.float32
            assert b.y.dtype == torch.int64
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
    assert final_rows(other) == final_rows(reference)


def test_scale_divides_training_and_test_inputs() -> None:
    stream = make(x=(X.astype(np.uint8)), x_test=X.astype(np.uint8)[:8], classes_per_task=2, scale=4.0)
    batch = next(iter(stream))
    assert isinstance(batch, Batch)
    ((x, _, _), *_) = stream.tests[0].batches()
    assert sorted(batch.x[:, 0].tolist()) == sorted((X[Y < 2, 0] / 4).tolist())
    assert sorted(x[:, 0].tolist()) == sorted((X[:8][Y_TEST < 2, 0] / 4).tolist())


def test_images_keep_their_shape() -> None:
    x = np.zeros((12, 2, 4, 5), dtype=np.uint8)
    stream = make(x=x, x_test=x[:8], classes_per_task=2)
    assert stream.problem.input_shape == (2, 4, 5)
    assert next(iter(stream)).x.shape[1:] == (2, 4, 5)  # type: ignore[union-attr]


def test_seed_and_name_reach_the_stream() -> None:
    assert (make(classes_per_task=2, name="mine", seed=5).name, make(classes_per_task=2, name="mine", seed=5).seed) == ("mine", 5)
    orders = {tuple(int(v) for v in next(iter(make(classes_per_task=2, seed=seed))).x[:, 0]) for seed in range(4)}  # type: ignore[union-attr]
    assert len(orders) > 1


# -- what can be wrong ----------------------------------------------------------------------------------------------------


def spoiled(value: float, at: int) -> np.ndarray:
    x = X.copy()
    x[at, 1] = value
    return x


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": ({"x": spoiled(np.nan, 4)}, "x has NaN or infinite values in 1 examples, the first is number 4"),
    "infinite": ({"x": spoiled(np.inf, 0)}, "x has NaN or infinite values in 1 examples, the first is number 0"),
    "NaN in test": ({"x_test": spoiled(np.nan, 7)[:8]}, "x_test has NaN or infinite values in 1 examples, the first is number 7"),
    "too large for float": ({"x": X.astype("f8") * 1e300}, "x has NaN or infinite values"),
    "fewer labels": ({"y": Y[:-1]}, r"x has 12 examples, but the labels have shape \(11,\)"),
    "fewer test labels": ({"y_test": Y_TEST[:-1]}, r"x_test has 8 examples, but the labels have shape \(7,\)"),
    "labels in a column": ({"y": Y[:, None]}, r"labels have shape \(12, 1\)"),
    "empty": ({"x": X[:0], "y": Y[:0]}, "x must hold at least one example"),
    "empty test": ({"x_test": X[:0], "y_test": Y[:0]}, "x_test must hold at least one example"),
    "one-dimensional": ({"x": X[:, 0]}, r"x must hold .*features.*, got shape \(12,\)"),
    "a number": ({"x": 3.0}, "x must hold at least one example"),
    "nothing": ({"x": None}, "x cannot be read as an array"),
    "ragged": ({"x": [[1.0, 2.0], [3.0]] * 6}, "x cannot be read as an array"),
    "words": ({"y": np.array(["cat", "dog"] * 6)}, "y cannot be read as an array"),
    "test words": ({"y_test": np.array(["cat", "dog"] * 4)}, "y_test cannot be read as an array"),
    "float labels": ({"y": Y.astype(float)}, "the labels of x must be integers, at least 0"),
    "true or false": ({"y": Y > 1}, "the labels of x must be integers"),
    "negative": ({"y": Y - 1}, "the labels of x must be integers, at least 0"),
    "negative in test": ({"y_test": Y_TEST - 1}, "the labels of x_test must be integers, at least 0"),
    "unlike shapes": ({"x_test": X_TEST[:, :2]}, r"x has examples of shape \(3,\), x_test of \(2,\)"),
    "zero scale": ({"scale": 0.0}, "scale must be positive, got 0"),
    "negative scale": ({"scale": -1.0}, "scale must be positive, got -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_examples(name: str) -> None:
    changes, message = BAD[name]
    with pytest.raises(InputError, match=message):
        make(**({"classes_per_task": 2} | changes))


NUMBERS = {"task": Y // 2, "task_test": Y_TEST // 2}
BAD_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "no way": ({}, "exactly one way"),
    "two ways": ({"tasks": [(0, 1)], "classes_per_task": 2}, "exactly one way"),
    "two other ways": ({"tasks": [(0, 1)], **NUMBERS}, "exactly one way"),
    "three ways": ({"tasks": [(0, 1)], "classes_per_task": 2, **NUMBERS}, "exactly one way"),
    "not even": ({"classes_per_task": 3}, "4 classes cannot be dealt in groups of 3"),
    "none a task": ({"classes_per_task": 0}, "4 classes cannot be dealt in groups of 0"),
    "less than none": ({"classes_per_task": -2}, "4 classes cannot be dealt in groups of -2"),
    "more than all": ({"classes_per_task": 8}, "4 classes cannot be dealt in groups of 8"),
    "unknown class": ({"tasks": [(0, 1), (2, 9), (8, 3)]}, r"classes \[8, 9\] do not occur in y"),
    "no test examples": ({"tasks": [(0, 1), (2, 3)], "y_test": Y_TEST % 2}, "task '2/3' has 6 training and 0 test examples"),
    "no task_test": ({"task": Y // 2}, "give task_test="),
    "too few numbers": ({**NUMBERS, "task": Y[:-1]}, "one task number for every example"),
    "too few test numbers": ({**NUMBERS, "task_test": Y_TEST[:-1]}, "one task number for every example"),
    "gap": ({**NUMBERS, "task": 2 * (Y // 2)}, "without gaps"),
    "from one": ({**NUMBERS, "task": 1 + Y // 2}, "0, 1, 2, ... without gaps"),
    "negative number": ({**NUMBERS, "task": Y // 2 - 1}, "without gaps"),
    "float number": ({**NUMBERS, "task": (Y // 2).astype(float)}, "must be the integers"),
    "unseen label": ({**NUMBERS, "task_test": 1 - Y_TEST // 2}, "task 0 has test labels that its training data do not have"),
    "task without test": ({**NUMBERS, "task_test": np.zeros(8, int), "y_test": Y_TEST % 2}, "'task 2' has 6 training and 0 test"),
}


@pytest.mark.parametrize("name", BAD_TASKS)
def test_bad_tasks(name: str) -> None:
    changes, message = BAD_TASKS[name]
    with pytest.raises(InputError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("alphabetical", "class_order must be label, random or a list of classes such as 3,1,4,0,2, got 'alphabetical'"),
        ("", "class_order must be label, random or a list"),
        ("0,1,two,3", "class_order must be label, random or a list"),
        ("0,1,2", "class_order must name each of the 4 classes once, got '0,1,2'"),
        ("0,1,2,2", "class_order must name each of the 4 classes once"),
        ("0,1,2,4", "class_order must name each of the 4 classes once"),
        ("0,1,2,3,3", "class_order must name each of the 4 classes once"),
    ],
)
def test_bad_class_order(order: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(classes_per_task=2, settings={"class_order": order})


def test_orders_and_deals_of_classes() -> None:
    assert order_classes([5, 2, 9], "label", 0) == [2, 5, 9]
    assert order_classes([5, 2, 9], "9,2,5", 0) == [9, 2, 5]
    shuffled = [order_classes(range(50), "random", seed) for seed in (1, 1, 2)]
    assert sorted(shuffled[0]) == list(range(50))
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert order_classes([3, 1, 2], "random", 7) == order_classes([1, 2, 3], "random", 7), "the order given must not matter"
    assert deal([4, 2, 0, 1, 3, 5], 3) == [[4, 2, 0], [1, 3, 5]]


# -- what once went wrong silently or with a plain error, each with why it must be refused ---------------------------------


MORE_BAD_INPUT: dict[str, tuple[dict[str, Any], str]] = {
    "class twice in a task": ({"tasks": [(0, 0, 1), (2, 3)]}, "the class gets the second of two outputs, the first stays unused"),
    "task without classes": ({"tasks": [(0, 1), ()]}, "RuntimeError from torch about dtypes"),
    "no tasks": ({"tasks": []}, "plain ValueError from max()"),
    "classes not in groups": ({"tasks": [0, 1]}, "TypeError: 'int' object is not iterable"),
    "scale not a number": ({"classes_per_task": 2, "scale": float("nan")}, "all inputs become NaN"),
    "infinite scale": ({"classes_per_task": 2, "scale": float("inf")}, "all inputs become 0"),
    "complex inputs": ({"classes_per_task": 2, "x": X + 1j, "x_test": X_TEST + 1j}, "the imaginary part is dropped"),
    "unknown test label": ({"classes_per_task": 2, "y_test": np.append(Y_TEST[:-1], 9)}, "the test example is dropped silently"),
    "unknown test task": (
        {**NUMBERS, "task_test": np.append(NUMBERS["task_test"][:-1], 7)},
        "the test example is dropped silently",
    ),
    "broken test task": (
        {**NUMBERS, "task_test": np.append(NUMBERS["task_test"][:-1], 0.5)},
        "the test example is dropped silently",
    ),
    "task_test alone": ({"classes_per_task": 2, "task_test": Y_TEST // 2}, "task_test is ignored"),
    "number of tasks": ({"classes_per_task": 2, "settings": {"tasks": 3}}, "config.tasks is ignored"),
    "order without a deal": ({"tasks": [(0, 1)], "settings": {"class_order": "nonsense"}}, "config.class_order is ignored"),
    "negative seed": ({"classes_per_task": 2, "seed": -1}, "plain ValueError from numpy, with the first batch"),
}


@pytest.mark.parametrize(
    "changes",
    [pytest.param(changes, id=name) for name, (changes, _) in MORE_BAD_INPUT.items()],
)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_more_bad_input_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        next(iter(make(**changes)))


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8"])
def test_labels_may_be_unsigned(dtype: str) -> None:
    stream = make(y=Y.astype(dtype), y_test=Y_TEST.astype(dtype), classes_per_task=2)
    assert rows(stream) == rows(make(classes_per_task=2))
