"""Streams from torch's data sets and loaders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hvcl.core.errors import DataError, InputError
from hvcl.streams import StreamConfig, from_arrays, from_dataset
from hvcl.streams.events import Batch

Y = torch.tensor([0, 1, 2, 3] * 5)
X = torch.arange(60.0).reshape(20, 3)
X_TEST, Y_TEST = X[:8] + 1000, Y[:8]


class Pairs(Dataset):
    """Any inputs with any labels, example by example."""

    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        if isinstance(self.inputs[number], Exception):
            raise self.inputs[number]
        return self.inputs[number], self.labels[number]


class Endless(IterableDataset):
    def __iter__(self):
        number = 0
        while True:
            yield X[number % 20], int(Y[number % 20])
            number += 1


def same(a, b):
    """Whether two streams are the same, event by event, and so are their tests."""
    for one, other in zip(a, b, strict=True):
        if isinstance(one, Batch):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
    for one, other in zip(a.tests, b.tests, strict=True):
        for mine, theirs in zip(one.batches(), other.batches(), strict=True):
            assert torch.equal(mine[0], theirs[0])
            assert torch.equal(mine[1], theirs[1])


@pytest.mark.parametrize(
    "make",
    [
        TensorDataset,
        lambda x, y: Pairs(list(x), y.tolist()),
        lambda x, y: Pairs(list(x.numpy()), list(y.numpy())),
        lambda x, y: Pairs([row.tolist() for row in x], [torch.tensor(int(label)) for label in y]),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
        lambda x, y: list(zip(x, y.tolist(), strict=True)),
    ],
    ids=["tensors", "examples", "arrays", "lists", "loader", "a list of pairs"],
)
def test_data_sets_and_loaders_give_the_stream_of_the_arrays(make):
    config = StreamConfig(scenario="class", epochs=2, batch_size=4)
    same(
        from_dataset(make(X, Y), make(X_TEST, Y_TEST), classes_per_task=2, config=config, seed=3),
        from_arrays(X, Y, X_TEST, Y_TEST, classes_per_task=2, config=config, seed=3),
    )


def test_without_test_data_a_fifth_of_each_class_is_held_out():
    stream = from_dataset(TensorDataset(X, Y), classes_per_task=2, seed=1)
    held, learned = set(), set()
    for test in stream.tests:
        for x, _, _ in test.batches():
            held |= {float(row[0]) for row in x}
    for x, _ in stream.batches():
        learned |= {float(row[0]) for row in x}
    assert len(held) == 4
    assert sorted(Y[[int(first / 3) for first in held]].tolist()) == [0, 1, 2, 3]
    assert held | learned == set(X[:, 0].tolist())
    assert not held & learned
    same(stream, from_dataset(TensorDataset(X, Y), classes_per_task=2, seed=1))


def test_tasks_by_number_go_with_the_examples_that_are_held_out():
    y = torch.tensor([0, 1] * 10)
    task = (torch.arange(20) >= 10).long()
    stream = from_dataset(TensorDataset(X, y), task=task, config=StreamConfig(batch_size=20))
    assert [len(task.train) + len(task.test) for task in stream.tasks] == [10, 10]
    for number, part in enumerate(stream.tasks):
        for x in (part.train.take(torch.arange(len(part.train)))[0], part.test.take(torch.arange(len(part.test)))[0]):
            assert set((x[:, 0] >= 30).long().tolist()) == {number}


def test_pictures_of_pillow_become_bytes_from_0_to_1():
    image = pytest.importorskip("PIL.Image")
    grey = [image.fromarray(np.full((4, 5), 10 * n, dtype=np.uint8)) for n in range(8)]
    stream = from_dataset(Pairs(grey, [0, 1] * 4), Pairs(grey[:2], [0, 1]), classes_per_task=2)
    assert stream.problem.input_shape == (1, 4, 5)
    x, _ = stream.tests[0].examples.take(torch.arange(2))
    assert x[1].unique().tolist() == pytest.approx([10 / 255])
    colour = [image.new("RGBA", (5, 4), (255, 0, 51, 128)), image.new("P", (5, 4), 0)]
    stream = from_dataset(Pairs(colour * 2, [0, 1, 0, 1]), Pairs(colour, [0, 1]), classes_per_task=2)
    assert stream.problem.input_shape == (3, 4, 5)
    x, _ = stream.tests[0].examples.take(torch.tensor([0]))
    assert x[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])


def test_data_without_a_length_need_a_limit():
    for endless in (Endless(), DataLoader(Endless(), batch_size=7)):
        with pytest.raises(InputError, match=r"train has no length, and might never end: .*limit="):
            from_dataset(endless, TensorDataset(X_TEST, Y_TEST), classes_per_task=2)
        stream = from_dataset(endless, Endless(), classes_per_task=2, limit=20)
        same(stream, from_dataset(TensorDataset(X, Y), TensorDataset(X, Y), classes_per_task=2))
    shorter = from_dataset(TensorDataset(X, Y), TensorDataset(X, Y), classes_per_task=2, limit=12)
    assert sum(len(x) for x, _ in shorter.batches()) == 12


@pytest.mark.parametrize(
    ("train", "error", "message"),
    [
        (17, InputError, "train must be a torch Dataset or DataLoader of pairs"),
        (Pairs([], []), InputError, "train is empty"),
        (Pairs([torch.zeros(2), torch.zeros(3)], [0, 1]), InputError, r"example 1 of train is \(3,\).*before it are \(2,\)"),
        (
            Pairs([torch.zeros(2), OSError("no such file: 7.png")], [0, 1]),
            DataError,
            "example 1 of train .*: no such file: 7.png",
        ),
        (Pairs([torch.zeros(2)], ["cat"]), InputError, "label of example 0 of train must be a whole number, got 'cat'"),
        (Pairs([torch.zeros(2)], [1.5]), InputError, "whole number, got 1.5"),
        (Pairs([torch.zeros(2)] * 2, [True, False]), InputError, "whole number, got True"),
        (Pairs(["text"], [0]), InputError, "x cannot|must hold|examples|numbers"),
        ([(1, 2, 3)], InputError, "example 0 of train must be a pair .*got 3 values"),
        ([{"x": 1, "y": 2}], InputError, "must be a pair .*got dict"),
        (DataLoader(Pairs([torch.zeros(2)] * 3, [0, 1, 2]), batch_size=None), InputError, "must give batches"),
        (TensorDataset(torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1])), InputError, "NaN"),
        (TensorDataset(X, -Y), InputError, "at least 0"),
    ],
)
def test_what_is_wrong_with_data_is_said(train, error, message):
    with pytest.raises(error, match=message):
        from_dataset(train, TensorDataset(X_TEST, Y_TEST), classes_per_task=2)


def test_arguments_that_contradict_each_other_are_refused():
    data = TensorDataset(X, Y)
    with pytest.raises(InputError, match="limit must be at least 1"):
        from_dataset(data, limit=0, classes_per_task=2)
    with pytest.raises(InputError, match="task_test= goes with test="):
        from_dataset(data, task=Y, task_test=Y)
    with pytest.raises(InputError, match="one task number for each of the 20"):
        from_dataset(data, task=Y[:3])
    with pytest.raises(InputError, match="class 3 has one example"):
        from_dataset(TensorDataset(X[:5], torch.tensor([0, 0, 1, 1, 3])), classes_per_task=1)
