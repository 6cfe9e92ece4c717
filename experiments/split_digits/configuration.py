"""Settings of naive, joint and hvcl on split-digits: random draws, then a grid over how firmly hvcl holds what it has learned.

Domain-IL, boundaries, memory-free. Every setting is trained with two initialisations on the stream of seed 0; the score is the
mean final average accuracy on the quarter of the training data that was held out.
"""

import itertools
import random
from pathlib import Path

from experiments.topic import Settings, Supervised, Topic

RATES = (3e-4, 1e-3, 3e-3)
CHOICES = {
    "experts": (2, 4),
    "initial_sigma": (0.05, 0.1, 0.3, 0.7),
    "beta_expert": (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    "beta_gate": (0.002, 0.1, 1.0),
    "usage": ("gate", "uniform"),
    "schedule": ("constant", "cyclic"),
    "routing": ("argmax", "sample"),
    "estimator": ("flipout", "local"),
    "conditional_entropy": (0.0, 0.01, 0.1),
    "marginal_entropy": (0.0, -0.1),
    "diversity": (0.0, 0.01, 0.1),
    "learning_rate": RATES,
}
HELD = {
    "experts": 2,
    "estimator": "local",
    "routing": "straight-through",
    "first_prior": "zero",
    "prior_sigma": None,
    "schedule": "constant",
    "usage": "gate",
    "beta_gate": 0.1,
    "conditional_entropy": 0.1,
    "marginal_entropy": 0.1,
    "diversity": 0.0,
    "initial_sigma": 0.3,
}
"""What the search over retention (experiments/retention) has in common on all benchmarks."""


def space(benchmark: str, method: str) -> list[Settings]:
    """Three learning rates for the bounds; for hvcl 64 random draws, and 24 settings with retention."""
    if method in ("naive", "joint"):
        return [{"learning_rate": rate} for rate in RATES]
    draws = random.Random(0)
    found = [{name: draws.choice(values) for name, values in CHOICES.items()} for _ in range(64)]
    grid = itertools.product((1e-3, 3e-3), (10.0, 30.0), (1e-3, 1e-2), (1e2, 1e3, 1e4))
    names = ("learning_rate", "sigma_rate", "beta_expert", "retention")
    return found + [HELD | dict(zip(names, values, strict=True)) for values in grid]


TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Supervised(stream={"scenario": "domain", "validation": 0.25}, initialisations=(0, 1000)),
    benchmarks=("split-digits",),
    methods=("naive", "joint", "hvcl"),
    space=space,
)
