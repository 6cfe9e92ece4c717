"""What each part of the patch features is worth: CIFAR-10, validation data.

    .venv/bin/python -m experiments.exact.ablation

15,000 training images to learn from, 5,000 others to score on, all classes at once; patches from the first 256 airplanes and
automobiles (as in the stream's first batch); ridge from the evidence; 1,600 features unless the variant changes that. Results
go to ablation.jsonl; variants that are there are passed over. The test set is not touched.
"""

from pathlib import Path

import torch

from experiments.records import append_record, read_records
from hvcl.features import PatchFeatures, RandomFeatures
from hvcl.posteriors import ClassHead
from hvcl.streams import load

OUTPUT = Path(__file__).with_suffix(".jsonl")
BASE = {"filters": 200, "mirror": True}
VARIANTS = {
    "as it is": {},
    "not mirrored": {"mirror": False},
    "no square root": {"root": False},
    "one size, 6": {"sizes": (6,)},
    "whitening 0.01": {"whitening": 0.01},
    "whitening 1": {"whitening": 1.0},
    "threshold 0": {"threshold": 0.0},
    "threshold 0.5": {"threshold": 0.5},
    "threshold 1": {"threshold": 1.0},
    "3x3 cells, 89 filters": {"grid": 3, "filters": 89},
    "no cells, 800 filters": {"grid": 1, "filters": 800},
    "twice the filters": {"filters": 400},
    "random features, 1600": None,
    "random features with fields of 12, 1600": "local",
}


def make_map(options):
    if options is None:
        return RandomFeatures((3, 32, 32), 1600)
    if options == "local":
        return RandomFeatures((3, 32, 32), 1600, field=12)
    return PatchFeatures((3, 32, 32), **(BASE | options))


def main():
    torch.set_num_threads(1)
    data = load("cifar10")
    order = torch.randperm(len(data.train_y), generator=torch.Generator().manual_seed(0))
    learn, score = order[:15_000], order[15_000:20_000]
    first = learn[data.train_y[learn] < 2][:256]
    done = {record["variant"] for record in read_records(OUTPUT)}
    for name, options in VARIANTS.items():
        if name in done:
            continue
        features = make_map(options)
        features.fit(data.train_x[first] / data.scale)
        head = ClassHead(features.features)
        for rows in learn.split(1000):
            head.add(features(data.train_x[rows] / data.scale), data.train_y[rows])
        right = 0
        for rows in score.split(1000):
            answers = head.log_probabilities(features(data.train_x[rows] / data.scale)).argmax(1)
            right += int((answers == data.train_y[rows]).sum())
        record = {"variant": name, "features": features.features, "accuracy": right / len(score)}
        record["ridge"] = head.model.posterior().ridge
        append_record(OUTPUT, record)
        print(record, flush=True)


if __name__ == "__main__":
    main()
