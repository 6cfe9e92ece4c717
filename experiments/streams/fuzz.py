"""Random small streams through `ContinualClassifier`: no exception, finite probabilities that sum to one.

    .venv/bin/python -m experiments.streams.fuzz --count 10000 [--first 0]   # stream i is of seed i; goes on where it stopped

Columns of numbers at scales from 1e-6 to 1e6 with offsets, constants, copies of others, missing values, categories, heavy tails;
one class or several, labels that appear late or are turned round in mid-stream; batches of random sizes; jumps of columns.
Warnings about scales are no failures. What was run is counted in fuzz.jsonl, failures with seed and message.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.records import append_record, read_records

OUTPUT = Path(__file__).with_suffix(".jsonl")
ROWS = 60
CHUNK = 50
"""Streams of a line of the records."""


def number_column(random: np.random.Generator, rows: int, others: list[np.ndarray]) -> np.ndarray:
    """Numbers of one of several kinds, at a random scale and offset."""
    kind = random.choice(["normal", "uniform", "heavy", "constant", "copy", "binary", "whole", "zero", "jump", "late"])
    scale = 10.0 ** random.uniform(-6, 6)
    offset = random.choice([0.0, 1.0, -1.0, 1e3, -1e6]) * scale * random.uniform()
    values = {
        "normal": lambda: random.normal(size=rows),
        "uniform": lambda: random.uniform(size=rows),
        "heavy": lambda: random.standard_cauchy(rows),
        "constant": lambda: np.ones(rows),
        "copy": lambda: random.normal(size=rows),
        "binary": lambda: random.integers(0, 2, rows).astype(float),
        "whole": lambda: random.poisson(2, rows).astype(float),
        "zero": lambda: np.zeros(rows),
        "jump": lambda: random.normal(size=rows) + 1000 * (np.arange(rows) > rows // 2),
        "late": lambda: random.normal(size=rows) * (np.arange(rows) > rows // 2),
    }[str(kind)]()
    if kind == "copy" and others:
        return others[random.integers(len(others))] * random.choice([1.0, -1.0, 2.0])
    if kind == "zero":
        return values
    return values * scale + offset


def make(seed: int, rows: int = ROWS) -> tuple[Any, np.ndarray, list[int], int]:
    """Rows, labels, sizes of the batches, and rows of the warm-up of stream `seed`."""
    random = np.random.default_rng(seed)
    columns: list[np.ndarray] = []
    for _ in range(random.integers(1, 7)):
        columns.append(number_column(random, rows, columns))
    classes = int(random.integers(1, 6))
    signal = columns[0] > np.median(columns[0])
    y = np.where(random.uniform(size=rows) < 0.7, signal, random.integers(0, classes, rows)).astype(int) % classes
    if random.uniform() < 0.3:
        y = np.sort(y)  # classes that appear one after the other
    if random.uniform() < 0.4:
        y[rows // 2 :] = classes - 1 - y[rows // 2 :]
    share = random.choice([0.0, 0.0, 0.1, 0.9])
    columns = [np.where(random.uniform(size=rows) < share, np.nan, column) for column in columns]
    if random.uniform() < 0.1:
        columns[0] = np.full(rows, np.nan)
    if random.uniform() < 0.3:
        places = random.integers(0, rows, rows)  # rows that are there several times
        columns, y = [column[places] for column in columns], y[places]
    x: Any = np.stack(columns, 1)
    categories = int(random.choice([0, 0, 1, 2]))
    if categories:
        x = pd.DataFrame({f"n{i}": column for i, column in enumerate(columns)})
        for i in range(categories):
            texts = np.array([f"v{v}" for v in random.integers(0, random.choice([1, 3, 40]), rows)], dtype=object)
            texts[random.uniform(size=rows) < share] = None
            x[f"c{i}"] = texts
        if random.uniform() < 0.1:
            x = x[[name for name in x if name.startswith("c")]]
    labels = random.choice(["numbers", "texts", "truth", "floats"])
    if labels == "texts":
        y = np.array([f"class {value}" for value in y])
    elif labels == "truth" and classes <= 2:
        y = y.astype(bool)
    elif labels == "floats":
        y = y.astype(float)
    sizes: list[int] = []
    while sum(sizes) < rows:
        sizes.append(int(random.choice([1, 1, 2, 5, 16, 33])))
    return x, y, sizes, int(random.choice([2, 3, 10, 30, 256]))


def check(seed: int, rows: int = ROWS) -> int:
    """Predict and learn a stream; raises what goes wrong. Returns how many changes of the concept were noticed."""
    from hvcl import ContinualClassifier

    x, y, sizes, warmup = make(seed, rows)
    model, first = ContinualClassifier(features=30, warmup=warmup, max_categories=4), 0
    for size in sizes:
        part = slice(first, min(first + size, rows))
        if first >= rows:
            break
        if first:
            answers(model, x[part], part.stop - first)
        model.partial_fit(x[part], y[part])
        first = part.stop
    answers(model, x, rows)
    return len(model.drift_)


def answers(model: Any, x: Any, rows: int) -> None:
    """Ask for probabilities and labels, and look at them."""
    p = model.predict_proba(x)
    assert p.shape == (rows, len(model.classes_)), f"probabilities of shape {p.shape} for {rows} rows"
    assert np.isfinite(p).all(), "probabilities that are not finite"
    assert (p >= 0).all(), "negative probabilities"
    assert np.allclose(p.sum(1), 1, atol=1e-6), f"probabilities that sum to {p.sum(1).min()} to {p.sum(1).max()}"
    assert np.isin(model.predict(x), model.classes_).all(), "a label that was never learned"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="streams to have been run in all")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="of a stream; changes of the concept are noticed from about 200 on"
    )
    parser.add_argument("--first", type=int, help="run this seed and the following, recorded or not, without recording")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    known = [record for record in read_records(OUTPUT) if record["rows"] == chosen.rows]
    begin = sum(record["count"] for record in known) if chosen.first is None else chosen.first
    end = chosen.count if chosen.first is None else begin + chosen.count
    for first in range(begin, end, CHUNK):
        begun, failures, drifts = time.process_time(), [], 0
        for seed in range(first, min(first + CHUNK, end)):
            try:
                drifts += check(seed, chosen.rows)
            except Exception as error:
                failures.append({"seed": seed, "error": f"{type(error).__name__}: {error}"[:200]})
        seconds = round(time.process_time() - begun, 1)
        record = {"rows": chosen.rows, "first": first, "count": min(CHUNK, end - first), "drifts": drifts, "failures": failures}
        record |= {"seconds": seconds}
        if chosen.first is None:
            append_record(OUTPUT, record)
        print(record, flush=True)


if __name__ == "__main__":
    main()
