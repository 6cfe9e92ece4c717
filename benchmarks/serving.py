"""What an answer costs right after learning: the exact head learns 32 examples and predicts 32, over what cannot be avoided.

The unavoidable is to add the batch's products to the second moments and two triangular solves with its 32 examples, for a factor
that somebody else would have kept up to date. Ours is all of learning and predicting, with the ridge of the largest evidence,
for every batch in turn: most predictions put the batch on top of kept factors, and now and then one factorises anew. Both kinds
are given; the goal, a ratio of at most 5, is for the first. One thread; CPU time; in turns.
`make bench-serving` writes docs/speed/serving.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from measure import PAGE, Contest, environment, interleave, one_thread, summary, verdict, write_json
from torch import Tensor

from hvcl.posteriors import ClassHead

BATCH = 32
CLASSES = 10
EXAMPLES = 4000
GOAL = 5.0
FEATURES = (1000, 3000)


class Stream:
    """Batches of correlated features of ten classes, without end."""

    def __init__(self, features: int) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.mix = torch.randn(60, features, generator=self.random) / 8

    def batch(self, size: int = BATCH) -> tuple[Tensor, Tensor]:
        y = torch.randint(CLASSES, (size,), generator=self.random)
        hidden = torch.randn(size, 60, generator=self.random) + 2 * torch.nn.functional.one_hot(y, 60)
        return (hidden @ self.mix).cos_(), y


class Serving:
    """A head that has learned, and each call of which learns a batch and predicts another."""

    def __init__(self, features: int) -> None:
        self.stream = Stream(features)
        self.head = ClassHead(features)
        for _ in range(EXAMPLES // 500):
            self.head.add(*self.stream.batch(500))
        self.probe = self.stream.batch()[0]
        self.head.log_probabilities(self.probe)
        self.anew: list[bool] = []
        # the same batch again and again, so that no call pays for making it
        self.next = self.stream.batch()

    def call(self) -> None:
        self.head.add(*self.next)
        self.head.log_probabilities(self.probe)
        self.anew.append(self.head.model.posterior().factor.added is None)


class Unavoidable:
    """The batch's products added to a matrix, and two triangular solves."""

    def __init__(self, features: int) -> None:
        self.rows = Stream(features).batch()[0].double()
        self.moments = torch.eye(features, dtype=torch.float64) * EXAMPLES
        self.lower = torch.linalg.cholesky(self.moments + self.rows.T @ self.rows)

    def call(self) -> None:
        self.moments.addmm_(self.rows.T, self.rows)
        half = torch.linalg.solve_triangular(self.lower, self.rows.T, upper=False)
        torch.linalg.solve_triangular(self.lower.mT, half, upper=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of every contestant (60; quick: 6)")
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    parser.add_argument("--output", type=Path, default=PAGE / "serving.json", help="where to write (docs/speed/serving.json)")
    options = parser.parse_args()
    one_thread()
    rounds = options.rounds or (6 if options.quick else 60)
    served = {features: Serving(features) for features in FEATURES}
    # each call changes the head: an untimed one before it would be a batch more
    every = [Contest(f"{f:,} features", served[f].call, Unavoidable(f).call, warm=False) for f in FEATURES]
    interleave(every, rounds)
    rows = []
    for contest, head in zip(every, served.values(), strict=True):
        for kind, anew in (("on top of kept factors", False), ("factorised anew", True)):
            turns = [i for i, this in enumerate(head.anew) if this == anew]
            if turns:
                goal = None if anew else GOAL
                row: dict[str, Any] = {"name": f"{contest.name}, {kind}", "turns": len(turns), "goal": goal}
                row |= summary([contest.ratios[i] for i in turns])
                row["met"] = None if goal is None else row["ratio"] <= goal
                row |= summary([1e3 * contest.seconds[i] for i in turns], "milliseconds")
                row |= summary([1e3 * contest.reference_seconds[i] for i in turns], "reference_milliseconds")
                rows.append(row)
                print(
                    f"{row['name']:45} {row['turns']:4} {row['ratio']:7.2f} {row['milliseconds']:9.1f} ms  {verdict(row['met'])}"
                )
    if not options.quick:
        document = {"quick": False, "rounds": rounds, "batch": BATCH, "rows": rows, "environment": environment(peers={})}
        write_json(options.output, document)
        print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
