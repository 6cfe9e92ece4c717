from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hvcl.core.errors import RunError
from hvcl.report import load_run
from hvcl.rl.scores import Point, Reference

WriteRun = Callable[..., Path]
Outcome = Callable[..., dict[str, object]]


def test_a_whole_run_is_read(write_reinforcement_run: WriteRun) -> None:
    run = load_run(write_reinforcement_run("run", {1: [80.0, 60.0], 2: [40.0, 50.0]}))

    assert (run.method, run.sequence, run.task_names) == ("hvcl", "classic", ("Reach", "Swing"))
    assert run.settings == {"steps": 100, "hidden": [8], "keep_replay": False}
    assert run.references == (Reference(0, 100), Reference(10, 110))
    first = run.seeds[0]
    assert [evaluation.returns for evaluation in first.evaluations] == [
        Point(0.5, (40.0, None)),
        Point(1.0, (80.0, None)),
        Point(1.5, (80.0, 30.0)),
        Point(2.0, (40.0, 60.0)),
    ]
    assert first.evaluations[-1].usage == ({"layer 1": (0.75, 0.25)}, {"layer 1": (0.1, 0.4, 0.5)})
    assert first.result is not None
    assert first.result.curve == tuple(evaluation.returns for evaluation in first.evaluations)
    assert first.result.scores["cumulative_reward"] == 1.5
    assert [result.returns_at_the_end for result in run.results] == [(40.0, 60.0), (20.0, 50.0)]


def test_a_run_that_has_only_begun(write_reinforcement_run: WriteRun) -> None:
    folder = write_reinforcement_run("run", {1: [80.0, 60.0], 2: None})
    (folder / "seed-1" / "result.json").unlink()
    run = load_run(folder)

    assert [seed.seed for seed in run.seeds] == [1, 2]
    assert run.results == ()
    assert len(run.logs) == 1
    assert run.references is None, "older folders say only in their results what returns are scaled with"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"references": [[0, 50], [1, 2]]}))
    assert load_run(folder).references == (Reference(0, 50), Reference(1, 2))


def test_scores_that_cannot_be_given_are_not_numbers(write_reinforcement_run: WriteRun, reinforcement_outcome: Outcome) -> None:
    # An agent that learns all tasks at once has no time right after a task was learned.
    result = reinforcement_outcome([80.0, 60.0], cumulative_reward=None, forgetting=None, learning_areas=None)
    folder = write_reinforcement_run("run", {1: result | {"returns_when_learned": [80.0, 60.0]}})
    path = folder / "seed-1" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"returns_when_learned": [None, None]}))
    (found,) = load_run(folder).results

    assert math.isnan(found.scores["cumulative_reward"])
    assert found.returns_when_learned == (None, None)
    assert found.learning_areas is None


def test_a_last_line_cut_off_is_left_out(write_reinforcement_run: WriteRun) -> None:
    folder = write_reinforcement_run("run", {1: [80.0, 60.0]})
    metrics = folder / "seed-1" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])

    assert [evaluation.returns.time for evaluation in load_run(folder).seeds[0].evaluations] == [0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"format": "rl-9"}, "has format 'rl-9'"),
        ("config.json", {"sequence": 3}, "'sequence' is not text"),
        ("config.json", {"task_names": []}, "'task_names' is empty"),
        ("config.json", {"agent": None}, "'agent' is not an object"),
        ("seed-1/result.json", {"curve": [[0.5, 1.0]]}, "'curve' is not a list of times with 2 returns each"),
        ("seed-1/result.json", {"references": [[0, 1]]}, "'references' is not the returns of random actions"),
        ("seed-1/result.json", {"references": [[0, 1], [1, 1]]}, "'references' is not the returns of random actions"),
        ("seed-1/result.json", {"returns_at_the_end": [1.0]}, "'returns_at_the_end' is not a list of 2 numbers"),
        ("seed-1/result.json", {"forgetting": "much"}, "'forgetting' is not a number"),
        ("seed-1/metrics.jsonl", {"returns": [[1.0], []]}, "line 1, is damaged: 'returns' is not the returns of 2 tasks"),
        ("seed-1/metrics.jsonl", {"returns": [[1.0]]}, "'returns' is not the returns of 2 tasks"),
        ("seed-1/metrics.jsonl", {"usage": [{}, {"layer": 3}]}, "'usage' is not shares by layer of 2 tasks"),
        ("seed-1/metrics.jsonl", {"time": "now"}, "'time' is not a number"),
    ],
)
def test_damage_is_named_in_one_line(
    write_reinforcement_run: WriteRun, file: str, change: dict[str, object], message: str
) -> None:
    folder = write_reinforcement_run("run", {1: [80.0, 60.0]})
    first = (folder / file).read_text().splitlines()[0]
    (folder / file).write_text(json.dumps(json.loads(first) | change) + "\n")

    with pytest.raises(RunError, match=re.escape(message)) as error:
        load_run(folder)

    assert str(folder / file) in str(error.value)
    assert "\n" not in str(error.value)
