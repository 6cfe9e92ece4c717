"""One update of soft actor-critic, ours against Stable-Baselines3's, interleaved in one run.

Networks of two layers of 64, batch 256, 28 numbers observed and 8 actions, one thread. Both sample from their replay of 3,000
transitions (ours by priority) and make one step of actor, critics, temperature and targets. Above 1 is faster than the peer.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from measure import PAGE, Contest, environment, interleave, one_thread, quartiles, verdict, write_json
from stable_baselines3 import SAC as Peer
from stable_baselines3 import __version__ as peer_version
from stable_baselines3.common.logger import configure

from hvcl.rl import Transitions, create

OBSERVATIONS, ACTIONS, ROWS = 28, 8, 3_000
GOALS = {"naive": 1.8, "hvcl": 1.0}
"""Method to how many times as fast as the peer's dense networks it is meant to be."""


class Still(gymnasium.Env[Any, Any]):
    """Spaces, and nothing that moves."""

    observation_space = gymnasium.spaces.Box(-1, 1, (OBSERVATIONS,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)


def rows() -> Transitions:
    random = np.random.default_rng(0)
    observation, following = random.normal(size=(2, ROWS, OBSERVATIONS)).astype("f")
    action = random.uniform(-1, 1, (ROWS, ACTIONS)).astype("f")
    reward = random.normal(size=ROWS).astype("f")
    return Transitions(observation, action, reward, following, np.zeros(ROWS, "f"), np.ones((ROWS, ACTIONS), "f"))


def peer() -> Peer:
    made = Peer(
        "MlpPolicy", Still(), policy_kwargs={"net_arch": [64, 64]}, buffer_size=60_000, batch_size=256, device="cpu", seed=0
    )
    made.set_logger(configure(None, []))
    for o, a, r, f, t, _ in zip(*rows(), strict=True):
        made.replay_buffer.add(o[None], f[None], a[None], np.array([r]), np.array([t]), [{}])
    return made


def ours(name: str) -> Any:
    agent: Any = create(name, OBSERVATIONS, ACTIONS, 0, capacity=60_000)
    agent = agent.members[0] if name == "hvcl-growing" else agent
    agent.on_task_start(0, 60_000)
    agent.replay.add(rows())
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--out", type=Path, default=PAGE / "rl.json")
    options = parser.parse_args()
    one_thread()
    reference = peer()
    names = ["naive", "ewc", "ucl", "hvcl", "hvcl-growing"]
    contests = [Contest(name, ours(name).update, lambda: reference.train(1, 256), repeats=3) for name in names]
    interleave(contests, 5 if options.quick else 60)
    found = {}
    for contest in contests:
        low, median, high = quartiles([1 / ratio for ratio in contest.ratios])
        goal = GOALS.get(contest.name)
        found[contest.name] = {
            "times_as_fast": round(median, 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "milliseconds": round(1e3 * min(contest.seconds), 2),
            "peer_milliseconds": round(1e3 * min(contest.reference_seconds), 2),
            "goal": goal,
        }
        met = verdict(None if goal is None else median >= goal)
        print(f"{contest.name:<14} {median:5.2f} times as fast as Stable-Baselines3 {peer_version}  ({low:.2f}-{high:.2f}) {met}")
    if not options.quick:
        write_json(options.out, {"environment": environment(stable_baselines3=peer_version), "update": found})


if __name__ == "__main__":
    main()
