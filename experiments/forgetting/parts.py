"""Which part of HVCL forgets: the gates, the experts, or the head?

    .venv/bin/python -m experiments.forgetting.parts        # measures what is not recorded yet

Domain-IL, boundaries, no memory, standard budget, split MNIST. The network is kept as it was after every
task k. After the last task, some of its parts are put back to how they were then, and it is scored on task k again (its test
set): what accuracy the restored part brings back is what that part had forgotten. Parts: the gates of all layers, the experts of
all hidden layers, the experts of the head. All eight combinations, averaged over all tasks but the last. Beside it, the share of
examples that take another expert than they took after task k, a mean over layers. Results go to parts.jsonl,
and from there to docs/results (tools/results_pages.py).
"""

import itertools
import statistics
from pathlib import Path

from experiments.records import append_record, read_records

OUTPUT = Path(__file__).with_suffix(".jsonl")
RUNS = [("split-mnist", method, seed) for method in ("hvcl", "hvcl-paper") for seed in (1, 2, 3)]
PARTS = ("gates", "experts", "head")


def part_of(name):
    """The part that a parameter of the network belongs to."""
    if ".gate." in name:
        return "gates"
    return "head" if name.startswith("head.") else "experts"


def accuracy(learner, test):
    from hvcl.evaluation import evaluate

    return evaluate(learner, [test], seen=1).accuracies[0]


def choices(learner, test):
    """The first choice of every example in every layer ``[layers, n]``."""
    import torch

    from hvcl.layers import MoVELayer

    layers = [module for module in learner.network.modules() if isinstance(module, MoVELayer)]
    found = []
    for x, _, task in test.batches():
        learner.predict(x, task)
        found.append(torch.stack([layer.gate_log_probabilities.argmax(1) for layer in layers]))
    return torch.cat(found, 1)


def measure(benchmark, method, seed):
    import torch

    from hvcl.runs import RunConfig
    from hvcl.streams import BENCHMARKS
    from hvcl.streams.events import TaskEnd

    torch.set_num_threads(1)
    epochs = BENCHMARKS[benchmark].epochs["standard"]
    config = RunConfig.make(benchmark, method, (seed,), {"scenario": "domain", "epochs": epochs})
    stream = config.make_stream(seed)
    learner = config.make_learner(stream, seed)
    snapshots, routes, learned = [], [], []
    for event in stream.events():
        if not isinstance(event, TaskEnd):
            learner.observe(event.x, event.y, event.task)
            continue
        learner.end_task()
        test = stream.tests[event.task]
        snapshots.append({name: value.clone() for name, value in learner.network.state_dict().items()})
        routes.append(choices(learner, test))
        learned.append(accuracy(learner, test))
    final = snapshots[-1]
    past = list(zip(snapshots, routes, stream.tests, strict=True))[:-1]
    restored = {}
    for count in range(len(PARTS) + 1):
        for parts in itertools.combinations(PARTS, count):
            found = []
            for snapshot, _, test in past:
                mixed = {name: (snapshot if part_of(name) in parts else final)[name] for name in final}
                learner.network.load_state_dict(mixed)
                found.append(accuracy(learner, test))
            restored["+".join(parts) or "nothing"] = statistics.mean(found)
    learner.network.load_state_dict(final)
    moved = torch.stack([(choices(learner, test) != route).float().mean(1) for _, route, test in past]).mean(0)
    return {
        "benchmark": benchmark,
        "method": method,
        "seed": seed,
        "epochs": epochs,
        "learned": statistics.mean(learned[:-1]),
        "restored": restored,
        "moved": moved.tolist(),
    }


def main():
    recorded = {(r["benchmark"], r["method"], r["seed"]) for r in read_records(OUTPUT)}
    for run in RUNS:
        if run not in recorded:
            record = measure(*run)
            append_record(OUTPUT, record)
            print(record, flush=True)


if __name__ == "__main__":
    main()
