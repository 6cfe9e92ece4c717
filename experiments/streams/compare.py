"""Accuracy and time on streams, ours beside river's and scikit-learn's: test-then-train, defaults everywhere.

    .venv/bin/python -m experiments.streams.compare [--streams sea,flip] [--batch 32,256,1]     # goes on where it stopped
    .venv/bin/python -m experiments.streams.compare --methods hvcl --again      # after a change; the last line of a kind counts

A batch is predicted, then learned. All rows after the first 256 are scored. Ours is `ContinualClassifier()`; for batches of one
row `RiverClassifier()`, as docs/estimators has it for single rows. River's models learn row by row, so that one pass serves all
sizes of batches: row i is predicted by the model as it was before the batch of i. Times are processor time of learning and
predicting, without the reading of files. River's logistic regression (one against the rest where there are more than two classes)
and scikit-learn's SGD (logistic loss) have their numbers standardised by what was seen so far, and categories as indicators; SGD
is told all labels and categories beforehand. Results go to results.jsonl, and from there to docs/streams/comparison.md
(tools/streams_page.py).
"""

import argparse
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.records import append_record, read_records
from experiments.streams.data import STREAMS, Stream, load

OUTPUT = Path(__file__).with_name("results.jsonl")
FIRST = 256
"""Rows that are not scored."""
BATCHES = (32, 256, 1)
METHODS = ("hvcl", "arf", "hat", "logistic", "sgd")
SEED = 1


# -- methods ---------------------------------------------------------------------------------------------------------------------


def run_hvcl(stream: Stream, batch: int) -> tuple[np.ndarray, float]:
    """Predictions and seconds of our estimator."""
    if batch == 1:
        return run_single(stream)
    from hvcl import ContinualClassifier

    model, table = ContinualClassifier(), stream.table
    predicted = np.empty(len(stream.labels), dtype=object)
    begun = time.process_time()
    for first in range(0, len(table), batch):
        rows, labels = table[first : first + batch], stream.labels[first : first + batch]
        if first:
            predicted[first : first + batch] = model.predict(rows)
        model.partial_fit(rows, labels)
    return predicted, time.process_time() - begun


def run_single(stream: Stream) -> tuple[np.ndarray, float]:
    """The same, row by row."""
    from hvcl.estimators.river import RiverClassifier

    model, labels = RiverClassifier(), stream.labels.tolist()
    predicted = np.empty(len(labels), dtype=object)
    begun = time.process_time()
    for place, (x, y) in enumerate(zip(stream.rows, labels, strict=True)):
        predicted[place] = model.predict_one(x)
        model.learn_one(x, y)
    return predicted, time.process_time() - begun


def run_sgd(stream: Stream, batch: int) -> tuple[np.ndarray, float]:
    """Predictions and seconds of scikit-learn's SGD."""
    from sklearn.linear_model import SGDClassifier
    from sklearn.preprocessing import StandardScaler

    frame = pd.DataFrame(stream.rows)
    numbers = frame.drop(columns=stream.categories).to_numpy(dtype=float)
    others = pd.get_dummies(frame[stream.categories]).to_numpy(dtype=float) if stream.categories else np.empty((len(frame), 0))
    model, scaler = SGDClassifier(loss="log_loss", random_state=SEED), StandardScaler()
    classes = np.unique(stream.labels)
    predicted = np.empty(len(frame), dtype=object)
    begun = time.process_time()
    for first in range(0, len(frame), batch):
        rows = slice(first, first + batch)
        if first:
            predicted[rows] = model.predict(np.hstack([scaler.transform(numbers[rows]), others[rows]]))
        scaler.partial_fit(numbers[rows])
        model.partial_fit(np.hstack([scaler.transform(numbers[rows]), others[rows]]), stream.labels[rows], classes=classes)
    return predicted, time.process_time() - begun


