"""One generative gate in front of growing MoVE layers (`hvcl-growing`): what its parts are worth, Domain-IL, no memory, seed 0.

    .venv/bin/python -m experiments.search paths                              # the whole list; goes on where it stopped
    .venv/bin/python -m experiments.paths.configuration                      # writes src/hvcl/settings/hvcl-growing.json

Boundaries are given, so that every trial has the same experts: how often a task-free gate finds them is another question,
which the tables answer. On a tenth of the training data that was held out. Asked are: who recognises the expert of a picture,
the gate's Gaussians or what the exact learner's sums say of p(expert|x) (`recognition`); whether a network learns its first
layers or stands on fixed features (`front`); whether a new expert starts afresh, from the last, or from the one that explains
the new data best (`start`: the paper's transfer); whether paths share their first layers (`shared`); whether it stands on all
features or on principal directions of them (`directions`). Split MNIST with four epochs a task, permuted MNIST with five
epochs and three tasks, split CIFAR-10 with two epochs; split CIFAR-100, whose tasks have half as many pictures of five times
as many classes, with eight. earlier.jsonl has six trials from before patch features became faster (the same features up to 2
% of their variance), which are not counted.
"""

from pathlib import Path

from experiments.topic import Settings, Supervised, Topic
from hvcl.settings import save_searched

STREAMS = {
    "split-mnist": {"epochs": 4},
    "permuted-mnist": {"tasks": 3, "epochs": 5},
    "split-cifar10": {"epochs": 2},
    "split-cifar100": {"epochs": 8},
}
# in full: what a trial leaves open is as the benchmark has it
EVIDENCE, GAUSSIANS = {"recognition": "evidence"}, {"recognition": "gaussians"}
PLAIN = {"front": False, "directions": 0, "start": "fresh", "shared": 0, "dropout": 0.0, "beta_expert": 0.01}
PATCHES = {"filters": 500, "stride": 1, "sizes": (5, 8), "grid": 2, "mirror": True, "warmup": 1000}
FRONT = PLAIN | PATCHES | EVIDENCE | {"front": True, "channels": (), "hidden": (256,), "learning_rate": 3e-4}
CONV = PLAIN | PATCHES | EVIDENCE | {"channels": (32, 64, 128), "hidden": (256,), "learning_rate": 1e-3}
ROTATED = {"directions": 900, "learning_rate": 1e-3}
FAR = {"stride": 2, "sizes": (6,), "filters": 1000}
DENSE = PLAIN | GAUSSIANS | {"learning_rate": 1e-3}
DIGITS = {"front": True, "hidden": (256,), "filters": 160, "sizes": (7,), "grid": 3}
PIXELS = PLAIN | GAUSSIANS | {"learning_rate": 6e-4}
SPACE: dict[str, list[Settings]] = {
    "split-mnist": [
        DENSE,
        DENSE | {"start": "best"},
        DENSE | {"start": "last"},
        DENSE | {"shared": 1},
        DENSE | EVIDENCE,
        DENSE | DIGITS,
        DENSE | DIGITS | EVIDENCE,
    ],
    "permuted-mnist": [
        PIXELS,
        PIXELS | {"dropout": 0.2},
        PIXELS | {"learning_rate": 2e-3},
        PIXELS | {"beta_expert": 0.1},
        PIXELS | {"start": "best"},
        PIXELS | {"shared": 1},
    ],
    "split-cifar10": [
        FRONT,
        FRONT | FAR,
        FRONT | {"filters": 1000},
        FRONT | ROTATED,
        FRONT | ROTATED | {"filters": 1000},
        FRONT | ROTATED | {"filters": 1000, "dropout": 0.3},
        FRONT | GAUSSIANS,
        CONV,
        FRONT | {"start": "best"},
        FRONT | {"shared": 1},
        CONV | GAUSSIANS,
        CONV | {"start": "best"},
        CONV | {"shared": 2},
    ],
    "split-cifar100": [
        FRONT | {"filters": 1000},
        FRONT | ROTATED | {"filters": 1000},
        FRONT | ROTATED | {"filters": 1000, "dropout": 0.3},
    ],
}

TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Supervised(stream={"validation": 0.1}, streams=STREAMS),
    benchmarks=tuple(STREAMS),
    methods=("hvcl-growing",),
    space=lambda benchmark, method: SPACE[benchmark],
)


def tuned() -> dict[str, Settings]:
    """The best settings of each benchmark."""
    return {benchmark: record["settings"] for (benchmark, _), record in TOPIC.best(TOPIC.records()).items()}


if __name__ == "__main__":
    for name, settings in tuned().items():
        save_searched(name, "hvcl-growing", settings)
