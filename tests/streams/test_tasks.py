"""What the scenarios make of labels, and how examples are read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.streams.tasks import Examples, Labelled, Part, Scenario, Task, TestSet, hold_out, label, split_by_class

Y = torch.tensor([3, 0, 7, 5, 0, 3, 5, 7, 9])
Y_TEST = torch.tensor([7, 7, 5, 3, 0])
X, X_TEST = torch.arange(9.0).unsqueeze(1), 100 + torch.arange(5.0).unsqueeze(1)


def everything(examples: Examples) -> tuple[Tensor, Tensor]:
    return examples.take(torch.arange(len(examples)))


def targets(labelled: Labelled, y: Tensor, y_test: Tensor) -> list[dict[int, int]]:
    """Of each task: which target each class has, the same in training and test."""
    found = []
    for task in labelled.tasks:
        of: dict[int, set[int]] = {}
        for examples, classes in ((task.train, y), (task.test, y_test)):
            for row, target in zip(examples.index.tolist(), examples.y.tolist(), strict=True):
                of.setdefault(int(classes[row]), set()).add(target)
        assert all(len(values) == 1 for values in of.values()), "one class has two targets"
        found.append({c: values.pop() for c, values in of.items()})
    return found


@pytest.mark.parametrize(
    ("scenario", "groups", "expected", "outputs"),
    [
        ("domain", [(0, 3), (5, 7)], [{0: 0, 3: 1}, {5: 0, 7: 1}], 2),
        ("domain", [(7, 0), (3, 5)], [{7: 0, 0: 1}, {3: 0, 5: 1}], 2),
        ("domain", [(0,), (3, 5, 7)], [{0: 0}, {3: 0, 5: 1, 7: 2}], 3),
        ("class", [(0, 3), (5, 7)], [{0: 0, 3: 1}, {5: 2, 7: 3}], 4),
        ("class", [(7, 0), (3, 5)], [{7: 3, 0: 0}, {3: 1, 5: 2}], 4),
        ("class", [(5, 7)], [{5: 0, 7: 1}], 2),
        ("task", [(0, 3), (5, 7)], [{0: 0, 3: 1}, {5: 2, 7: 3}], 4),
        ("task", [(7, 0), (3, 5)], [{7: 3, 0: 0}, {3: 1, 5: 2}], 4),
        ("task", [(0,), (3, 5, 7)], [{0: 0}, {3: 1, 5: 2, 7: 3}], 4),
    ],
)
def test_targets_of_split_classes(
    scenario: str, groups: list[tuple[int, ...]], expected: list[dict[int, int]], outputs: int
) -> None:
    labelled = label(split_by_class(Y, Y_TEST, groups), (X, Y), (X_TEST, Y_TEST), 1.0, Scenario(scenario))
    assert targets(labelled, Y, Y_TEST) == expected
    assert labelled.outputs == outputs
    if scenario == "task":
        assert labelled.task_outputs == tuple(tuple(of[c] for c in group) for of, group in zip(expected, groups, strict=True))
    else:
        assert labelled.task_outputs is None


@pytest.mark.parametrize(
    ("scenario", "expected", "outputs", "heads"),
    [
        ("domain", [{4: 0, 6: 1, 8: 2}] * 2, 3, None),
        ("class", [{4: 0, 6: 1, 8: 2}, {4: 3, 6: 4, 8: 5}], 6, None),
        ("task", [{4: 0, 6: 1, 8: 2}, {4: 3, 6: 4, 8: 5}], 6, ((0, 1, 2), (3, 4, 5))),
    ],
)
def test_targets_of_shared_classes(
    scenario: str, expected: list[dict[int, int]], outputs: int, heads: tuple[tuple[int, ...], ...] | None
) -> None:
    y, x, rows = torch.tensor([4, 6, 8, 6]), torch.zeros(4, 2), torch.arange(4)
    parts = [Part(name, (4, 6, 8), rows, rows) for name in "ab"]
    labelled = label(parts, (x, y), (x, y), 1.0, Scenario(scenario))
    assert targets(labelled, y, y) == expected
    assert (labelled.outputs, labelled.task_outputs) == (outputs, heads)


def test_tasks_that_share_some_classes_have_outputs_of_their_own() -> None:
    labelled = label(split_by_class(Y, Y_TEST, [(0, 3), (3, 5)]), (X, Y), (X_TEST, Y_TEST), 1.0, Scenario.TASK)
    assert targets(labelled, Y, Y_TEST) == [{0: 0, 3: 1}, {3: 2, 5: 3}]
    assert labelled.task_outputs == ((0, 1), (2, 3))


def test_every_example_of_the_classes_is_in_its_task_and_no_other() -> None:
    labelled = label(split_by_class(Y, Y_TEST, [(0, 3), (5, 7)]), (X, Y), (X_TEST, Y_TEST), 1.0, Scenario.CLASS)
    assert [task.train.index.tolist() for task in labelled.tasks] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [task.test.index.tolist() for task in labelled.tasks] == [[3, 4], [0, 1, 2]]
    x, y = everything(labelled.tasks[1].test)
    assert x[:, 0].tolist() == [100, 101, 102]
    assert y.tolist() == [3, 3, 2]


@pytest.mark.parametrize(
    ("y", "y_test", "message"),
    [
        (Y, torch.tensor([0, 3]), r"task '5/7' has 4 training and 0 test examples: it needs both"),
        (torch.tensor([0, 3, 0]), Y_TEST, r"task '5/7' has 0 training and 3 test examples"),
    ],
)
def test_a_task_without_examples_is_an_error(y: Tensor, y_test: Tensor, message: str) -> None:
    parts = split_by_class(y, y_test, [(0, 3), (5, 7)])
    with pytest.raises(InputError, match=message):
        label(parts, (X[: len(y)], y), (X_TEST[: len(y_test)], y_test), 1.0, Scenario.DOMAIN)


def test_labels_may_be_large_numbers() -> None:
    y = torch.tensor([10**15, 3, 10**15, 3])  # article numbers, say; larger than any machine's memory
    x = torch.zeros(4, 1)
    labelled = label(split_by_class(y, y, [(3, 10**15)]), (x, y), (x, y), 1.0, Scenario.CLASS)
    assert labelled.tasks[0].train.y.tolist() == [1, 0, 1, 0]


def test_names_of_class_groups() -> None:
    y = torch.arange(10)
    names = [part.name for part in split_by_class(y, y, [(0,), (3, 1), (2, 4, 5), (9, 8, 7, 6)])]
    assert names == ["0", "3/1", "2/4/5", "9..6"]
    assert [part.name for part in split_by_class(y, y, [(0, 1), (2, 3)], ["first", "second"])] == ["first", "second"]


# -- reading examples -----------------------------------------------------------------------------------------------------


def test_scaling_lands_in_the_unit_interval_exactly() -> None:
    x = torch.arange(256, dtype=torch.uint8).view(-1, 1)
    taken, _ = everything(Examples(x, torch.zeros(256, dtype=torch.int64), torch.arange(256), scale=255.0))
    assert taken.dtype == torch.float32
    torch.testing.assert_close(taken[:, 0].double(), torch.arange(256).double() / 255, rtol=1e-7, atol=0)
    assert (taken.min(), taken.max()) == (0, 1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_inputs_become_single_precision_and_are_divided_once(dtype: torch.dtype, scale: float) -> None:
    x = torch.tensor([[8, 4], [12, 0]], dtype=dtype)
    taken, _ = Examples(x, torch.tensor([0, 1]), torch.arange(2), scale).take(torch.tensor([1, 0]))
    assert taken.tolist() == [[12 / scale, 0], [8 / scale, 4 / scale]]
    assert taken.dtype == torch.float32
    assert x.tolist() == [[8, 4], [12, 0]], "the stored inputs must not change"


def test_take_goes_through_index_for_inputs_and_by_position_for_targets() -> None:
    examples = Examples(torch.arange(10.0).view(10, 1), torch.tensor([7, 8, 9]), torch.tensor([5, 2, 6]))
    x, y = examples.take(torch.tensor([2, 0, 2]))
    assert x[:, 0].tolist() == [6, 5, 6]
    assert y.tolist() == [9, 7, 9]
    assert len(examples) == 3


def test_subset_keeps_scale_and_pixels() -> None:
    x = torch.arange(12.0).view(4, 3)
    whole = Examples(x, torch.arange(4), torch.tensor([3, 2, 1, 0]), 2.0, torch.tensor([2, 0, 1]))
    half = whole.subset(torch.tensor([1, 3]))
    taken, y = everything(half)
    assert taken.tolist() == [[4.0, 3.0, 3.5], [1.0, 0.0, 0.5]]
    assert y.tolist() == [1, 3]


def test_pixels_move_features_and_keep_the_shape() -> None:
    x = torch.arange(24).view(2, 3, 2, 2)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    taken, _ = everything(Examples(x, torch.zeros(2), torch.arange(2), pixels=order))
    assert taken.shape == x.shape
    for image, original in zip(taken.flatten(1), x.flatten(1), strict=True):
        assert image.tolist() == [float(original[place]) for place in order]


@pytest.mark.parametrize(("size", "lengths"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (1000, [5])])
@pytest.mark.parametrize("task", [None, 3])
def test_test_sets_come_whole_and_in_order(size: int, lengths: list[int], task: int | None) -> None:
    examples = Examples(X_TEST, Y_TEST, torch.tensor([4, 3, 2, 1, 0]))
    batches = list(TestSet("t", examples, task).batches(size))
    assert [len(y) for _, y, _ in batches] == lengths
    assert torch.cat([x for x, _, _ in batches])[:, 0].tolist() == [104, 103, 102, 101, 100]
    assert torch.equal(torch.cat([y for _, y, _ in batches]), Y_TEST)
    for _, y, ids in batches:
        assert ids is None if task is None else ids.tolist() == [3] * len(y)


# -- holding out ----------------------------------------------------------------------------------------------------------


def task_of(n: int) -> Task:
    test = Examples(-X, Y, torch.arange(9))
    return Task("the task", Examples(torch.arange(float(n)).view(n, 1), torch.arange(n), torch.arange(n)), test)


@pytest.mark.parametrize(("n", "fraction", "held"), [(10, 0.2, 2), (10, 0.01, 1), (11, 0.5, 6), (2, 0.5, 1)])
def test_hold_out_parts_the_training_examples(n: int, fraction: float, held: int) -> None:
    task = hold_out(task_of(n), fraction, seed=1, number=0)
    assert len(task.test) == held
    assert sorted(task.train.index.tolist() + task.test.index.tolist()) == list(range(n))
    for examples in (task.train, task.test):
        x, y = everything(examples)
        assert x[:, 0].tolist() == y.tolist()  # in this task a target is its input


def test_hold_out_leaves_the_given_task_alone_and_is_reproducible() -> None:
    task = task_of(20)
    first, again = (hold_out(task, 0.5, seed=1, number=0).test.index for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, hold_out(task, 0.5, seed=2, number=0).test.index)
    assert not torch.equal(first, hold_out(task, 0.5, seed=1, number=1).test.index)
    assert len(task.train) == 20
    assert torch.equal(task.test.x, -X)


@pytest.mark.parametrize(("n", "fraction"), [(1, 0.5), (1, 0.01), (3, 0.9)])
def test_hold_out_must_leave_something(n: int, fraction: float) -> None:
    with pytest.raises(InputError, match=f"'the task' has {n} training examples"):
        hold_out(task_of(n), fraction, seed=0, number=0)
