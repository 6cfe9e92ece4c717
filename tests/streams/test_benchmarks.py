"""The named benchmarks: the embedded digits for real, the others on small fakes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from hvcl.core.configuration import configure
from hvcl.core.errors import HvclError, InputError, UnknownNameError
from hvcl.streams import benchmarks
from hvcl.streams.benchmarks import BENCHMARKS, benchmark, make_stream
from hvcl.streams.datasets import Dataset
from hvcl.streams.events import Batch
from hvcl.streams.stream import Stream, StreamConfig
from hvcl.streams.tasks import Examples, Scenario


def fake(name: str, classes: int, shape: tuple[int, ...], each: int = 4) -> Dataset:
    """`each` training and two test images a class, of random bytes; both ends of the range occur."""
    random = torch.Generator().manual_seed(len(name))
    images = torch.randint(0, 256, ((each + 2) * classes, *shape), generator=random, dtype=torch.uint8)
    images[0].view(-1)[:2] = torch.tensor([0, 255], dtype=torch.uint8)
    labels = torch.arange(len(images)) % classes
    order = torch.cat([torch.randperm(each * classes, generator=random), each * classes + torch.arange(2 * classes)])
    images, labels, n = images[order], labels[order], each * classes
    return Dataset(name, images[:n], labels[:n], images[n:], labels[n:], 255.0)


FAKES = {
    "mnist": fake("mnist", 10, (1, 5, 4)),
    "cifar10": fake("cifar10", 10, (3, 4, 4)),
    "cifar100": fake("cifar100", 100, (3, 4, 4)),
}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Dataset]:
    monkeypatch.setattr(benchmarks, "load", FAKES.__getitem__)
    return FAKES


def everything(examples: Examples) -> tuple[Tensor, Tensor]:
    return examples.take(torch.arange(len(examples)))


def sent(stream: Stream) -> list[tuple[Tensor, Tensor]]:
    """The inputs and targets of each part of the stream."""
    parts: list[list[Batch]] = [[] for _ in stream.tasks]
    for event in stream:
        if isinstance(event, Batch):
            parts[event.segment].append(event)
    return [(torch.cat([b.x for b in part]), torch.cat([b.y for b in part])) for part in parts]


def as_bytes(x: Tensor, scale: float) -> list[bytes]:
    """Every image as a key."""
    return [row.numpy().tobytes() for row in (x * scale).round().to(torch.uint8).flatten(1)]


# -- names and settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"), [("split-mist", "split-mnist"), ("permuted_mnist", "permuted-mnist"), ("cifar100", "split-cifar100")]
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    for call in (benchmark, make_stream):
        with pytest.raises(UnknownNameError, match=f"unknown benchmark '{name}': did you mean '{near}'?") as caught:
            call(name)
        assert all(known in str(caught.value) for known in BENCHMARKS)


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(UnknownNameError) as caught:
        make_stream("zzz")
    assert "did you mean" not in str(caught.value)
    assert "split-digits" in str(caught.value)


def test_names_are_keys() -> None:
    on_features = {"split-cifar10-patches", "split-cifar100-patches"}
    assert set(BENCHMARKS) == {"split-digits", "split-mnist", "permuted-mnist", "split-cifar10", "split-cifar100"} | on_features
    assert all(benchmark(name).name == name for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_default_is_a_setting_of_the_stream(name: str) -> None:
    configure(StreamConfig, BENCHMARKS[name].stream)
    assert list(BENCHMARKS[name].epochs) == ["quick", "standard", "paper"]


def test_settings_take_precedence_over_defaults_and_leave_the_others() -> None:
    default = make_stream("split-digits").config
    assert {"epochs": default.epochs, "batch_size": default.batch_size}.items() <= BENCHMARKS["split-digits"].stream.items()
    chosen = make_stream("split-digits", epochs=2, scenario="task").config
    assert (chosen.epochs, chosen.scenario, chosen.batch_size) == (2, Scenario.TASK, default.batch_size)


def test_a_whole_config_takes_the_place_of_the_defaults() -> None:
    config = StreamConfig(epochs=3, batch_size=50)
    assert make_stream("split-digits", config).config == config
    assert make_stream("split-digits", config, batch_size=9).config == StreamConfig(epochs=3, batch_size=9)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(InputError, match="epoch"):
        make_stream("split-digits", epoch=3)


def test_the_number_of_tasks_of_a_split_is_not_open() -> None:
    with pytest.raises(InputError, match="split-digits has as many tasks as its classes make: leave tasks out"):
        make_stream("split-digits", tasks=5)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (StreamConfig(), {"epoch": 3}),
        (None, {"epochs": 1.5}),
        (None, {"batch_size": True}),
        (None, {"scenario": "banana"}),
        (None, {"class_order": [3, 1, 4, 0, 2, 5, 6, 7, 8, 9]}),
        (None, {"seed": -1}),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(config: StreamConfig | None, settings: dict[str, Any]) -> None:
    with pytest.raises(HvclError):
        next(iter(make_stream("split-digits", config, **settings)))


# -- split-digits, for real -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_split_digits_end_to_end(scenario: str) -> None:
    stream = make_stream("split-digits", seed=1, scenario=scenario, epochs=2)
    digits = load_digits()
    true = dict(zip(as_bytes(torch.from_numpy(digits.images), 1.0), digits.target.tolist(), strict=True))
    assert stream.name == "split-digits"
    assert [test.name for test in stream.tests] == ["0/1", "2/3", "4/5", "6/7", "8/9"]
    assert stream.problem.input_shape == (1, 8, 8)
    assert stream.problem.outputs == (2 if scenario == "domain" else 10)
    assert stream.problem.task_outputs == (tuple((2 * t, 2 * t + 1) for t in range(5)) if scenario == "task" else None)
    total = 0
    for task, (x, y) in enumerate(sent(stream)):
        test_x, test_y = everything(stream.tests[task].examples)
        for inputs, targets in ((x, y), (test_x, test_y)):
            assert inputs.dtype == torch.float32
            assert (float(inputs.min()), float(inputs.max())) == (0, 1)
            labels = torch.tensor([true[key] for key in as_bytes(inputs, 16)])
            assert set(labels.tolist()) == {2 * task, 2 * task + 1}
            assert torch.equal(targets, labels % 2 if scenario == "domain" else labels)
        keys, test_keys = Counter(as_bytes(x, 16)), set(as_bytes(test_x, 16))
        assert set(keys.values()) == {2}
        assert test_keys.isdisjoint(keys)
        assert len(keys) == stream.problem.task_examples[task]  # type: ignore[index]
        total += len(keys) + len(test_x)
    assert total == len(digits.target)


# -- split benchmarks on fakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dataset", "tasks", "classes"),
    [("split-mnist", "mnist", 5, 2), ("split-cifar10", "cifar10", 5, 2), ("split-cifar100", "cifar100", 10, 10)],
)
@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_splits_are_in_label_order(
    fakes: dict[str, Dataset], name: str, dataset: str, tasks: int, classes: int, scenario: str
) -> None:
    data = fakes[dataset]
    stream = make_stream(name, scenario=scenario, epochs=1)
    assert len(stream.tasks) == tasks
    assert stream.problem.outputs == (classes if scenario == "domain" else tasks * classes)
    for task, part in enumerate(stream.tasks):
        wanted = set(range(task * classes, (task + 1) * classes))
        for examples, x, y in ((part.train, data.train_x, data.train_y), (part.test, data.test_x, data.test_y)):
            inputs, targets = everything(examples)
            mine = torch.tensor([int(label) in wanted for label in y])
            assert as_bytes(inputs, 255) == as_bytes(x[mine], 1)
            assert torch.equal(targets, y[mine] % classes if scenario == "domain" else y[mine])
            assert float(inputs.min()) >= 0
            assert float(inputs.max()) <= 1
    assert max(float(everything(task.train)[0].max()) for task in stream.tasks) == 1


def test_class_order_deals_the_classes_out(fakes: dict[str, Dataset]) -> None:
    stream = make_stream("split-mnist", class_order="3,1,4,0,2,9,8,7,6,5", epochs=1)
    assert [test.name for test in stream.tests] == ["3/1", "4/0", "2/9", "8/7", "6/5"]
    data = fakes["mnist"]
    _, y = everything(stream.tasks[0].train)
    mine = data.train_y[(data.train_y == 3) | (data.train_y == 1)]
    assert torch.equal(y, (mine == 1).long())  # the first of the task's classes is target 0


def test_random_class_order_follows_the_seed(fakes: dict[str, Dataset]) -> None:
    def names(seed: int) -> list[str]:
        return [test.name for test in make_stream("split-mnist", seed=seed, class_order="random").tests]

    assert names(1) == names(1)
    assert len({tuple(names(seed)) for seed in range(5)}) == 5
    assert sorted("/".join(names(1)).split("/")) == [str(c) for c in range(10)]


# -- permuted-mnist on a fake ---------------------------------------------------------------------------------------------


def permutations(stream: Stream, data: Dataset) -> list[list[int]]:
    """Each task's permutation, found from the data it sends: every pixel's values over the images tell which it was."""
    columns = [tuple(column.tolist()) for column in torch.cat([data.train_x, data.test_x]).flatten(1).T]
    assert len(set(columns)) == len(columns), "the fake must tell its pixels apart"
    found = []
    for task in stream.tasks:
        both = torch.cat([everything(task.train)[0], everything(task.test)[0]])
        found.append([columns.index(tuple(column.tolist())) for column in (both * 255).round().to(torch.uint8).flatten(1).T])
    return found


def test_permuted_inputs(fakes: dict[str, Dataset]) -> None:
    data = fakes["mnist"]
    found = permutations(make_stream("permuted-mnist", seed=1), data)  # the same for training and test, or index() fails
    assert len(found) == 10
    assert all(sorted(order) == list(range(20)) for order in found)
    assert len({tuple(order) for order in found}) == 10
    assert list(range(20)) not in found


def test_permutations_belong_to_the_benchmark_not_to_the_seed(fakes: dict[str, Dataset]) -> None:
    data = fakes["mnist"]
    first = permutations(make_stream("permuted-mnist", seed=1), data)
    assert permutations(make_stream("permuted-mnist", seed=2), data) == first
    settings = {"tasks": 3, "scenario": "class", "task_free": True, "epochs": 2, "batch_size": 9}
    assert permutations(make_stream("permuted-mnist", seed=2, **settings), data) == first[:3]
    random = np.random.default_rng(20221)  # results that were published stand on these
    assert first == [random.permutation(20).tolist() for _ in range(10)]


def test_the_stream_sends_permuted_images_of_the_right_task(fakes: dict[str, Dataset]) -> None:
    data = fakes["mnist"]
    stream = make_stream("permuted-mnist", tasks=3, epochs=1, batch_size=7)
    for order, (x, y) in zip(permutations(stream, data), sent(stream), strict=True):
        labels = dict(zip(as_bytes(data.train_x.flatten(1)[:, order], 1), data.train_y.tolist(), strict=True))
        assert x.shape[1:] == (1, 5, 4)
        assert sorted(as_bytes(x, 255)) == sorted(labels)
        assert y.tolist() == [labels[key] for key in as_bytes(x, 255)]


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_targets_of_permuted_tasks(fakes: dict[str, Dataset], scenario: str) -> None:
    data = fakes["mnist"]
    stream = make_stream("permuted-mnist", tasks=3, scenario=scenario, batch_size=16, epochs=2)
    assert stream.problem.outputs == (10 if scenario == "domain" else 30)
    heads = tuple(tuple(range(10 * t, 10 * t + 10)) for t in range(3))
    assert stream.problem.task_outputs == (heads if scenario == "task" else None)
    assert stream.problem.task_examples == (40, 40, 40)
    assert stream.problem.task_steps == (6, 6, 6)
    for number, task in enumerate(stream.tasks):
        shift = 0 if scenario == "domain" else 10 * number
        assert torch.equal(everything(task.train)[1], data.train_y + shift)
        assert torch.equal(everything(task.test)[1], data.test_y + shift)


def test_validation_of_permuted_tasks_keeps_the_permutation(fakes: dict[str, Dataset]) -> None:
    data = fakes["mnist"]
    whole, part = (make_stream("permuted-mnist", tasks=2, validation=v) for v in (0.0, 0.25))
    for order, before, after in zip(permutations(whole, data), whole.tasks, part.tasks, strict=True):
        held, rest = as_bytes(everything(after.test)[0], 255), as_bytes(everything(after.train)[0], 255)
        assert len(held) == 10
        assert sorted(held + rest) == sorted(as_bytes(everything(before.train)[0], 255))
        assert set(held).isdisjoint(as_bytes(data.test_x.flatten(1)[:, order], 1))


def test_class_order_has_no_meaning_where_all_tasks_have_all_classes(fakes: dict[str, Dataset]) -> None:
    with pytest.raises(InputError, match="every task of permuted-mnist has all classes"):
        make_stream("permuted-mnist", class_order="random")


def test_a_negative_number_of_tasks_is_refused(fakes: dict[str, Dataset]) -> None:
    with pytest.raises(InputError, match="tasks must be at least 1, got -1"):
        make_stream("permuted-mnist", tasks=-1)


def test_no_tasks_at_all_is_refused(fakes: dict[str, Dataset]) -> None:
    with pytest.raises(InputError, match="tasks must be at least 1, got 0"):
        make_stream("permuted-mnist", tasks=0)
