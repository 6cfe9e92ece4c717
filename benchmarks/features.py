"""What learning a batch exactly costs (patch features and the update of the sums) over the bare arithmetic that it needs.

The reference is a bare `conv2d` of the same images with the same filters (for mirror-symmetric features, of the mirrored
filters as well), and the update of as large a Gram matrix with ready-made features: no normalisation, no threshold, no pooling,
no labels. Also over the matrix products alone, on patches that lie ready: the floor. One thread; CPU time; in turns.
`make bench-features` writes docs/speed/features.json.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import PAGE, Contest, environment, interleave, one_thread, summary, verdict, write_json
from torch import Tensor
from torch.nn import functional as F

from hvcl.features import PatchFeatures
from hvcl.posteriors import ClassHead

BATCH = 256
GOAL = 1.3
SHAPES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "32x32 photographs, 400 filters of 5 and 8, mirrored": ((3, 32, 32), {"filters": 400, "mirror": True}),
    "32x32 photographs, 1000 filters of 5 and 8, mirrored": ((3, 32, 32), {"filters": 1000, "mirror": True}),
    "28x28 digits, 450 filters of 9, 3x3 cells": ((1, 28, 28), {"filters": 450, "sizes": (9,), "grid": 3, "mirror": False}),
}


def contests(name: str) -> list[Contest]:
    shape, options = SHAPES[name]
    random = torch.Generator().manual_seed(0)
    # smooth noise: patches of white noise would all look alike
    x = F.interpolate(torch.rand(BATCH, shape[0], 8, 8, generator=random), shape[1:], mode="bilinear")
    y = torch.randint(10, (BATCH,), generator=random)
    features = PatchFeatures(shape, **options)
    features.fit(x)
    head = ClassHead(features.features)
    phi = features(x)
    gram = torch.zeros(features.features, features.features)
    sides = 2 if features.mirror else 1
    banks = [(size, sides * count) for size, _, count in features._banks()]
    filters = [torch.randn(count, shape[0], size, size, generator=random) for size, count in banks]
    rows = [F.unfold(x[:1], size)[0].T.contiguous() for size, _ in banks]
    columns = [bank.flatten(1).T.contiguous() for bank in filters]
    responses = [torch.empty(len(patches), bank.shape[1]) for patches, bank in zip(rows, columns, strict=True)]

    def ours() -> None:
        head.add(features(x), y)

    def convolutions(images: Tensor) -> None:
        for bank in filters:
            for part in images.split(16):  # a whole batch's responses would not fit the memory of small machines
                F.conv2d(part, bank)

    def bare(images: Tensor) -> None:
        convolutions(images)
        gram.addmm_(phi.T, phi)

    def products() -> None:
        for _ in range(BATCH):
            for patches, bank, out in zip(rows, columns, responses, strict=True):
                torch.mm(patches, bank, out=out)
        gram.addmm_(phi.T, phi)

    return [
        Contest(f"{name}: over conv2d and Gram update", ours, partial(bare, x)),
        Contest(
            f"{name}: over channels-last conv2d and Gram update", ours, partial(bare, x.to(memory_format=torch.channels_last))
        ),
        Contest(f"{name}: over the products alone and Gram update", ours, products),
        Contest(f"{name}: the map alone over conv2d alone", partial(features, x), partial(convolutions, x)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of every contestant (5; quick: 1)")
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    parser.add_argument("--output", type=Path, default=PAGE / "features.json", help="where to write (docs/speed/features.json)")
    options = parser.parse_args()
    one_thread()
    rounds = options.rounds or (1 if options.quick else 5)
    rows = []
    for name in SHAPES:
        every = contests(name)
        interleave(every, rounds)
        for contest in every:
            goal = GOAL if contest.name.endswith("over conv2d and Gram update") else None
            row: dict[str, Any] = {"name": contest.name, **summary(contest.ratios), "goal": goal}
            row["met"] = met = None if goal is None else row["ratio"] <= goal
            rows.append(row)
            print(f"{contest.name:95} {row['ratio']:6.2f}  {verdict(met)}", flush=True)
    if not options.quick:
        document = {"quick": False, "rounds": rounds, "batch": BATCH, "rows": rows, "environment": environment(peers={})}
        write_json(options.output, document)
        print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