def river_model(method: str, stream: Stream):
    """River's model by its name here."""
    from river import compose, forest, linear_model, multiclass, preprocessing, tree

    if method == "arf":
        return forest.ARFClassifier(seed=SEED)
    if method == "hat":
        return tree.HoeffdingAdaptiveTreeClassifier(seed=SEED)
    logistic = linear_model.LogisticRegression()
    if len(np.unique(stream.labels)) > 2:
        logistic = multiclass.OneVsRestClassifier(logistic)
    scaled = preprocessing.StandardScaler()
    if stream.categories:
        names = stream.categories
        scaled = (compose.Discard(*names) | scaled) + (compose.Select(*names) | preprocessing.OneHotEncoder())
    return scaled | logistic


def run_river(method: str, stream: Stream, batches: list[int]) -> dict[int, tuple[np.ndarray, float]]:
    """Predictions and seconds by size of batch, all in one pass: learning is the same, only when rows are predicted differs."""
    model, labels = river_model(method, stream), stream.labels.tolist()
    predicted = {batch: np.empty(len(labels), dtype=object) for batch in batches}
    learning, predicting = 0.0, dict.fromkeys(batches, 0.0)
    clock = time.process_time
    for place, (x, y) in enumerate(zip(stream.rows, labels, strict=True)):
        for batch in batches:
            if place % batch == 0:
                begun = clock()
                for row in range(place, min(place + batch, len(labels))):
                    predicted[batch][row] = model.predict_one(stream.rows[row])
                predicting[batch] += clock() - begun
        begun = clock()
        model.learn_one(x, y)
        learning += clock() - begun
    return {batch: (predicted[batch], learning + predicting[batch]) for batch in batches}


def run(method: str, stream: Stream, batches: list[int]) -> dict[int, tuple[np.ndarray, float]]:
    """Predictions and seconds by size of batch."""
    if method in ("hvcl", "sgd"):
        return {batch: (run_hvcl if method == "hvcl" else run_sgd)(stream, batch) for batch in batches}
    return run_river(method, stream, batches)


# -- scores ----------------------------------------------------------------------------------------------------------------------


def scored(stream: Stream, predicted: np.ndarray, batch: int) -> dict:
    """Accuracy, that of the class that is most frequent in the scored rows, and how soon flips of the labels are followed."""
    right = predicted == stream.labels
    after = stream.labels[FIRST:].tolist()
    record = {"accuracy": float(right[FIRST:].mean()), "majority": max(Counter(after).values()) / len(after)}
    if stream.flips:
        record["recovery"] = [recovery(right, flip, max(batch, 32)) for flip in stream.flips]
    return record


def recovery(right: np.ndarray, flip: int, batch: int) -> int | None:
    """Batches after a flip until five in a row have more than 90 % right; None: not before the stream or the next flip ends."""
    accuracies = [right[first : first + batch].mean() for first in range(flip, min(len(right), flip + 2048) - batch + 1, batch)]
    for begin in range(len(accuracies) - 4):
        if np.mean(accuracies[begin : begin + 5]) > 0.9:
            return begin
    return None


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default=",".join(STREAMS), help="names, with commas")
    parser.add_argument("--batch", default=",".join(map(str, BATCHES)), help="sizes of batches, with commas, in this order")
    parser.add_argument("--methods", default=",".join(METHODS), help="names, with commas")
    parser.add_argument("--again", action="store_true", help="measure what is recorded, too")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    done = set() if chosen.again else {(r["stream"], r["method"], r["batch"]) for r in read_records(OUTPUT)}
    sizes, methods = [int(size) for size in chosen.batch.split(",")], chosen.methods.split(",")
    # the first size for all streams and methods, then the others; what needs one pass for all sizes has it at once
    for some in [[size] for size in sizes]:
        for name in chosen.streams.split(","):
            stream = None
            for method in methods:
                todo = [size for size in (some if method in ("hvcl", "sgd") else sizes) if (name, method, size) not in done]
                if not todo:
                    continue
                stream = stream or load(name)
                for batch, (predicted, seconds) in run(method, stream, todo).items():
                    key = {"stream": name, "method": method, "batch": batch, "rows": len(stream.labels)}
                    record = key | scored(stream, predicted, batch) | {"seconds": round(seconds, 3)}
                    append_record(OUTPUT, record)
                    done.add((name, method, batch))
                    print(record, flush=True)


if __name__ == "__main__":
    main()
