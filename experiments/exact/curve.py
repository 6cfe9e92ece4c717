"""How the exact learner's accuracy grows with the number of features: validation data, seed 0.

    .venv/bin/python -m experiments.exact.curve split-cifar10 split-cifar100

One pass over the training data less a tenth, with the largest feature map; smaller ones are its first filters of every size.
Class-IL, Domain-IL (boundaries) and Task-IL accuracy on the tenth that was held out, to curve.jsonl. The test set is not
touched.
"""

import argparse
from pathlib import Path

import torch

from experiments.records import append_record, read_records
from hvcl.posteriors import ClassHead
from hvcl.runs.supervised import RunConfig
from hvcl.streams.events import Batch

OUTPUT = Path(__file__).with_suffix(".jsonl")
FILTERS = (125, 250, 500, 1000)


def columns_of(features, filters):
    """Features of the first `filters` filters, dealt out over the sizes as the map itself does."""
    chosen = []
    for number, (_, first, _) in enumerate(features._banks()):
        share = filters * (number + 1) // len(features.sizes) - filters * number // len(features.sizes)
        chosen += range(first, first + share)
    cells = torch.arange(2 * features.grid**2).unsqueeze(1) * features.filters
    return (cells + torch.tensor(chosen)).flatten()


def measure(benchmark):
    learner = {"filters": max(FILTERS)}
    config = RunConfig.make(benchmark, "exact", (0,), {"scenario": "class", "validation": 0.1}, learner)
    stream = config.make_stream(0)
    learner = config.make_learner(stream, 0)
    learner._make_experts(next(iter(stream)).x)
    features = learner.experts.features
    columns = {n: columns_of(features, n) for n in FILTERS}
    heads = {n: ClassHead(len(columns[n])) for n in FILTERS}
    for event in stream:
        if isinstance(event, Batch):
            phi = features(event.x)
            for n in FILTERS:
                heads[n].add(phi[:, columns[n]], event.y)
        else:
            print(f"{benchmark}: task {event.task + 1} learned", flush=True)
    per_task = stream.problem.outputs // len(stream.tasks)
    right = {n: torch.zeros(3, len(stream.tests)) for n in FILTERS}
    for number, test in enumerate(stream.tests):
        for x, y, _ in test.batches():
            phi = features(x)
            for n in FILTERS:
                p = heads[n].log_probabilities(phi[:, columns[n]]).exp()
                pair = p.view(len(p), -1, per_task)
                answers = (p.argmax(1) == y, pair.sum(1).argmax(1) == y % per_task, pair[:, number].argmax(1) == y % per_task)
                right[n][:, number] += torch.stack([answer.sum() for answer in answers]) / len(test.examples)
    for n in FILTERS:
        accuracies = dict(zip(("class", "domain", "task"), right[n].mean(1).tolist(), strict=True))
        record = {"benchmark": benchmark, "filters": n, "features": len(columns[n]), **accuracies}
        record["ridge"] = heads[n].model.posterior().ridge
        append_record(OUTPUT, record)
        print(record, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="+")
    torch.set_num_threads(1)
    done = {record["benchmark"] for record in read_records(OUTPUT)}
    for benchmark in parser.parse_args().benchmarks:
        if benchmark not in done:
            measure(benchmark)


if __name__ == "__main__":
    main()
