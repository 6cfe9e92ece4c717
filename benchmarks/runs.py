"""What `hvcl run` costs over `naive` with the same epochs, on each benchmark.

Each learner has the settings that `hvcl run` gives it there, and observes the same batches; the loop around it, loading and
evaluation are the same for all, and left out, which only makes ratios larger. One thread; CPU time; in turns.
`make bench-runs` writes docs/speed/runs.json.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from measure import PAGE, Contest, environment, interleave, one_thread, summary, verdict, write_json
from torch import Tensor

from hvcl.learners import Learner
from hvcl.runs import RunConfig
from hvcl.streams.events import Batch

BENCHMARKS = ("split-digits", "split-mnist", "permuted-mnist", "split-cifar10", "split-cifar100")
METHODS = ("hvcl", "hvcl-paper", "vcl")
BATCHES = 8
GOAL = 2.5


def learn(learner: Learner, batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in batches:
        learner.observe(x, y)


def contests() -> list[Contest]:
    found = []
    for benchmark in BENCHMARKS:
        configs = {name: RunConfig.make(benchmark, name, (1,)) for name in (*METHODS, "naive")}
        stream = configs["naive"].make_stream(1)
        events = (event for event in stream.events() if isinstance(event, Batch))
        batches = [(event.x, event.y) for event, _ in zip(events, range(BATCHES), strict=False)]
        plain = partial(learn, configs["naive"].make_learner(stream, 1), batches)
        for name in METHODS:
            ours = partial(learn, configs[name].make_learner(stream, 1), batches)
            found.append(Contest(f"{name}: {benchmark}", ours, plain))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of every contestant (31; quick: 5)")
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    parser.add_argument("--output", type=Path, default=PAGE / "runs.json", help="where to write (docs/speed/runs.json)")
    options = parser.parse_args()
    one_thread()
    rounds = options.rounds or (5 if options.quick else 31)
    every = contests()
    interleave(every, rounds)
    rows = []
    for contest in every:
        row: dict[str, object] = {"name": contest.name, **summary(contest.ratios), "goal": GOAL}
        met = summary(contest.ratios)["ratio"] <= GOAL
        row |= {"met": met} | summary([1e3 * value / BATCHES for value in contest.seconds], "milliseconds")
        rows.append(row)
        print(f"{contest.name:30} {summary(contest.ratios)['ratio']:6.2f}  {verdict(met)}", flush=True)
    if not options.quick:
        write_json(options.output, {"quick": False, "rounds": rounds, "rows": rows, "environment": environment(peers={})})
        print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
