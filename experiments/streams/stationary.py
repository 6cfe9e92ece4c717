"""Stationary streams of 10,000 examples through the generative gate: how many experts it opens that nothing asked for.

    .venv/bin/python -m experiments.streams.stationary --count 100     # stream i is of seed i; goes on where it stopped

Examples are drawn independently from one distribution: 2 to 20 correlated columns; 1 to 50 labels in any balance (down to one
example in 200), each with a mean and a spread of its own; normal noise or heavy tails; offsets up to a million deviations,
scales from 1e-6 to 1e6; some columns binary; in some streams every row stands there several times in a row; batches of 16 to
1,000. Results go to stationary.jsonl, and from there to docs/streams/comparison.md (tools/streams_page.py).
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from experiments.records import append_record, read_records
from hvcl.gates import GenerativeGate

OUTPUT = Path(__file__).with_suffix(".jsonl")
EXAMPLES = 10_000
RAREST = 0.005


def stream(seed: int) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Columns ``[10000, D]``, labels, and the facts that were drawn."""
    random = np.random.default_rng(seed)
    columns, labels = int(random.integers(2, 21)), int(random.choice([1, 2, 2, 2, 3, 5, 10, 50]))
    facts = {
        "columns": columns,
        "labels": labels,
        "repeat": int(random.choice([1, 1, 1, 2, 5, 16])),
        "heavy": bool(random.integers(2)),
        "batch": int(random.choice([16, 32, 100, 256, 1000])),
        "offset": float(random.choice([0.0, 1.0, 1e3, 1e6])),
        "scale": float(10.0 ** random.uniform(-6, 6)),
        "covariance": str(random.choice(["tied", "diagonal"])),
    }
    rows = EXAMPLES // facts["repeat"]
    shares = random.dirichlet(np.full(labels, random.choice([0.2, 1.0, 10.0])))
    shares = np.maximum(shares, min(RAREST, 0.5 / labels))
    y = random.choice(labels, rows, p=shares / shares.sum())
    means, spreads = random.normal(size=(labels, columns)), np.exp(random.normal(size=(labels, 1)) / 2)
    noise = random.standard_t(3, (rows, columns)) if facts["heavy"] else random.normal(size=(rows, columns))
    mixing = random.normal(size=(columns, columns)) / np.sqrt(columns) + np.eye(columns)
    z = means[y] + spreads[y] * (noise @ mixing)
    binary = random.uniform(size=columns) < 0.2
    z[:, binary] = z[:, binary] > 0
    z = facts["scale"] * (z + facts["offset"])
    return (
        torch.from_numpy(z).repeat_interleave(facts["repeat"], 0),
        torch.from_numpy(y).repeat_interleave(facts["repeat"]),
        facts,
    )


def measure(seed: int) -> dict:
    """Experts at the end of a stream."""
    z, y, facts = stream(seed)
    gate = GenerativeGate(z.shape[1], covariance=facts["covariance"])
    for some, labels in zip(z.split(facts["batch"]), y.split(facts["batch"]), strict=True):
        gate.observe(some, labels)
    return {"seed": seed, "experts": gate.experts} | facts


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="streams to have been run in all")
    torch.set_num_threads(1)
    for seed in range(len(read_records(OUTPUT)), parser.parse_args().count):
        record = measure(seed)
        append_record(OUTPUT, record)
        print(record, flush=True)


if __name__ == "__main__":
    main()
