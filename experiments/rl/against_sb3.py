"""Our dense SAC against Stable-Baselines3's: the same task, budget and settings, three seeds each.

    .venv-bench/bin/python -m experiments.rl.against_sb3 [--tasks InvertedDoublePendulum,Hopper] [--steps 30000] [--seeds 1,2,3]

PyBullet tasks, uniform replay, one update per step, networks of two layers of 64 (leaky ReLU here, ReLU there). Every finished
run is a line of against_sb3.jsonl and is not run again.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import SAC as Peer

from experiments.records import append_record, read_records
from hvcl.commands.options import parse_seeds
from hvcl.rl import TaskSequence, TrainingProtocol, create, evaluate, run, sequence
from hvcl.rl.environments import Array

LOG = Path(__file__).with_suffix(".jsonl")
EPISODES = 10


class PeerAgent:
    """The peer behind the interface that `evaluate` needs."""

    def __init__(self, model: Peer) -> None:
        self.model = model

    def predict(self, observations: Array, task: int | None = None) -> Array:
        return np.asarray(self.model.predict(observations, deterministic=True)[0], np.float32)

    def usage(self, observations: Array) -> dict[str, list[float]]:
        return {}


def train(who: str, tasks: TaskSequence, steps: int, seed: int) -> Any:
    if who == "sb3":
        environment = tasks.environment(0)
        settings: dict[str, Any] = {"policy_kwargs": {"net_arch": [64, 64]}, "learning_starts": 1_000, "device": "cpu"}
        model = Peer("MlpPolicy", environment, seed=seed, buffer_size=steps, **settings)
        return PeerAgent(model.learn(steps))
    settings = {"priority": 0.0, "updates_per_step": 1.0, "warmup": 1_000, "capacity": steps}
    agent = create("naive", tasks.observations, tasks.actions, seed, **settings)
    run(tasks, agent, TrainingProtocol(steps=steps, evaluate_every=steps, episodes=1, final_episodes=1), seed)
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="InvertedDoublePendulum,Hopper")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seeds", default="1,2,3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = read_records(LOG)
    chain = {task.name: task for task in sequence("bullet").tasks}
    for name in options.tasks.split(","):
        tasks = TaskSequence(name, (chain[name],))
        for seed in parse_seeds(options.seeds):
            for who in ("ours", "sb3"):
                key = {"who": who, "task": name, "steps": options.steps, "seed": seed}
                if any(key.items() <= line.items() for line in known):
                    continue
                outcome = evaluate(train(who, tasks, options.steps, seed), tasks, 0, EPISODES, 1_000 + seed)
                known.append(key | {"mean_return": outcome.mean})
                append_record(LOG, known[-1])
        for who in ("ours", "sb3"):
            means = [r["mean_return"] for r in known if (r["who"], r["task"], r["steps"]) == (who, name, options.steps)]
            spread = statistics.stdev(means) if len(means) > 1 else 0.0
            print(f"{name:<24} {who:<5} {statistics.fmean(means):9.1f} ± {spread:.1f}  {[round(m) for m in means]}")


if __name__ == "__main__":
    main()
