"""What replay costs: one training step with generated examples over one without, for every learner that generates.

The same learner before and after its first boundary, on batches of 256 digits: without replay the step trains classifier and
generator on the batch, with replay on the batch and as many generated examples. One thread; CPU time; in turns. The goal is a
ratio of at most 2.2: twice the examples, and a tenth for making and labelling them.
`make bench-replay` writes docs/speed/replay.json.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import PAGE, Contest, environment, interleave, one_thread, summary, verdict, write_json

from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.generative import GenerativeReplay

BATCH = 256
GOAL = 2.2
DIGITS: dict[str, Any] = {"hidden": (256, 256)}
PHOTOS: dict[str, Any] = {"hidden": (256, 256), "channels": (8, 16, 32, 64, 128), "latent": 128}
SHAPES = {"28x28 digits, dense": ((1, 28, 28), DIGITS), "32x32 photographs, convolutions": ((3, 32, 32), PHOTOS)}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "hvcl-replay": ("hvcl-replay", {}),
    "hvcl-replay, a VAE for each task": ("hvcl-replay", {"separate": True, "conditional": True}),
    # as many as a batch has: then every step makes its own, where in use one step in forty makes 10,000
    "hvcl-replay, a VAE for each task, examples renewed": (
        "hvcl-replay",
        {"separate": True, "conditional": True, "refresh": True, "generated": BATCH, "temperature": 2.0},
    ),
    "dgr": ("dgr", {}),
    "dgr-distill": ("dgr-distill", {}),
    "rtf": ("rtf", {}),
}


def learner_for(method: str, shape: tuple[int, ...], settings: dict[str, Any], boundary: bool) -> GenerativeReplay:
    problem = Problem(shape, 2, None, (10_000,) * 5, (1_000_000,) * 5)
    learner = create(method, problem, seed=1, **settings)
    assert isinstance(learner, GenerativeReplay)
    x, y = examples(shape)
    learner.observe(x, y)
    if boundary:
        learner.end_task()
    return learner


def examples(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.rand(BATCH, *shape, generator=random), torch.randint(2, (BATCH,), generator=random)


def contests() -> list[Contest]:
    found = []
    for shape_name, (shape, settings) in SHAPES.items():
        x, y = examples(shape)
        for name, (method, more) in METHODS.items():
            with_replay, without = (learner_for(method, shape, settings | more, boundary) for boundary in (True, False))
            calls = (partial(learner.observe, x, y) for learner in (with_replay, without))
            found.append(Contest(f"{name}: {shape_name}", *calls))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of every contestant (41; quick: 5)")
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    parser.add_argument("--output", type=Path, default=PAGE / "replay.json", help="where to write (docs/speed/replay.json)")
    options = parser.parse_args()
    one_thread()
    rounds = options.rounds or (5 if options.quick else 41)
    every = contests()
    interleave(every, rounds)
    rows = []
    for contest in every:
        row: dict[str, Any] = {"name": contest.name, **summary(contest.ratios), "goal": GOAL}
        row["met"] = row["ratio"] <= GOAL
        row |= summary([1e3 * value for value in contest.seconds], "milliseconds")
        rows.append(row)
        print(f"{contest.name:75} {row['ratio']:6.2f}  {verdict(row['met'])}", flush=True)
    if not options.quick:
        document = {"quick": False, "rounds": rounds, "batch": BATCH, "rows": rows, "environment": environment(peers={})}
        write_json(options.output, document)
        print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
