"""Settings of every method on the benchmarks: a fixed list of settings each, Domain-IL, boundaries, seed 0.

    .venv/bin/python -m experiments.methods.configuration          # writes src/hvcl/settings/METHOD.json from the recorded trials

The score is the average accuracy over tasks after the last one, on a tenth of the training data that was held out. Every
method may try as many settings (fewer only where it has fewer to try); of equal scores the first counts. Split MNIST with the
epochs of the standard budget; there, methods whose best lay on the edge of what they had tried got a second round. Permuted
MNIST with one epoch and three tasks, and the best two of each method again over all ten tasks; split CIFAR-10 with one epoch,
and the best three of each method again with the ten epochs of the standard budget: the scores of those finals count alone.
Both CIFARs with fixed features for pictures with the epochs of their standard budget, and six settings. The settings found in
Domain-IL are used in every scenario, and those of split CIFAR-10 on split CIFAR-100 as well. Not searched here: `hvcl` (topic
gates), `exact` (closed form; its settings are those of docs/exact), `hvcl-growing` (topic paths), `hvcl-paper`, as published,
and the methods with a generator (topic generative).
"""

import itertools
import random
from pathlib import Path

from experiments.topic import Final, Settings, Supervised, Topic
from hvcl.settings import save_searched

BENCHMARKS = ("split-mnist", "permuted-mnist", "split-cifar10", "split-cifar10-patches", "split-cifar100-patches")
PATCHES = BENCHMARKS[3:]
METHODS = (
    "agem",
    "bcl",
    "ccl-fp",
    "cldr",
    "cn-dpm",
    "den",
    "derpp",
    "er",
    "ewc",
    "gem",
    "hal",
    "hibnn",
    "joint",
    "lwf",
    "mas",
    "merlin",
    "naive",
    "ncl",
    "pathnet",
    "sam",
    "si",
    "tlr",
    "ucb",
    "ucl",
    "vcl",
)
AWAITED = ("bcl", "ccl-fp", "cldr", "cn-dpm", "den", "hibnn", "merlin", "pathnet", "sam")
"""Methods whose trials are declared and not all run yet: what a search has not set is their own default."""
NOT_ON_PATCHES = ("agem", "gem", "hal", "tlr", "ucb", *AWAITED)
TRIALS = {"split-mnist": 12, "permuted-mnist": 12, "split-cifar10": 6} | dict.fromkeys(PATCHES, 6)
RATES = {"split-mnist": (2e-4, 6e-4, 2e-3), "permuted-mnist": (2e-4, 6e-4, 2e-3), "split-cifar10": (3e-4, 1e-3)} | dict.fromkeys(
    PATCHES, (1e-4, 1e-3)
)
STREAMS = {
    "split-mnist": {"epochs": 4},
    "permuted-mnist": {"tasks": 3, "epochs": 1},
    "split-cifar10": {"epochs": 1},
    "split-cifar10-patches": {"epochs": 5},
    "split-cifar100-patches": {"epochs": 10},
}

