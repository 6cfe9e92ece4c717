"""How firmly `hvcl` should hold what it has learned, and how fast its sigmas learn: Domain-IL, boundaries, no memory, seed 0.

    .venv/bin/python -m experiments.search retention                          # the whole list; goes on where it stopped
    .venv/bin/python -m experiments.retention.configuration                   # writes src/hvcl/settings/hvcl.json

`retention` is lambda of generalised variational continual learning (Loo, Swaroop & Turner, 2021): with 1, the paper's
objective, a weight is held as Bayes' rule has it. `sigma_rate` is the step size of the log sigmas over that of the means.
Both are new beside what topic gates tries, and settings are chosen here over whole streams (split MNIST: four epochs a task,
permuted MNIST: one epoch, all ten tasks, split CIFAR-10: ten epochs) and two initialisations, on a tenth of the training data
that was held out: choosing on one run chooses noise. `BASE` is where each benchmark starts (found by looks at shorter
streams), `AROUND` are its neighbours, `WITHOUT` takes one part away at a time. Split CIFAR-100 (ten epochs) starts from split
CIFAR-10's best, with which it ends below naive training (test data, seed 1), and asks how firmly ten tasks can be held. Both
CIFARs with fixed features for pictures have the epochs of their standard budget. More trials than other methods have: `hvcl`
is what is studied here, and the tables say so.
"""

from pathlib import Path

from experiments.topic import Settings, Supervised, Topic
from hvcl.settings import save_searched

