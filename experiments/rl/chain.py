"""The five-task PyBullet chain at the reduced protocol: 60,000 steps a task, one update for two steps, one environment.

    .venv/bin/python -m experiments.rl.chain [--methods naive,...] [--seeds 1,2] [--workers 1]

Every method and seed is a run of its own under runs/rl-bullet/METHOD, which goes on where it was stopped; what is finished is
written to results/rl/bullet/METHOD.json, with the settings and the environment that made it. The paper trains for a million
steps a task: these figures are not to be held against its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from experiments.rl.configuration import AGENT
from hvcl.commands.options import parse_seeds
from hvcl.core.files import read_json, write_json
from hvcl.rl.sequences import sequence
from hvcl.runs import RunFolder
from hvcl.runs.engine import Job, run_seeds
from hvcl.runs.reinforcement import RLConfig

METHODS = ("hvcl-growing", "naive", "reset", "ewc", "ucl", "hvcl")
PROTOCOL = {"steps": 60_000, "evaluate_every": 20_000, "episodes": 3, "final_episodes": 10}
FOUND = {"ucl": {"strength": 0.1}}
"""The best of trials.jsonl where it is not the default."""
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--out", type=Path, default=Path("runs/rl-bullet"))
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "rl" / "bullet")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    seeds = parse_seeds(options.seeds)
    names = [task.name for task in sequence("bullet").tasks]
    for seed in seeds:  # a seed of every method before the next seed of any
        for method in options.methods.split(","):
            config = RLConfig.make("bullet", method, seeds, PROTOCOL, AGENT | FOUND.get(method, {}))
            folder = RunFolder(options.out / method)
            folder.prepare(config, {"task_names": names}, resume=True, force=False)
            run_seeds([Job(folder.path, seed, f"{method} seed {seed}")], Console(stderr=True), options.workers)
            write_result(folder, config, options.results)


def write_result(folder: RunFolder, config: RLConfig, results: Path) -> None:
    """The finished seeds of one method, with what made them."""
    done = [seed for seed in config.seeds if folder.seed(seed).result() is not None]
    document = config.to_json() | {
        "protocol_name": "reduced: 60,000 steps a task, one update for two steps",
        "seeds": done,
        "environment": read_json(folder.seed(done[0]).path / "environment.json"),
        "results": [folder.seed(seed).result() for seed in done],
    }
    write_json(results / f"{config.method}.json", document)


if __name__ == "__main__":
    main()