# the second axis beside the learning rate
AXES = {
    "ewc": "strength",
    "si": "strength",
    "mas": "strength",
    "lwf": "strength",
    "vcl": "initial_sigma",
    "ucl": "strength",
    "ucb": "initial_sigma",
    "ncl": "strength",
    "tlr": "strength",
    "er": "replay_batch",
    "agem": "replay_batch",
    "gem": "margin",
    "hal": "strength",
    "bcl": "shift",
    "ccl-fp": "sharpness",
    "cldr": "selection",
    "hibnn": "expected_units",
    "den": "sparsity",
    "sam": "weight_decay",
    "cn-dpm": "log_concentration",
    "merlin": "tuning_rate",
    "pathnet": "population",
}
VALUES = {
    "split-mnist": {
        "ewc": (100.0, 1e3, 1e4, 1e5),
        "si": (0.1, 1.0, 10.0, 100.0),
        "mas": (0.01, 0.1, 1.0, 10.0),
        "lwf": (16.0, 0.5, 1.0, 4.0),
        "vcl": (0.01, 0.03, 0.1, 0.3),
        "ucl": (0.1, 1.0, 10.0, 100.0),
        "ucb": (1.0, 0.03, 0.1, 0.3),
        "ncl": (0.1, 1.0, 10.0, 100.0),
        "tlr": (1.0, 10.0, 100.0, 1000.0),
        "er": (512, 32, 128, 256),
        "agem": (32, 128, 256, 512),
        "gem": (0.25, 0.0, 0.5, 1.0),
        "hal": (0.03, 0.1, 0.3, 1.0),
        "bcl": (0.1, 0.03, 0.01, 0.003),
        "ccl-fp": (3.0, 1.0, 10.0, 30.0),
        "cldr": (0.01, 1e-4, 1e-3, 0.1),
        "hibnn": (100.0, 10.0, 30.0, 300.0),
        "den": (0.2, 0.01, 0.05, 0.5),
        "sam": (0.005, 0.0, 5e-4, 0.02),
        "cn-dpm": (-400.0, -100.0, 100.0, 300.0),
        "merlin": (3e-3, 3e-4, 1e-3, 0.01),
        "pathnet": (8, 4, 16, 64),
    },
    "permuted-mnist": {
        "ewc": (500.0, 5e3, 5.0, 50.0),
        "si": (1.0, 10.0, 0.1, 100.0),
        "mas": (0.1, 1.0, 0.001, 0.01),
        "lwf": (1.0, 4.0, 0.25, 16.0),
        "vcl": (0.1, 0.3, 0.03, 1.0),
        "ucl": (1.0, 10.0, 0.1, 100.0),
        "ucb": (0.1, 0.3, 0.03, 1.0),
        "ncl": (1.0, 10.0, 0.1, 100.0),
        "tlr": (100.0, 1000.0, 10.0, 1e4),
        "er": (256, 512, 64, 128),
        "agem": (256, 512, 64, 128),
        "gem": (0.5, 1.0, 0.0, 0.25),
        "hal": (0.1, 0.3, 0.03, 1.0),
        "bcl": (0.1, 0.03, 0.01, 0.003),
        "ccl-fp": (3.0, 1.0, 10.0, 30.0),
        "cldr": (0.01, 1e-4, 1e-3, 0.1),
        "hibnn": (100.0, 10.0, 30.0, 300.0),
        "den": (0.2, 0.01, 0.05, 0.5),
        "sam": (0.005, 0.0, 5e-4, 0.02),
        "cn-dpm": (-400.0, -100.0, 100.0, 300.0),
        "merlin": (3e-3, 3e-4, 1e-3, 0.01),
        "pathnet": (8, 4, 16, 64),
    },
    "split-cifar10": {
        "ewc": (1e3, 1e4, 1e5),
        "si": (1.0, 10.0, 100.0),
        "mas": (0.1, 1.0, 10.0),
        "lwf": (1.0, 4.0, 16.0),
        "vcl": (0.03, 0.1, 0.3),
        "er": (64, 256, 512),
        "agem": (128, 256, 512),
        "ucl": (0.1, 1.0, 10.0),
        "ucb": (0.03, 0.1, 0.3),
        "ncl": (0.1, 1.0, 10.0),
        "tlr": (10.0, 100.0, 1000.0),
        "gem": (0.0, 0.5, 1.0),
        "hal": (0.03, 0.1, 0.3),
        "bcl": (1e-3, 0.01, 0.03),
        "ccl-fp": (1.0, 3.0, 10.0),
        "cldr": (1e-3, 0.01, 0.05),
        "hibnn": (30.0, 100.0, 300.0),
        "den": (0.01, 0.05, 0.2),
        "sam": (0.0, 5e-4, 0.005),
        "cn-dpm": (-450.0, 0.0, 200.0),
        "merlin": (1e-3, 3e-3, 0.01),
        "pathnet": (4, 8, 16),
    },
}
for _patches in PATCHES:
    VALUES[_patches] = VALUES["split-cifar10"] | {"ewc": (1e2, 1e3, 1e4), "si": (0.1, 1.0, 10.0)}
