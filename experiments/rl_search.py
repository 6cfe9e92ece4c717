"""The looks behind the settings of ewc, ucl and hvcl on the robots: Hopper, then the double pendulum, 40,000 steps each, seed 0.

    python experiments/rl_search.py ewc strength=1000

One run a call: settings of the method as name=value, everything else as in rl.py. These two are the chain's last, the other way
round: both are learned in a few steps, so that there is something to forget. The score is the mean performance over both
tasks at the end (returns from random actions, 0, to the task's reference, 1): what is forgotten counts as much as what is not
learned. Seed 0 is not among the reported ones. Every look goes to rl_search.jsonl with its settings; one that is there already
is not taken again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rl import AGENT

from hvcl.core.configuration import field_types, parse
from hvcl.rl import TaskSequence, TrainingProtocol, create, run, sequence
from hvcl.rl.loop import Position, Stage
from hvcl.rl.methods.registry import method
from hvcl.rl.scores import Reference

LOG = Path(__file__).with_suffix(".jsonl")
PROTOCOL = TrainingProtocol(steps=40_000, evaluate_every=40_000, episodes=5, final_episodes=10)


def look(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns of both tasks after each of them, and the score."""
    tasks = TaskSequence("last two", sequence("bullet").tasks[:2:-1])
    agent = create(name, tasks.observations, tasks.actions, 0, **AGENT, **settings)
    rows: list[list[float]] = []

    def note(stage: Stage, position: Position) -> None:
        rows.append([outcome.mean for outcome in stage.outcomes.values()])
        print(f"  {[round(value) for value in rows[-1]]}", flush=True)

    run(tasks, agent, PROTOCOL, 0, on_stage=note)
    performances = [Reference(task.low, task.high).performance(value) for task, value in zip(tasks.tasks, rows[-1], strict=True)]
    return {"returns": rows, "performance": sum(performances) / len(performances)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=("naive", "ewc", "ucl", "hvcl"))
    parser.add_argument("settings", nargs="*", metavar="name=value")
    options = parser.parse_args()
    torch.set_num_threads(1)
    types = field_types(method(options.method).config)
    settings = {}
    for pair in options.settings:
        name, _, value = pair.partition("=")
        if name not in types:
            raise SystemExit(f"{options.method} has no setting {name!r}")
        settings[name] = parse(name, value, types[name])
    key = {"method": options.method, "settings": settings}
    known = [json.loads(line) for line in LOG.read_text().splitlines()] if LOG.exists() else []
    print(options.method, *options.settings, flush=True)
    if any(key.items() <= record.items() for record in known):
        print("  looked at already")
        return
    record = key | look(options.method, settings)
    with LOG.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(f"  performance {record['performance']:.3f}", flush=True)


if __name__ == "__main__":
    main()
