"""The named benchmarks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
import torch

from hvcl.core.configuration import configure, to_json
from hvcl.core.errors import InputError
from hvcl.core.registry import Registry
from hvcl.streams.arrays import deal, order_classes
from hvcl.streams.datasets import Dataset, load
from hvcl.streams.stream import Stream, StreamConfig
from hvcl.streams.tasks import Part, label, split_by_class


@dataclass(frozen=True)
class Benchmark:
    """A data set, how it is cut into tasks, and the settings that go with it."""

    name: str
    description: str
    dataset: str
    classes_per_task: int | None
    """Classes of each task; None: every task has all classes, its inputs permuted."""
    stream: dict[str, Any] = field(default_factory=dict)
    """Defaults of `StreamConfig` on this benchmark."""
    learner: dict[str, Any] = field(default_factory=dict)
    """Defaults of every method's configuration on this benchmark: the paper's architecture and learning rate."""
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Defaults of single methods on this benchmark, by name."""
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Defaults of `StreamConfig` for single methods on this benchmark, by name."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Epochs of each budget (quick, standard, paper)."""

    def build(self, config: StreamConfig, seed: int) -> Stream:
        """The stream; data that are missing are fetched."""
        data = load(self.dataset)
        parts = self._permuted(data, config) if self.classes_per_task is None else self._split(data, config, seed)
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


_TUNED: dict[str, dict[str, dict[str, Any]]] = json.loads(resources.files("hvcl.streams").joinpath("tuned.json").read_text())
"""The best settings of experiments/methods: validation data, seed 0, Domain-IL."""


# a benchmark's learning rate is that of Adam on plain weights: what steps otherwise has its own
_RATES: dict[str, float] = {"ncl": 0.02, "ucb": 0.03, "ucl": 1e-3, "vcl": 1e-3}


