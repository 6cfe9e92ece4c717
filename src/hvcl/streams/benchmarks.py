"""The named benchmarks, and folders of pictures by the name folder:DIR."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hvcl.core.configuration import configure, to_json
from hvcl.core.errors import InputError
from hvcl.core.random import check_seed
from hvcl.core.registry import Registry
from hvcl.streams.arrays import deal, order_classes
from hvcl.streams.datasets import Dataset, load
from hvcl.streams.folders import read_folder
from hvcl.streams.fronts import Front
from hvcl.streams.stream import Stream, StreamConfig
from hvcl.streams.tasks import Part, label, split_by_class

MOST_TASKS = 1000
"""Tasks of a benchmark that leaves their number open."""


@dataclass(frozen=True)
class Benchmark:
    """A data set, how it is cut into tasks, and how long they are trained."""

    name: str
    description: str
    dataset: str
    classes_per_task: int | None
    """Classes of each task; None: every task has all classes, its inputs permuted."""
    stream: dict[str, Any] = field(default_factory=dict)
    """Defaults of `StreamConfig` on this benchmark."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Epochs of each budget (quick, standard, paper)."""
    front: Front | None = None
    """Fixed features that take the place of the pictures."""

    def build(self, config: StreamConfig, seed: int) -> Stream:
        """The stream; data that are missing are fetched."""
        if config.classes_per_task is not None or config.size is not None:
            raise InputError(f"{self.name} has classes and pictures of its own: classes_per_task and size are for {FOLDER}DIR")
        data = load(self.dataset)
        parts = self._permuted(data, config) if self.classes_per_task is None else self._split(data, config, seed)
        if self.front is not None:
            data = self.front.apply(self.name, data, parts[0].train_rows)
        train, test = (data.train_x, data.train_y), (data.test_x, data.test_y)
        return Stream(label(parts, train, test, data.scale, config.scenario), config, seed, self.name)

    def _split(self, data: Dataset, config: StreamConfig, seed: int) -> list[Part]:
        if config.tasks is not None:
            raise InputError(f"{self.name} has as many tasks as its classes make: leave tasks out")
        classes = order_classes(data.train_y.unique().tolist(), config.class_order, seed)
        return split_by_class(data.train_y, data.test_y, deal(classes, self.classes_per_task or 1))

    def _permuted(self, data: Dataset, config: StreamConfig) -> list[Part]:
        count = 10 if config.tasks is None else config.tasks
        if count < 1:
            raise InputError(f"tasks must be at least 1, got {count}")
        if count > MOST_TASKS:
            raise InputError(f"tasks must be at most {MOST_TASKS:,}, got {count:,}: all of them are tested after each")
        if config.class_order != "label":
            raise InputError(f"every task of {self.name} has all classes: class_order has no meaning here")
        # the permutations are part of the benchmark, the same for every seed; none of them is the identity
        random = np.random.default_rng(20221)
        pixels = data.train_x[0].numel()
        classes = tuple(data.train_y.unique().tolist())
        every, every_test = torch.arange(len(data.train_y)), torch.arange(len(data.test_y))
        return [
            Part(f"permutation {i + 1}", classes, every, every_test, torch.from_numpy(random.permutation(pixels)))
            for i in range(count)
        ]


@dataclass(frozen=True)
class FolderBenchmark(Benchmark):
    """A user's folder of pictures (`hvcl.streams.folders`), its classes dealt out to tasks; `dataset` is the folder."""

    def build(self, config: StreamConfig, seed: int) -> Stream:
        """The stream; reads all pictures."""
        if config.classes_per_task is None:
            raise InputError(f"how many classes has a task of {self.name}? Say classes_per_task (--classes-per-task 2)")
        if config.tasks is not None:
            raise InputError(f"{self.name} has as many tasks as its classes make: leave tasks out")
        found = read_folder(Path(self.dataset), config.size)
        data = found.data
        groups = deal(order_classes(range(len(found.classes)), config.class_order, seed), config.classes_per_task)
        names = ["/".join(found.classes[label] for label in group) for group in groups]
        parts = split_by_class(data.train_y, data.test_y, groups, names)
        train, test = (data.train_x, data.train_y), (data.test_x, data.test_y)
        return Stream(label(parts, train, test, data.scale, config.scenario), config, seed, self.name)


FOLDER = "folder:"
"""What the name of a folder as a benchmark begins with."""

BENCHMARKS: Registry[Benchmark] = Registry("benchmark")
for _benchmark in (
    Benchmark(
        "split-digits",
        "8x8 digits that ship with scikit-learn, five tasks: 0/1 2/3 4/5 6/7 8/9; no download",
        "digits",
        2,
        {"epochs": 10, "batch_size": 32},
        {"quick": 2, "standard": 10, "paper": 150},
    ),
    Benchmark(
        "split-mnist",
        "MNIST, five tasks: 0/1 2/3 4/5 6/7 8/9",
        "mnist",
        2,
        {"epochs": 10},
        {"quick": 1, "standard": 4, "paper": 150},
    ),
    Benchmark(
        "permuted-mnist",
        "MNIST, ten tasks, each with a fixed random permutation of the pixels (none the identity)",
        "mnist",
        None,
        {"epochs": 10},
        {"quick": 1, "standard": 1, "paper": 150},
    ),
    Benchmark(
        "split-cifar10",
        "CIFAR-10, five tasks of two classes in label order",
        "cifar10",
        2,
        {"epochs": 20},
        {"quick": 1, "standard": 10, "paper": 1000},
    ),
    Benchmark(
        "split-cifar100",
        "CIFAR-100, ten tasks of ten classes in label order",
        "cifar100",
        10,
        {"epochs": 20},
        {"quick": 1, "standard": 10, "paper": 1000},
    ),
    Benchmark(
        "split-cifar10-patches",
        "split-cifar10 with fixed features of patches for pictures, the same for every method",
        "cifar10",
        2,
        {"epochs": 5},
        {"quick": 1, "standard": 5, "paper": 1000},
        Front(),
    ),
    Benchmark(
        "split-cifar100-patches",
        "split-cifar100 with fixed features of patches for pictures, the same for every method",
        "cifar100",
        10,
        {"epochs": 10},
        {"quick": 1, "standard": 10, "paper": 1000},
        Front(),
    ),
):
    BENCHMARKS[_benchmark.name] = _benchmark


def benchmark(name: str) -> Benchmark:
    """The benchmark called `name`; "folder:DIR" is the folder of pictures DIR."""
    if name.startswith(FOLDER):
        folder = name.removeprefix(FOLDER)
        if not folder:
            raise InputError("which folder? folder:DIR, where DIR has a folder of pictures for each class")
        epochs = {"quick": 1, "standard": 10, "paper": 100}
        return FolderBenchmark(name, f"the pictures in {folder}", folder, None, {"epochs": 10, "batch_size": 64}, epochs)
    return BENCHMARKS[name]


def make_stream(name: str, config: StreamConfig | None = None, seed: int = 0, **settings: Any) -> Stream:
    """The stream of a named benchmark, e.g. ``make_stream("split-mnist", seed=1, scenario="class", epochs=4)``.

    `settings` are fields of `StreamConfig`; what they leave open takes the benchmark's defaults. A whole `config` takes
    their place.
    """
    if not isinstance(name, str):
        raise InputError(f"make_stream takes the name of a benchmark, got {type(name).__name__}: from_arrays takes your own data")
    chosen = benchmark(name)
    check_seed(seed)
    if config is None:
        config = configure(StreamConfig, chosen.stream | settings)
    elif settings:
        config = configure(StreamConfig, to_json(config) | settings)
    return chosen.build(config, seed)
