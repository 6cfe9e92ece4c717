"""What each part of a MoVE network is worth with the paper's objective: `hvcl`, Domain-IL, boundaries, no memory, seed 0.

    .venv/bin/python -m experiments.search gates                              # one change at a time, then what was found together

Every trial says learning accuracy, forgetting, I(M;X) of every gate and average accuracy, on a tenth of the training data that
was held out. `BASE` is where each benchmark starts; `CHANGES` are tried one at a time on top of it; `TOGETHER` combines those
that paid. Split MNIST with four epochs a task, split CIFAR-10 with two, and
with ten for a few that were asked for one by one (their scores count), permuted MNIST with one epoch and three tasks.
What is left open is as `OPEN` has it. The settings that `hvcl` has now come from topic retention.
"""

from pathlib import Path

from experiments.topic import Settings, Supervised, Topic

STREAMS = {"split-mnist": {"epochs": 4}, "permuted-mnist": {"tasks": 3, "epochs": 1}, "split-cifar10": {"epochs": 2}}
OPEN: Settings = {
    "experts": 2,
    "top_k": 1,
    "sigma": "weight",
    "routing": "argmax",
    "usage": "gate",
    "initial_sigma": 0.1,
    "prior_sigma": None,
    "first_prior": "zero",
    "retention": 1.0,
    "sigma_rate": 1.0,
    "gate_grid": 1,
    "gate_input": False,
    "layer_norm": False,
    "marginal_entropy": 0.0,
}
PLAIN = {"estimator": "local", "conditional_entropy": 0.0, "diversity": 0.0}
BASE: dict[str, Settings] = {
    "split-mnist": PLAIN
    | {"learning_rate": 6e-4, "beta_expert": 3.0, "beta_gate": 0.1, "schedule": "cyclic", "routing": "sample"},
    "permuted-mnist": PLAIN
    | {
        "learning_rate": 1e-3,
        "beta_expert": 1.0,
        "beta_gate": 0.1,
        "schedule": "constant",
        "initial_sigma": 0.3,
        "prior_sigma": 1.0,
    },
    "split-cifar10": PLAIN | {"learning_rate": 1e-3, "beta_expert": 0.01, "beta_gate": 0.1, "schedule": "constant"},
}
CHANGES: dict[str, list[Settings]] = {
    "every": [
        {},
        {"routing": "argmax"},
        {"routing": "straight-through"},
        {"routing": "sample"},
        {"experts": 4},
        {"experts": 4, "routing": "straight-through"},
        {"experts": 1},
        {"first_prior": "start"},
        {"first_prior": "start", "beta_expert": 1.0, "schedule": "constant"},
        {"gate_input": True, "routing": "straight-through"},
        {"beta_expert": 10.0},
        {"beta_gate": 0.0},
        {"beta_gate": 1.0},
        {"initial_sigma": 1.4},
        {"marginal_entropy": -0.1, "routing": "straight-through"},
        {"marginal_entropy": -0.1, "conditional_entropy": 0.1, "routing": "straight-through"},
        {"diversity": 0.01},
        {"layer_norm": True, "routing": "straight-through"},
        {"estimator": "flipout"},
        {"usage": "uniform"},
    ],
    "split-mnist": [],
    "permuted-mnist": [],
    "split-cifar10": [
        {"gate_grid": 4, "routing": "straight-through"},
        {"gate_grid": 4, "gate_input": True, "routing": "straight-through"},
    ],
}
START = {"first_prior": "start"}
THROUGH = {"routing": "straight-through"}
STEADY = {"schedule": "constant"}
TOGETHER: dict[str, list[Settings]] = {
    "split-mnist": [
        START | {"learning_rate": 2e-3},
        START | {"beta_expert": 10.0},
        START | {"learning_rate": 2e-3, "beta_expert": 10.0},
        START | {"learning_rate": 2e-3, "beta_expert": 30.0},
        START | {"learning_rate": 6e-3, "beta_expert": 30.0},
        START | {"beta_expert": 10.0, "routing": "straight-through"},
        START | {"learning_rate": 2e-3, "beta_expert": 10.0, "routing": "straight-through"},
        START | {"learning_rate": 2e-3, "beta_expert": 10.0, "experts": 4},
        START | {"learning_rate": 2e-3, "beta_expert": 10.0, "experts": 1},
        START | {"learning_rate": 2e-3, "beta_expert": 10.0, "beta_gate": 1.0},
        START | STEADY,
        START | STEADY | THROUGH,
        START | STEADY | {"beta_expert": 10.0},
        START | STEADY | {"learning_rate": 2e-3},
        START | STEADY | {"learning_rate": 2e-3, "beta_expert": 10.0},
        START | STEADY | {"initial_sigma": 0.03},
        START | STEADY | {"initial_sigma": 0.03, "beta_expert": 0.3},
        START | {"initial_sigma": 0.03},
        START | STEADY | {"initial_sigma": 0.03, "beta_expert": 1.0},
        START | STEADY | {"initial_sigma": 0.03, "beta_expert": 0.1},
        START | STEADY | {"initial_sigma": 0.01, "beta_expert": 0.1},
        START | STEADY | {"initial_sigma": 0.03, "beta_expert": 0.3, "learning_rate": 1e-3},
        START | STEADY | {"initial_sigma": 0.03, "beta_expert": 0.3, "beta_gate": 0.0},
    ],
    "permuted-mnist": [
        START | {"prior_sigma": None},
        START | {"prior_sigma": None, "initial_sigma": 0.1},
        START | {"prior_sigma": None, "initial_sigma": 0.1, "learning_rate": 2e-3},
        START | {"prior_sigma": None, "initial_sigma": 0.1, "routing": "straight-through"},
        START | {"prior_sigma": None, "initial_sigma": 0.1, "beta_expert": 0.3, "routing": "straight-through"},
        START | {"prior_sigma": None, "initial_sigma": 0.1, "beta_expert": 3.0, "routing": "straight-through"},
        START | {"prior_sigma": None, "initial_sigma": 0.1, "learning_rate": 2e-3, "routing": "straight-through"},
        START | {"prior_sigma": None, "initial_sigma": 0.3, "learning_rate": 2e-3, "routing": "straight-through"},
        THROUGH | {"diversity": 0.01},
        THROUGH | {"learning_rate": 2e-3},
        THROUGH | {"beta_gate": 0.0},
        THROUGH | {"beta_gate": 0.0, "marginal_entropy": -0.1, "conditional_entropy": 0.1},
        THROUGH | {"beta_expert": 2.0},
        THROUGH | {"beta_expert": 0.5},
        THROUGH | {"beta_expert": 0.3},
        THROUGH | {"beta_expert": 0.1},
        THROUGH | {"beta_expert": 0.3, "learning_rate": 2e-3},
        THROUGH | {"beta_expert": 0.3, "initial_sigma": 0.1},
        START | THROUGH,
    ],
    "split-cifar10": [
        START | {"beta_expert": 0.1, "routing": "straight-through"},
        START | {"beta_expert": 1.0, "routing": "straight-through"},
        START | {"beta_expert": 10.0, "routing": "straight-through"},
        START | {"beta_expert": 1.0, "routing": "straight-through", "learning_rate": 3e-4},
        START | {"beta_expert": 1.0, "routing": "straight-through", "gate_grid": 4},
        START | {"beta_expert": 1.0, "routing": "sample"},
    ],
}


def space(benchmark: str, method: str) -> list[Settings]:
    """One change at a time, and then together."""
    found: list[Settings] = []
    for change in CHANGES["every"] + CHANGES[benchmark] + TOGETHER[benchmark]:
        settings = BASE[benchmark] | change
        if settings not in found:
            found.append(settings)
    return found


TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Supervised(stream={"validation": 0.1}, streams=STREAMS, learner=OPEN),
    benchmarks=tuple(STREAMS),
    methods=("hvcl",),
    space=space,
)