def _methods(benchmark: str, chosen: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings of methods on a benchmark: those `chosen` by hand, and over them what the search found."""
    rates = {name: {"learning_rate": rate} for name, rate in _RATES.items()}
    found = _TUNED.get(benchmark, {})
    return {name: rates.get(name, {}) | chosen.get(name, {}) | found.get(name, {}) for name in sorted({*rates, *chosen, *found})}


_CONV = {"channels": (8, 16, 32, 64, 128), "hidden": (256, 256), "learning_rate": 3e-4}
# the exact expectation over labels costs a backward pass for each label
_SAMPLED: dict[str, dict[str, Any]] = {name: {"fisher": "sampled"} for name in ("ewc", "ncl")}
# predictions of every test set after every task, each of ten draws, would take longer than the training
_MEANS: dict[str, dict[str, Any]] = {"vcl": {"samples": 0}}
# the best of experiments/generative: held-out digits, seed 0
_HVCL_REPLAY: dict[str, Any] = {
    "learning_rate": 1e-3,
    "beta_expert": 0.01,
    "schedule": "constant",
    "conditional": True,
    "separate": True,
    "temperature": 2.0,
    "balance": "tasks",
    "refresh": True,
}
# likewise on the first tasks of permuted digits: gates that may not move, or old tasks lose experts that they rely on
_REPLAY_PERMUTED_MOVE: dict[str, Any] = {
    "learning_rate": 2e-3,
    "anneal": True,
    "balance": "half",
    "beta_gate": 0.1,
    "estimator": "local",
    "sigma": "unit",
}
# a latent mixture of three, as the paper has for photographs
_PHOTO_REPLAY: dict[str, Any] = {**_HVCL_REPLAY, "latent": 128, "vae_experts": 2, "latent_experts": 3}
_PHOTOS: dict[str, dict[str, Any]] = {
    # objects in photographs have no preferred side; digits do
    "exact": {"filters": 2000, "mirror": True},
    "hvcl-replay": _PHOTO_REPLAY,
    **_SAMPLED,
    **_MEANS,
}
# van de Ven & Tolias: 2,000 steps a task of 128 digits with networks of 400 units; 5,000 of 256 permuted ones with 1,000 units
_GENERATIVE = ("dgr", "dgr-distill", "rtf")
_REPLAY_SPLIT: dict[str, dict[str, Any]] = {name: {"hidden": (400, 400), "learning_rate": 1e-3} for name in _GENERATIVE}
_REPLAY_PERMUTED: dict[str, dict[str, Any]] = {
    name: {"hidden": (1000, 1000), "learning_rate": 1e-4} | ({} if name == "rtf" else {"vae_learning_rate": 1e-4})
    for name in _GENERATIVE
}
BENCHMARKS: Registry[Benchmark] = Registry("benchmark")
BENCHMARKS.update(
    (benchmark.name, benchmark)
    for benchmark in (
        Benchmark(
            "split-digits",
            "8x8 digits that ship with scikit-learn, five tasks: 0/1 2/3 4/5 6/7 8/9; no download",
            "digits",
            2,
            {"epochs": 10, "batch_size": 32},
            {"hidden": (64, 64), "learning_rate": 1e-3},
            # the best of experiments/split_digits: validation data, seed 0, Domain-IL
            _methods(
                "split-digits",
                {
                    "joint": {"learning_rate": 3e-3},
                    "hvcl": {
                        "learning_rate": 3e-4,
                        "estimator": "local",
                        "usage": "uniform",
                        "beta_gate": 0.1,
                        "beta_expert": 0.005,
                        "diversity": 0.0,
                    },
                    "exact": {"random_features": 1000},
                },
            ),
            epochs={"quick": 2, "standard": 10, "paper": 150},
        ),
        Benchmark(
            "split-mnist",
            "MNIST, five tasks: 0/1 2/3 4/5 6/7 8/9",
            "mnist",
            2,
            {"epochs": 10},
            {"hidden": (256, 256), "learning_rate": 6e-4},
            _methods(
                "split-mnist",
                {
                    "exact": {"filters": 450, "sizes": (9,), "grid": 3},
                    "hvcl-growing": {"learning_rate": 1e-3},
                    "hvcl-replay": _HVCL_REPLAY,
                    **_REPLAY_SPLIT,
                },
            ),
            {
                "hvcl-growing": {"epochs": 4},
                "hvcl-replay": {"epochs": 20, "batch_size": 128},
                **{name: {"epochs": 21, "batch_size": 128} for name in _GENERATIVE},
            },
            epochs={"quick": 1, "standard": 4, "paper": 150},
        ),
        Benchmark(
            "permuted-mnist",
            "MNIST, ten tasks, each with a fixed random permutation of the pixels (none the identity)",
            "mnist",
            None,
            {"epochs": 10},
            {"hidden": (512, 512), "learning_rate": 6e-4},
            _methods(
                "permuted-mnist",
                {
                    "exact": {"separate": True, "random_features": 6000},
                    **_MEANS,
                    # as many steps of the generator as a task of split MNIST gives it
                    "tlr": {"generator_epochs": 4},
                    # the VAE of split MNIST: permuted digits are no harder to it
                    "hvcl-replay": {**_HVCL_REPLAY, **_REPLAY_PERMUTED_MOVE, "vae_hidden": (256, 256)},
                    **_REPLAY_PERMUTED,
                    **_SAMPLED,
                },
            ),
            # an expert's features are taken from its first batch
            {"exact": {"batch_size": 1000}, "hvcl-replay": {"epochs": 8}, **{name: {"epochs": 21} for name in _GENERATIVE}},
            epochs={"quick": 1, "standard": 1, "paper": 150},
        ),
        Benchmark(
            "split-cifar10",
            "CIFAR-10, five tasks of two classes in label order",
            "cifar10",
            2,
            {"epochs": 20},
            _CONV,
            _methods("split-cifar10", _PHOTOS),
            # as many as the standard budget has, for the comparison with hvcl
            {"hvcl-replay": {"epochs": 2}},
            epochs={"quick": 1, "standard": 2, "paper": 1000},
        ),
        Benchmark(
            "split-cifar100",
            "CIFAR-100, ten tasks of ten classes in label order",
            "cifar100",
            10,
            {"epochs": 20},
            _CONV,
            _methods("split-cifar100", _PHOTOS),
            {"hvcl-replay": {"epochs": 2}},
            epochs={"quick": 1, "standard": 2, "paper": 1000},
        ),
    )
)


def benchmark(name: str) -> Benchmark:
    """The benchmark called `name`."""
    return BENCHMARKS[name]


def make_stream(name: str, config: StreamConfig | None = None, seed: int = 0, **settings: Any) -> Stream:
    """The stream of a named benchmark, e.g. ``make_stream("split-mnist", seed=1, scenario="class", epochs=4)``.

    `settings` are fields of `StreamConfig`; what they leave open takes the benchmark's defaults. A whole `config` takes
    their place.
    """
    chosen = benchmark(name)
    if config is None:
        config = configure(StreamConfig, chosen.stream | settings)
    elif settings:
        config = configure(StreamConfig, to_json(config) | settings)
    return chosen.build(config, seed)
