"""What the gates cost a deep network at the start: the first task of split CIFAR-10, ten epochs, test data, seeds 1, 2, 3.

    .venv/bin/python -m experiments.forgetting.gate_cost

The network of plain layers (`naive`), the same of MoVE layers with one expert, and with two and four under each routing. With
argmax routing a chosen expert's answer is multiplied with p(m|x): a gate of two that is undecided halves the signal of its
layer, and there are eight layers. Straight-through and sampled routing have no such factor. Step size 3e-4 (the paper) and
1e-3 for all of them; MoVE networks with a weak KL (beta2 = 0.01) and no other regulariser; straight-through once more without
the gates' KL, which before the first task pulls them towards indecision, and with the settings that `hvcl` has on split
CIFAR-10, whose entropies let every gate settle on one expert. Results go to gate_cost.jsonl.
"""

from pathlib import Path

import torch

from experiments.records import append_record, read_records
from hvcl.evaluation import evaluate
from hvcl.runs import RunConfig
from hvcl.streams.events import TaskEnd

OUTPUT = Path(__file__).with_suffix(".jsonl")
MOVE = {
    "beta_expert": 0.01,
    "beta_gate": 0.1,
    "schedule": "constant",
    "estimator": "local",
    "conditional_entropy": 0.0,
    "diversity": 0.0,
}
ROUTINGS = {"weighted by p": "argmax", "straight-through": "straight-through", "sampled": "sample"}
VARIANTS = {"plain layers": ("naive", {}), "1 expert, no gate": ("hvcl", MOVE | {"experts": 1})} | {
    f"{experts} experts, {name}": ("hvcl", MOVE | {"experts": experts, "routing": routing})
    for experts in (2, 4)
    for name, routing in ROUTINGS.items()
}
VARIANTS |= {
    f"{experts} experts, straight-through, no KL of the gates": (
        "hvcl",
        MOVE | {"experts": experts, "routing": "straight-through", "beta_gate": 0.0},
    )
    for experts in (2, 4)
}
VARIANTS |= {f"{experts} experts, as `hvcl` is set": ("hvcl", {"experts": experts}) for experts in (2, 4)}
RATES = (3e-4, 1e-3)
SEEDS = (1, 2, 3)
EPOCHS = 10


def measure(method, settings, seed):
    """Accuracy on the first task."""
    config = RunConfig.make("split-cifar10", method, (seed,), {"scenario": "domain", "epochs": EPOCHS}, settings)
    stream = config.make_stream(seed)
    learner = config.make_learner(stream, seed)
    for event in stream.events():
        if isinstance(event, TaskEnd):
            break
        learner.observe(event.x, event.y, event.task)
    return evaluate(learner, stream.tests[:1], seen=1).accuracies[0]


def main():
    torch.set_num_threads(1)
    recorded = {(record["variant"], record["learning_rate"]) for record in read_records(OUTPUT)}
    for rate in RATES:
        for variant, (method, settings) in VARIANTS.items():
            if (variant, rate) not in recorded:
                accuracies = [measure(method, settings | {"learning_rate": rate}, seed) for seed in SEEDS]
                record = {"variant": variant, "learning_rate": rate, "epochs": EPOCHS, "seeds": SEEDS, "accuracies": accuracies}
                append_record(OUTPUT, record)
                print(record, flush=True)


if __name__ == "__main__":
    main()
