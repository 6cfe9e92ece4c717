"""The search behind the split-digits defaults: random settings, scored on a validation part of the training data, seed 0.

    .venv/bin/python experiments/split_digits_search.py

Domain-IL, boundaries, memory-free. Every configuration is trained with two initialisations on the stream of seed 0; the score is
the mean final average accuracy on the held-out quarter of the training data. The test set is never touched. Results go to
split_digits_search.jsonl; configurations that are there already are passed over, so the search can be interrupted and goes on.
"""

import json
import random
from pathlib import Path

import torch

from hvcl.learners import create
from hvcl.runs import run
from hvcl.streams import make_stream

OUTPUT = Path(__file__).with_suffix(".jsonl")
INITIALISATIONS = (0, 1000)
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


def configurations():
    for method in ("naive", "joint"):
        for rate in RATES:
            yield method, {"learning_rate": rate}
    draws = random.Random(0)
    for _ in range(64):
        yield "hvcl", {name: draws.choice(values) for name, values in CHOICES.items()}


def score(method, settings):
    accuracies, learning = [], []
    for initialisation in INITIALISATIONS:
        stream = make_stream("split-digits", seed=0, scenario="domain", validation=0.25)
        if method == "joint":
            stream = stream.cumulative()
        learner = create(method, stream.problem, seed=initialisation, hidden=(64, 64), **settings)
        matrix = run(stream, learner)
        accuracies.append(matrix.average_accuracy)
        learning.append(matrix.learning_accuracy)
    return sum(accuracies) / len(accuracies), sum(learning) / len(learning)


def main():
    torch.set_num_threads(1)
    lines = OUTPUT.read_text().splitlines() if OUTPUT.exists() else []
    done = {json.dumps([r["method"], r["settings"]]) for r in map(json.loads, lines)}
    for method, settings in configurations():
        if json.dumps([method, settings]) in done:
            continue
        accuracy, learning = score(method, settings)
        record = {"method": method, "accuracy": accuracy, "learning_accuracy": learning, "settings": settings}
        with OUTPUT.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{method:6} {100 * accuracy:6.2f} {100 * learning:6.2f} {settings}", flush=True)
    records = [json.loads(line) for line in OUTPUT.read_text().splitlines()]
    for method in ("naive", "joint", "hvcl"):
        best = max((r for r in records if r["method"] == method), key=lambda r: r["accuracy"])
        print(f"best {method}: {100 * best['accuracy']:.2f} % {best['settings']}")


if __name__ == "__main__":
    main()
