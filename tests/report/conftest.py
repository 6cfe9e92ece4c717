"""Run folders as the runner writes them: realistic ones, and ones whose numbers a test chooses."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TASK_NAMES = ["0/1", "2/3", "4/5", "6/7", "8/9"]
LAYERS = ["body.0", "body.1", "head"]
STEPS_OF_A_TASK = 100
MEMORY = {"naive": "none", "hvcl": "none", "joint": "all examples"}
KEPT = {"naive": 0.02, "hvcl": 0.45, "joint": 0.97}

WriteRun = Callable[..., Path]


def dump(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def configuration(**changes: Any) -> dict[str, Any]:
    config = {
        "format": 1,
        "benchmark": "split-digits",
        "scenario": "domain",
        "supervision": "boundaries",
        "memory": "none",
        "method": "hvcl",
        "seeds": [1, 2, 3],
        "task_names": TASK_NAMES,
        "evaluated_on": "test",
        "stream": {"epochs": 10, "batch_size": 64, "shuffle_tasks": False},
        "learner": {"experts": 2, "learning_rate": 0.001},
    }
    return {**config, **changes}


def outcome(matrix: list[list[float]], **changes: Any) -> dict[str, Any]:
    """A result.json whose derived figures follow from the accuracy matrix."""
    tasks = len(matrix)
    learned = [matrix[task][task] for task in range(tasks)]
    earlier = range(tasks - 1)
    result = {
        "seed": 1,
        "accuracy_matrix": matrix,
        "initial_accuracy": [0.5] * tasks,
        "average_accuracy": sum(matrix[-1]) / tasks,
        "learning_accuracy": sum(learned) / tasks,
        "forgetting": sum(max(row[t] for row in matrix[t:-1]) - matrix[-1][t] for t in earlier) / max(tasks - 1, 1),
        "backward_transfer": sum(matrix[-1][t] - matrix[t][t] for t in earlier) / max(tasks - 1, 1),
        "forward_transfer": sum(matrix[t - 1][t] - 0.5 for t in range(1, tasks)) / max(tasks - 1, 1),
        "nll": 0.4,
        "calibration_error": 0.05,
        "layers": {},
        "parameters": 89_610,
        "stored_bytes": 716_880,
        "steps": STEPS_OF_A_TASK * tasks,
        "seconds": 42.5,
    }
    return {**result, **changes}


def gate(shares: list[float]) -> dict[str, Any]:
    """A layer of two experts, the first of which takes the given share of each task."""

    def entropy(share: float) -> float:
        return -sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)

    marginal = entropy(sum(shares) / len(shares))
    conditional = sum(map(entropy, shares)) / len(shares)
    return {
        "marginal_entropy": marginal,
        "conditional_entropy": conditional,
        "information": marginal - conditional,
        "usage": [[share, 1 - share] for share in shares],
        "routed": [[float(share > 0.5), float(share <= 0.5)] for share in shares],
    }


def realistic_matrix(method: str, chance: random.Random) -> list[list[float]]:
    """Accuracies that decay towards 50 % by as much as the method forgets."""
    best = [0.995, 0.955, 0.985, 0.98, 0.94]
    matrix = []
    for after in range(1, 6):
        row = []
        for task in range(5):
            if task < after:
                kept = KEPT[method] ** ((after - 1 - task) / 2)
                row.append(min(1.0, 0.5 + (best[task] - 0.5) * kept + chance.gauss(0, 0.012)))
            else:
                row.append(0.5 + chance.gauss(0, 0.06))
        matrix.append([round(value, 4) for value in row])
    return matrix


def realistic_terms(method: str, step: int, chance: random.Random) -> dict[str, float]:
    within = (step - 1) % STEPS_OF_A_TASK / STEPS_OF_A_TASK
    likelihood = 0.08 + 0.6 * math.exp(-6 * within) + chance.gauss(0, 0.01)
    if method != "hvcl":
        return {"loss": likelihood}
    terms = {
        "utility": -likelihood,
        "expert_kl": 900 * (1 - math.exp(-4 * within)) + chance.gauss(0, 20),
        "gate_kl": 12 * (1 - math.exp(-3 * within)),
        "conditional_entropy": 0.3 + 0.6 * math.exp(-step / 120),
        "marginal_entropy": 0.97 + chance.gauss(0, 0.01),
        "diversity": 0.4 + 0.0003 * step,
    }
    return {"loss": likelihood + 0.001 * terms["expert_kl"], **terms}


def write_realistic_seed(folder: Path, method: str, seed: int, finished: bool = True) -> None:
    chance = random.Random(f"{method} {seed}")
    matrix = realistic_matrix(method, chance)
    gates = {}
    if method == "hvcl":
        gates = {
            name: gate([round(chance.choice([0.06, 0.94, 0.7]) + chance.gauss(0, 0.015), 4) for _ in TASK_NAMES])
            for name in LAYERS
        }
    environment = {
        "hvcl": "0.1.0",
        "python": "3.11.2",
        "torch": "2.13.0+cpu",
        "commit": "0bcd469",
        "seed": seed,
        "threads": 1,
        "platform": "Linux-6.1-x86_64",
    }
    dump(folder / "environment.json", environment)
    initial = [round(0.5 + chance.gauss(0, 0.04), 4) for _ in TASK_NAMES]
    lines: list[dict[str, Any]] = []
    for after, row in enumerate([initial, *matrix]):
        lines.append(
            {
                "kind": "evaluation",
                "step": after * STEPS_OF_A_TASK,
                "after": after,
                "accuracy": row,
                "nll": [0.4] * 5,
                "calibration_error": [0.05] * 5,
                "layers": gates,
            }
        )
        if after == 5 or (after == 3 and not finished):
            break
        for step in range(after * STEPS_OF_A_TASK + 5, (after + 1) * STEPS_OF_A_TASK + 1, 5):
            lines.append({"kind": "terms", "step": step, "task": after, "terms": realistic_terms(method, step, chance)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        nll = {"naive": 1.9, "hvcl": 0.62, "joint": 0.11}[method] + chance.gauss(0, 0.05)
        result = outcome(
            matrix,
            seed=seed,
            initial_accuracy=initial,
            layers=gates,
            nll=nll,
            calibration_error=nll / 10,
            seconds=30 + 10 * len(gates) + chance.random(),
            parameters=179_220 if gates else 89_610,
        )
        dump(folder / "result.json", result)


def write_realistic_runs(folder: Path) -> Path:
    """Three methods with three seeds each, as the demonstration writes them."""
    for method, memory in MEMORY.items():
        learner = {"experts": 2, "learning_rate": 0.001, "beta": 0.01} if method == "hvcl" else {"learning_rate": 0.001}
        dump(folder / method / "config.json", configuration(method=method, memory=memory, learner=learner))
        for seed in (1, 2, 3):
            write_realistic_seed(folder / method / f"seed-{seed}", method, seed)
    return folder


@pytest.fixture(scope="session")
def realistic_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_realistic_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write a run of two tasks: `write_run("name", results={seed: accuracy_matrix or result.json}, **config)`."""

    def write(name: str, results: dict[int, Any], **config: Any) -> Path:
        folder = tmp_path / name
        config = {"seeds": list(results), "task_names": ["first", "second"], **config}
        dump(folder / "config.json", configuration(**config))
        for seed, result in results.items():
            result = outcome(result) if isinstance(result, list) else result
            if result is not None:
                dump(folder / f"seed-{seed}" / "result.json", {**result, "seed": seed})
        return folder

    return write


