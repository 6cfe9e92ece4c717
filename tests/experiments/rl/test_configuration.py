"""The settings of the robots are those of the search."""

import json
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
from experiments.rl.chain import FOUND
from experiments.rl.configuration import TOPIC
from experiments.topic import Reinforcement, Trial
from hvcl.core.errors import InputError
from hvcl.rl import sequence

ROOT = Path(__file__).resolve().parents[3]


def test_settings_on_the_chain_are_the_best_trials():
    best = TOPIC.best(TOPIC.records())
    assert {method for _, method in best} == {"ewc", "ucl", "hvcl"}
    for (_, method), record in best.items():
        document = json.loads((ROOT / "results" / "rl" / "bullet" / f"{method}.json").read_text())
        assert record["settings"].items() <= document["agent"].items()
        assert FOUND.get(method, {}).items() <= document["agent"].items()


def test_a_trial_learns_the_tasks_in_order_and_has_the_mean_performance(capsys):
    chain = "Pendulum-v1,Pendulum-v1"
    first, second = (task.name for task in sequence(chain).tasks)
    protocol = Reinforcement(
        tasks=(second, first),
        training={"steps": 60, "evaluate_every": 60, "episodes": 1, "final_episodes": 1},
        agent={"warmup": 30, "capacity": 60, "updates_per_step": 0.1},
    )
    found = protocol.run(Trial(chain, "ewc", {"strength": 10.0}))
    assert [len(row) for row in found["returns"]] == [1, 2]
    assert isinstance(found["performance"], float)
    with pytest.raises(InputError, match="strength"):
        protocol.identity(Trial(chain, "ewc", {"strength": "strong"}))
