"""What the gates cost a deep network at the start: the first task of split CIFAR-10, with one expert a layer and with more.

    .venv/bin/python -m experiments.forgetting.gate_cost

Accuracy on a tenth of the first task's training data that was held out, after three epochs, seeds 0, 1, 2; the settings are those
of `hvcl-paper` without dropout. With argmax routing a chosen expert's answer is multiplied with p(m|x): a gate of two that is
undecided halves the signal of its layer, and there are eight layers. Sampled routing has no such factor, but noise. Results go to
gate_cost.jsonl.
"""

from pathlib import Path

import torch

from experiments.records import append_record, read_records
from hvcl.evaluation import evaluate
from hvcl.runs import RunConfig
from hvcl.streams.events import TaskEnd

OUTPUT = Path(__file__).with_suffix(".jsonl")
VARIANTS = {
    "1 expert, no gate": {"experts": 1},
    "2 experts, argmax": {"experts": 2},
    "2 experts, sampled": {"experts": 2, "routing": "sample"},
    "4 experts, argmax": {"experts": 4},
    "4 experts, sampled": {"experts": 4, "routing": "sample"},
}
SEEDS = (0, 1, 2)


def measure(settings, seed):
    """Accuracy on the first task."""
    stream_settings = {"scenario": "domain", "epochs": 3, "validation": 0.1}
    config = RunConfig.make("split-cifar10", "hvcl-paper", (seed,), stream_settings, {"dropout": 0.0} | settings)
    stream = config.make_stream(seed)
    learner = config.make_learner(stream, seed)
    for event in stream.events():
        if isinstance(event, TaskEnd):
            break
        learner.observe(event.x, event.y, event.task)
    return evaluate(learner, stream.tests[:1], seen=1).accuracies[0]


def main():
    torch.set_num_threads(1)
    recorded = {record["variant"] for record in read_records(OUTPUT)}
    for variant, settings in VARIANTS.items():
        if variant not in recorded:
            record = {"variant": variant, "seeds": SEEDS, "accuracies": [measure(settings, seed) for seed in SEEDS]}
            append_record(OUTPUT, record)
            print(record, flush=True)


if __name__ == "__main__":
    main()
