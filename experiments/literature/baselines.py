"""Are our baselines as strong as their literature? The published protocol, our learners, beside the published figures.

    .venv/bin/python -m experiments.literature.baselines [split-mnist | permuted-mnist]      # goes on where it stopped

Domain-IL, boundaries, memory-free (joint: all data). Split MNIST as van de Ven & Tolias (2019): two layers of 400, Adam 1e-3,
batches of 128, 21 epochs (2,000 steps a task); MAS as Hsu et al. (2018): 4 epochs. Permuted MNIST, ten tasks, is not their
protocol (two layers of 1,000, Adam 1e-4, 5,000 steps a task: an hour a run): two layers of 400, Adam 1e-3, batches of 256, 2
epochs (422 to 468 steps a task). Strengths are chosen on a tenth of the training data of seed 0 (permuted MNIST: of four tasks);
the figures are on the test set with seed 1. MAS stands there with the strength of its own paper (1) as well. LwF is weighted by
the number of tasks, as in van de Ven & Tolias. Deviates from the papers: leaky ReLU. Results go to baselines.jsonl, and from
there to docs/results (tools/results_pages.py).
"""

import multiprocessing
import os
import sys
from pathlib import Path

from experiments.records import append_record, read_records

OUTPUT = Path(__file__).with_suffix(".jsonl")
NETWORKS = {
    "split-mnist": {"hidden": (400, 400), "learning_rate": 1e-3},
    "permuted-mnist": {"hidden": (400, 400), "learning_rate": 1e-3},
}
STREAMS = {"split-mnist": {"batch_size": 128, "epochs": 21}, "permuted-mnist": {"batch_size": 256, "epochs": 2}}
STRENGTHS = {
    "split-mnist": {"ewc": (1e4, 1e5), "si": (10.0, 100.0), "mas": (1.0, 10.0)},
    "permuted-mnist": {"ewc": (5.0, 50.0, 500.0), "si": (1.0, 10.0, 100.0)},
}
PUBLISHED = {
    "split-mnist": {"naive": (55, 59), "ewc": (59, 64), "si": (65, 65), "mas": (69, 69), "lwf": (71, 72), "joint": (98.4, 98.6)},
    "permuted-mnist": {"naive": (78.5, 78.5), "ewc": (94.3, 94.3), "si": (95.3, 95.3), "joint": (97.6, 97.6)},
}
"""Accuracies in Domain-IL, in %, from the lowest to the highest that the two papers report."""
SEEDS = {"split-mnist": (1,), "permuted-mnist": (1,)}


def train(benchmark, method, strength, seed, validation=0.0):
    """Average accuracy after the last task."""
    import torch

    from hvcl.evaluation import evaluate
    from hvcl.runs import RunConfig
    from hvcl.streams.events import TaskEnd

    torch.set_num_threads(1)
    settings = NETWORKS[benchmark] | ({} if strength is None else {"strength": strength})
    settings |= {"balance": "tasks"} if method == "lwf" else {}
    stream_settings = STREAMS[benchmark] | {"validation": validation} | ({"epochs": 4} if method == "mas" else {})
    stream_settings |= {"tasks": 4} if validation and benchmark == "permuted-mnist" else {}
    config = RunConfig.make(benchmark, method, (seed,), stream_settings, settings)
    stream = config.make_stream(seed)
    learner = config.make_learner(stream, seed)
    start = 0
    if learner.needs_all_data:  # the last part of the stream has all data: that is offline training
        stream = stream.cumulative()
        start = len(stream) - stream.problem.task_steps[-1] - 1
    for event in stream.events(start):
        if isinstance(event, TaskEnd):
            learner.end_task()
        else:
            learner.observe(event.x, event.y, event.task)
    accuracies = evaluate(learner, stream.tests, seen=len(stream.tasks)).accuracies
    return sum(accuracies) / len(accuracies)


def chosen_strengths(benchmark, method, found):
    """What the method is measured with: the best on validation data, where several were tried there."""
    if method == "lwf":
        return (4.0,)
    tried = STRENGTHS[benchmark].get(method, (None,))
    if len(tried) == 1:
        return tried
    scores = {r["strength"]: r["accuracy"] for r in found if (r["benchmark"], r["method"], r["seed"]) == (benchmark, method, 0)}
    best = max(tried, key=scores.__getitem__)
    return (1.0, best) if method == "mas" and best != 1.0 else (best,)


def work(job):
    benchmark, method, strength, seed, validation = job
    accuracy = train(*job)
    return {"benchmark": benchmark, "method": method, "strength": strength, "seed": seed, "accuracy": accuracy} | (
        {"evaluated_on": "validation"} if validation else {"evaluated_on": "test"}
    )


def run_all(pool, jobs):
    recorded = {(r["benchmark"], r["method"], r["strength"], r["seed"]) for r in read_records(OUTPUT)}
    todo = [job for job in jobs if job[:4] not in recorded]
    for record in pool.imap_unordered(work, todo):
        append_record(OUTPUT, record)
        print(record, flush=True)


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(int(os.environ.get("WORKERS", os.cpu_count()))) as pool:
        for benchmark in sys.argv[1:] or PUBLISHED:
            strengths = STRENGTHS[benchmark]
            searched = {method: tried for method, tried in strengths.items() if len(tried) > 1}
            run_all(pool, [(benchmark, method, strength, 0, 0.1) for method, tried in searched.items() for strength in tried])
            found = read_records(OUTPUT)
            run_all(
                pool,
                [
                    (benchmark, method, strength, seed, 0.0)
                    for method in PUBLISHED[benchmark]
                    for strength in chosen_strengths(benchmark, method, found)
                    for seed in SEEDS[benchmark]
                ],
            )


if __name__ == "__main__":
    main()