STREAMS = {
    "split-mnist": {"epochs": 4},
    "permuted-mnist": {"tasks": 10, "epochs": 1},
    "split-cifar10": {"epochs": 10},
    "split-cifar100": {"epochs": 10},
    "split-cifar10-patches": {"epochs": 5},
    "split-cifar100-patches": {"epochs": 10},
}
COMMON = {
    "experts": 2,
    "estimator": "local",
    "routing": "straight-through",
    "first_prior": "zero",
    "prior_sigma": None,
    "schedule": "constant",
    "beta_gate": 0.1,
    "conditional_entropy": 0.1,
    "marginal_entropy": 0.1,
    "diversity": 0.0,
    "learning_rate": 1e-3,
}
BASE: dict[str, Settings] = {
    "split-mnist": COMMON | {"initial_sigma": 0.3, "sigma_rate": 30.0, "beta_expert": 1e-3, "retention": 1e4},
    "permuted-mnist": COMMON | {"initial_sigma": 0.3, "sigma_rate": 30.0, "beta_expert": 1e-2, "retention": 1e2},
    "split-cifar10": COMMON | {"initial_sigma": 0.1, "sigma_rate": 10.0, "beta_expert": 1e-3, "retention": 1e4},
    "split-cifar100": COMMON | {"initial_sigma": 0.1, "sigma_rate": 10.0, "beta_expert": 1e-3, "retention": 1e3},
    "split-cifar10-patches": COMMON | {"initial_sigma": 0.3, "sigma_rate": 10.0, "beta_expert": 1.0, "retention": 10.0},
    "split-cifar100-patches": COMMON | {"initial_sigma": 0.3, "sigma_rate": 10.0, "beta_expert": 1.0, "retention": 10.0},
}
PATCHES: list[Settings] = [
    {},
    {"retention": 30.0},
    {"retention": 100.0},
    {"beta_expert": 3.0},
    {"beta_expert": 3.0, "retention": 30.0},
    {"beta_expert": 0.1, "retention": 100.0},
    {"sigma_rate": 3.0},
    {"sigma_rate": 3.0, "retention": 30.0},
    {"learning_rate": 3e-3},
    {"learning_rate": 3e-3, "retention": 30.0},
    {"learning_rate": 3e-4},
    {"learning_rate": 3e-4, "sigma_rate": 30.0},
    {"initial_sigma": 0.1},
]
AROUND: dict[str, list[Settings]] = {
    "split-mnist": [
        {},
        {"retention": 3e3},
        {"retention": 3e4},
        {"beta_expert": 3e-4},
        {"beta_expert": 3e-3},
        {"beta_expert": 3e-3, "retention": 1e5},
        {"learning_rate": 2e-3},
        {"initial_sigma": 0.1},
    ],
    "permuted-mnist": [
        {},
        {"retention": 30.0},
        {"retention": 300.0},
        {"beta_expert": 1e-1},
        {"beta_expert": 1e-3},
        {"learning_rate": 2e-3},
        {"initial_sigma": 0.1},
    ],
    "split-cifar10": [
        {},
        {"retention": 1e3},
        {"retention": 1e5},
        {"beta_expert": 1e-4},
        {"beta_expert": 1e-4, "retention": 1e5},
        {"beta_expert": 1e-2},
        {"layer_norm": True},
        {"retention": 3e2},
        {"retention": 1e3, "layer_norm": True},
        {"retention": 1e3, "learning_rate": 3e-4, "sigma_rate": 30.0},
        {"retention": 1e3, "learning_rate": 3e-4, "sigma_rate": 30.0, "initial_sigma": 0.3},
        {"retention": 3e2, "learning_rate": 3e-4, "sigma_rate": 30.0},
        {"retention": 3e2, "learning_rate": 3e-4, "sigma_rate": 100.0},
        {"retention": 3e2, "learning_rate": 1e-4, "sigma_rate": 100.0},
    ],
    "split-cifar100": [
        {"learning_rate": 3e-4},
        {"learning_rate": 3e-4, "retention": 1e2},
        {"retention": 1e2},
        {"learning_rate": 3e-4, "beta_expert": 1e-2},
        {"retention": 30.0},
        {"retention": 1e2, "beta_expert": 1e-4},
        {"retention": 30.0, "layer_norm": True},
        {"retention": 10.0, "beta_expert": 1e-2},
        {"retention": 30.0, "beta_expert": 1e-2, "learning_rate": 3e-4, "sigma_rate": 30.0},
        {"retention": 30.0, "learning_rate": 3e-4, "sigma_rate": 30.0, "initial_sigma": 0.3},
    ],
    "split-cifar10-patches": [
        *PATCHES,
        {"beta_expert": 0.1, "retention": 300.0},
        {"beta_expert": 0.01, "retention": 1e3},
        {"beta_expert": 0.1, "retention": 100.0, "initial_sigma": 0.1},
        {"beta_expert": 0.1, "retention": 100.0, "learning_rate": 3e-4},
    ],
    "split-cifar100-patches": [
        *PATCHES,
        {"learning_rate": 3e-4, "sigma_rate": 30.0, "retention": 30.0},
        {"learning_rate": 3e-4, "sigma_rate": 30.0, "beta_expert": 0.1, "retention": 30.0},
        {"learning_rate": 3e-4, "sigma_rate": 30.0, "beta_expert": 0.1, "retention": 100.0},
        {"beta_expert": 0.1, "retention": 30.0},
    ],
}
WITHOUT: list[Settings] = [
    {"retention": 1.0},
    {"sigma_rate": 1.0},
    {"conditional_entropy": 0.0, "marginal_entropy": 0.0},
    {"routing": "argmax"},
    {"experts": 1},
    {"experts": 4},
]


def space(benchmark: str, method: str) -> list[Settings]:
    """Around the start, then one part less at a time."""
    without = [] if benchmark == "split-cifar100" else WITHOUT
    return [BASE[benchmark] | change for change in AROUND[benchmark] + without]


TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Supervised(stream={"validation": 0.1}, streams=STREAMS, initialisations=(0, 1000)),
    benchmarks=tuple(STREAMS),
    methods=("hvcl",),
    space=space,
)


def tuned() -> dict[str, Settings]:
    """The best settings of each benchmark with several experts: one expert has no gate, and stands there to compare."""
    several = [record for record in TOPIC.records() if record["settings"]["experts"] > 1]
    return {benchmark: record["settings"] for (benchmark, _), record in TOPIC.best(several).items()}


if __name__ == "__main__":
    for name, settings in tuned().items():
        save_searched(name, "hvcl", settings)