@pytest.fixture(name="outcome", scope="session")
def outcome_fixture() -> Callable[..., dict[str, Any]]:
    return outcome


def reinforcement_configuration(**changes: Any) -> dict[str, Any]:
    config = {
        "format": "rl-1",
        "sequence": "classic",
        "method": "hvcl",
        "seeds": [1],
        "protocol": {"steps": 100},
        "agent": {"hidden": [8], "keep_replay": False},
        "task_names": ["Reach", "Swing"],
    }
    return {**config, **changes}


def moments(ends: list[float]) -> list[dict[str, Any]]:
    """The log of a seed that learned two tasks: the second is seen only from its own time on."""
    times = [0.5, 1.0, 1.5, 2.0]
    returns = [[ends[0] / 2, None], [ends[0], None], [ends[0], ends[1] / 2], [ends[0] / 2, ends[1]]]
    return [
        {
            "kind": "evaluation",
            "time": time,
            "step": 100 * time,
            "returns": [None if value is None else [value - 1, value + 1] for value in values],
            "usage": [{"layer 1": [0.75, 0.25]}, {} if time <= 1 else {"layer 1": [0.1, 0.4, 0.5]}],
        }
        for time, values in zip(times, returns, strict=True)
    ]


def reinforcement_outcome(ends: list[float], **changes: Any) -> dict[str, Any]:
    """The result.json of a seed with such a log."""
    first, second = ends
    result = {
        "references": [[0.0, 100.0], [10.0, 110.0]],
        "returns_when_learned": ends,
        "returns_at_the_end": [first / 2, second],
        "cumulative_reward": 1.5,
        "cumulative_above_random": 1.5,
        "average_performance": (first / 200 + (second - 10) / 100) / 2,
        "forgetting": first / 400,
        "learning_areas": [0.5, 0.25],
        "curve": [[0.5, first / 2, None], [1.0, first, None], [1.5, first, second / 2], [2.0, first / 2, second]],
    }
    return {**result, **changes}


@pytest.fixture
def write_reinforcement_run(tmp_path: Path) -> WriteRun:
    """Write a run of two tasks: `write_reinforcement_run("name", {seed: returns when learned or result.json}, **config)`."""

    def write(name: str, results: dict[int, Any], **config: Any) -> Path:
        folder = tmp_path / name
        dump(folder / "config.json", reinforcement_configuration(**{"seeds": list(results), **config}))
        for seed, result in results.items():
            place = folder / f"seed-{seed}"
            if result is None:
                continue
            result = reinforcement_outcome(result) if isinstance(result, list) else result
            dump(place / "result.json", {**result, "seed": seed})
            lines = moments(result["returns_when_learned"])
            (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return write


@pytest.fixture(name="reinforcement_outcome", scope="session")
def reinforcement_outcome_fixture() -> Callable[..., dict[str, Any]]:
    return reinforcement_outcome
