"""Is it only the budget? `hvcl-paper` and naive training over epochs a task, Domain-IL, boundaries, no memory, test data, seed 1.

    .venv/bin/python -m experiments.budget.paper split-mnist --epochs 4 15 50 150
    .venv/bin/python -m experiments.budget.paper split-cifar10 --epochs 10 30 100

The paper trains for 150 epochs a task on MNIST and 1,000 on CIFAR. Every number of epochs is a run of its own, since the betas
follow a schedule over the task. Runs are kept in --runs and go on where they stopped; results go to paper.jsonl, and what is
there is passed over.
"""

import argparse
from pathlib import Path

from experiments.records import append_record, read_records
from hvcl.runs import RunConfig, RunFolder
from hvcl.runs.seed import run_seed

OUTPUT = Path(__file__).with_suffix(".jsonl")
METHODS = ("hvcl-paper", "naive")
SEED = 1


def measure(benchmark, method, epochs, runs):
    """The run's summary."""
    config = RunConfig.make(benchmark, method, (SEED,), {"scenario": "domain", "epochs": epochs})
    stream = config.make_stream(SEED)
    facts = {"memory": config.make_learner(stream, SEED).memory, "task_names": [task.name for task in stream.tasks]}
    folder = RunFolder(runs / f"{benchmark}-{method}-{epochs}")
    folder.prepare(config, facts, resume=True, force=False)
    result = run_seed(folder, SEED)
    return {
        "benchmark": benchmark,
        "method": method,
        "epochs": epochs,
        "seed": SEED,
        "accuracy": result["average_accuracy"],
        "learning_accuracy": result["learning_accuracy"],
        "forgetting": result["forgetting"],
        "accuracies": result["accuracy_matrix"],
        "seconds": result["seconds"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark")
    parser.add_argument("--epochs", nargs="+", type=int, required=True)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"))
    options = parser.parse_args()
    for epochs in options.epochs:
        for method in options.methods:
            done = {(r["benchmark"], r["method"], r["epochs"]) for r in read_records(OUTPUT)}
            if (options.benchmark, method, epochs) not in done:
                record = measure(options.benchmark, method, epochs, options.runs)
                append_record(OUTPUT, record)
                print({name: record[name] for name in ("method", "epochs", "accuracy", "seconds")}, flush=True)


if __name__ == "__main__":
    main()
