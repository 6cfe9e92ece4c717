"""Which part of HVCL forgets: the gates, the experts, or the head?

    .venv/bin/python experiments/forgetting.py              # measures what is missing, then prints the table
    .venv/bin/python experiments/forgetting.py --table      # only prints it

Domain-IL, boundaries, no memory, standard budget, split MNIST. The network is kept as it was after every
task k. After the last task, some of its parts are put back to how they were then, and it is asked about task k again (its test
set): what accuracy the restored part brings back is what that part had forgotten. Parts: the gates of all layers, the experts of
all hidden layers, the experts of the head. All eight combinations, averaged over all tasks but the last. Beside it, the share of
examples that take another expert than they took after task k, a mean over layers. Results go to forgetting.jsonl.
"""

import itertools
import json
import statistics
import sys
from pathlib import Path

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


def records():
    return [json.loads(line) for line in OUTPUT.read_text().splitlines()] if OUTPUT.exists() else []


def table():
    """Markdown of what is there."""
    found = records()
    names = list(found[0]["restored"]) if found else []
    lines = [f"| accuracy on old tasks, % | when learned | {' | '.join(names)} | other expert |", "|---" * (len(names) + 3) + "|"]
    for key in dict.fromkeys((r["benchmark"], r["method"]) for r in found):
        same = [r for r in found if (r["benchmark"], r["method"]) == key]
        values = [statistics.mean(r["restored"][name] for r in same) for name in names]
        moved = statistics.mean(statistics.mean(r["moved"]) for r in same)
        learned = statistics.mean(r["learned"] for r in same)
        shown = " | ".join(f"{100 * value:.1f}" for value in [learned, *values])
        lines.append(f"| {key[0]} {key[1]} ({len(same)} seeds) | {shown} | {100 * moved:.0f} % |")
    return "\n".join(lines)


def main():
    if sys.argv[1:] != ["--table"]:
        there = {(r["benchmark"], r["method"], r["seed"]) for r in records()}
        for run in RUNS:
            if run not in there:
                record = measure(*run)
                with OUTPUT.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(record, flush=True)
    print(table())


if __name__ == "__main__":
    main()
