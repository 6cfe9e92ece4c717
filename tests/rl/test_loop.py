import json
import random

import gymnasium
import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError, InterruptedRun, RunError
from hvcl.core.storage import load_state
from hvcl.rl import Agent, Task, TaskSequence, TrainingProtocol, evaluate, evaluation, known_methods, run
from hvcl.rl.classic import Reach
from hvcl.runs import RunFolder, run_seed
from hvcl.runs.reinforcement import RLConfig

PROTOCOL = {"steps": 48, "evaluate_every": 24, "episodes": 1, "final_episodes": 2}
SMALL = {"hidden": (6,), "batch_size": 8}


class Counter(gymnasium.Env):
    """Shows how many steps the episode has taken; ends after 3, or is cut off after 5."""

    def __init__(self, ends=True):
        self.observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.ends and self.count == 3, self.count == 5, {}


class Witness(Agent):
    """Does nothing and remembers everything."""

    def __init__(self, observations=1, actions=1):
        super().__init__(observations, actions, 0)
        self.seen, self.told = [], []

    def act(self, observations):
        return np.zeros((len(observations), self.actions), np.float32)

    def predict(self, observations, task=None):
        return self.act(observations)

    def observe(self, transitions):
        self.seen.append(transitions)
        return {"steps": float(len(self.seen))}

    def on_task_start(self, task, steps):
        self.told.append(("start", task, steps))

    def on_task_end(self):
        self.told.append(("end",))

    num_parameters = 0

    def state_dict(self):
        return {}

    def restore(self, state):
        pass


def test_transitions_of_episodes_that_end_and_are_cut_off():
    tasks = TaskSequence("count", (Task("ends", Counter), Task("is cut off", lambda: Counter(False))))
    witness, stages = Witness(), []
    run(
        tasks,
        witness,
        TrainingProtocol(steps=12, environments=2, evaluate_every=12, episodes=1, final_episodes=1),
        0,
        on_stage=lambda stage, position: stages.append(stage),
    )
    assert witness.told == [("start", 0, 12), ("end",), ("start", 1, 12), ("end",)]
    first = witness.seen[:6]
    assert [int(t.observation[0, 0]) for t in first] == [0, 1, 2, 0, 1, 2]
    assert [int(t.next_observation[1, 0]) for t in first] == [1, 2, 3, 1, 2, 3]
    assert [int(t.terminal[0]) for t in first] == [0, 0, 1, 0, 0, 1]
    second = witness.seen[6:]
    assert [int(t.next_observation[0, 0]) for t in second] == [1, 2, 3, 4, 5, 1]
    assert sum(t.terminal.sum() for t in second) == 0
    assert stages[0].training == [3, 3, 3, 3]
    assert stages[0].terms == {"steps": 3.5}
    assert stages[1].outcomes[0].returns == [3]
    assert stages[1].outcomes[1].returns == [5]


def test_masks_of_all_tasks_at_once(guesses):
    witness = Witness(3, 1)
    witness.all_tasks_at_once = True
    run(guesses, witness, TrainingProtocol(steps=4, evaluate_every=8, episodes=1, final_episodes=1), 0)
    assert len(witness.seen) == 4  # two tasks of four steps, two at a time
    assert (np.abs(witness.seen[0].observation) == [[1, 1, 0], [1, 1, 1]]).all()


def config(name, **protocol):
    agent = SMALL | ({"rollout": 16} if name.endswith("ppo") else {"warmup": 8, "capacity": 500})
    return RLConfig.make("classic", name, (1,), PROTOCOL | protocol, agent)


def plain(state, place=""):
    if isinstance(state, dict | list):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from plain(value, f"{place}/{key}")
    elif place != "/seconds":
        yield place, state.tolist() if isinstance(state, torch.Tensor) else state


@pytest.mark.parametrize("name", sorted(known_methods()))
def test_killed_at_random_steps_and_resumed_ends_bit_identically(name, tmp_path):
    for number in range(2):
        RunFolder(tmp_path / str(number)).prepare(config(name), {"task_names": []}, resume=False, force=False)
    run_seed(RunFolder(tmp_path / "0"), 1)
    moments, kills = random.Random(name), 0
    while True:
        left = moments.randrange(3, 40) if kills else 7

        def stop():
            nonlocal left
            left -= 1
            return left < 0

        try:
            run_seed(RunFolder(tmp_path / "1"), 1, stop=stop)
            break
        except InterruptedRun:
            kills += 1
    assert kills
    logs = [(tmp_path / n / "seed-1" / "metrics.jsonl").read_bytes() for n in "01"]
    assert logs[0] == logs[1]
    states = [dict(plain(load_state(tmp_path / n / "seed-1" / "checkpoint.json"))) for n in "01"]
    assert states[0] == states[1]
    results = [json.loads((tmp_path / n / "seed-1" / "result.json").read_text()) | {"seconds": 0} for n in "01"]
    assert results[0] == results[1]


def test_evaluation_repeats_itself(guess):
    witness = Witness(2, 1)
    assert evaluate(witness, guess, 0, 3, 7) == evaluate(witness, guess, 0, 3, 7)


def test_episodes_that_never_end_are_noticed(monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST", 50)
    endless = TaskSequence.of([Reach])
    with pytest.raises(InputError, match=r"1 Reach do not end within 50 steps.*TimeLimit"):
        evaluate(Witness(2, 2), endless, 0, 1, 7)


def test_a_checkpoint_of_another_agent_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    folder.prepare(config("naive"), {}, resume=False, force=False)
    seed = folder.seed(1)
    seed.path.mkdir()
    seed.metrics_path.touch()
    seed.save_checkpoint({"agent": {}, "position": [0, 24], "metrics_size": 0, "seconds": 0.0})
    with pytest.raises(RunError, match=r"checkpoint.json does not fit this run .*--force"):
        run_seed(RunFolder(tmp_path), 1)


def test_a_folder_with_another_run_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.prepare(config("naive"), {}, resume=False, force=False)
    with pytest.raises(RunError, match="steps 48, not 50"):
        folder.prepare(config("naive", steps=50), {}, resume=True, force=False)
    with pytest.raises(RunError, match="--resume"):
        folder.prepare(config("naive"), {}, resume=False, force=False)
    with pytest.raises(InputError, match="at least 1"):
        TrainingProtocol(steps=0)


def test_what_j_compares_is_measured_with_more_episodes():
    tasks = TaskSequence("counts", (Task("a", Counter, 0, 5), Task("b", Counter, 0, 5)))
    counts = []

    def on_stage(stage, position):
        counts.append({task: len(outcome.returns) for task, outcome in stage.outcomes.items()})

    run(tasks, Witness(), TrainingProtocol(steps=8, evaluate_every=4, episodes=1, final_episodes=3), 0, on_stage=on_stage)
    assert counts == [{0: 1}, {0: 3}, {0: 1, 1: 1}, {0: 3, 1: 3}]