# methods with another optimiser than Adam, or another scale of steps
OWN_RATES = {
    "vcl": {"split-mnist": (3e-4, 1e-3, 3e-3), "permuted-mnist": (3e-4, 1e-3, 3e-3), "split-cifar10": (3e-4, 1e-3)},
    "ucl": {"split-mnist": (3e-4, 1e-3, 3e-3), "permuted-mnist": (3e-4, 1e-3, 3e-3), "split-cifar10": (3e-4, 1e-3)},
    "ucb": {"split-mnist": (0.01, 0.03, 0.1), "permuted-mnist": (0.01, 0.03, 0.1), "split-cifar10": (0.01, 0.03)},
    "hibnn": {"split-mnist": (1e-3, 3e-3, 0.01), "permuted-mnist": (1e-3, 3e-3, 0.01), "split-cifar10": (1e-3, 3e-3)},
    "den": {"split-mnist": (1e-3, 3e-3, 0.01), "permuted-mnist": (1e-3, 3e-3, 0.01), "split-cifar10": (1e-3, 3e-3)},
    "sam": {"split-mnist": (1e-3, 3e-3, 0.01), "permuted-mnist": (1e-3, 3e-3, 0.01), "split-cifar10": (1e-3, 0.01)},
    "ncl": {"split-mnist": (0.005, 0.02, 0.05), "permuted-mnist": (0.02, 0.05, 0.1), "split-cifar10": (0.005, 0.02)},
}
# more for methods whose best lay on the edge of what they had tried
SECOND_ROUND = {
    "split-mnist": {
        "ewc": [{"learning_rate": rate, "strength": s} for s in (1e6, 1e7) for rate in (2e-4, 6e-4, 2e-3)],
        "si": [{"learning_rate": rate, "strength": s} for s in (1e3, 1e4) for rate in (6e-4, 2e-3, 6e-3)],
        "mas": [{"learning_rate": rate, "strength": s} for s in (100.0, 1e3) for rate in (6e-4, 2e-3, 6e-3)],
        "ncl": [{"learning_rate": rate, "strength": s} for s in (0.1, 1.0) for rate in (0.1, 0.2, 0.5)],
    },
}

# the best of the first trials, which are short, again in full
FINALS = tuple(Final("permuted-mnist", method, 2, {"tasks": 10}) for method in METHODS) + tuple(
    Final("split-cifar10", method, 3, {"epochs": 10}) for method in METHODS
)


def space(benchmark: str, method: str) -> list[Settings]:
    """What a method may try on a benchmark: its first round, and a second where it has one."""
    return first_round(benchmark, method) + SECOND_ROUND.get(benchmark, {}).get(method, [])


def first_round(benchmark: str, method: str) -> list[Settings]:
    """As many settings for each method: a grid of two axes, or random draws where there are more."""
    if benchmark in PATCHES and method in NOT_ON_PATCHES:
        return []
    own = OWN_RATES.get(method, RATES)
    rates = own[benchmark] if benchmark in own else own["split-cifar10"]
    trials = TRIALS[benchmark]
    if method in ("naive", "joint"):
        return [{"learning_rate": rate} for rate in rates]
    if method in AXES:
        pairs = itertools.product(VALUES[benchmark][method], rates)
        return [{"learning_rate": rate, AXES[method]: value} for value, rate in pairs]
    grid = {"learning_rate": rates, "alpha": (0.1, 0.3, 1.0), "beta": (0.3, 1.0)}  # derpp has three
    every = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return random.Random(0).sample(every, trials)


TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Supervised(stream={"validation": 0.1}, streams=STREAMS),
    benchmarks=BENCHMARKS,
    methods=METHODS,
    space=space,
    finals=FINALS,
)


def tuned() -> dict[str, dict[str, Settings]]:
    """The best settings, by benchmark and method."""
    found: dict[str, dict[str, Settings]] = {}
    for (benchmark, method), record in TOPIC.best(TOPIC.records()).items():
        found.setdefault(benchmark, {})[method] = record["settings"]
    found["split-cifar100"] = found["split-cifar10"]
    return {name: dict(sorted(found[name].items())) for name in (*BENCHMARKS, "split-cifar100") if name in found}


if __name__ == "__main__":
    for benchmark, methods in tuned().items():
        for method, settings in methods.items():
            save_searched(benchmark, method, settings)
