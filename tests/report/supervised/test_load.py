from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hvcl.core.errors import RunError
from hvcl.report import load_run

WriteRun = Callable[..., Path]
MATRIX = [[0.9, 0.5], [0.7, 0.8]]


def test_a_whole_run_is_read(realistic_runs: Path) -> None:
    run = load_run(realistic_runs / "hvcl")

    assert run.config.benchmark == "split-digits"
    assert run.config.learner["experts"] == 2
    assert [seed.seed for seed in run.seeds] == [1, 2, 3]
    assert run.finished == run.seeds
    first = run.seeds[0]
    assert first.environment["torch"] == "2.13.0+cpu"
    assert [evaluation.after for evaluation in first.evaluations] == [0, 1, 2, 3, 4, 5]
    assert len(first.terms) == 100
    assert first.terms[-1].values["expert_kl"] > 0
    assert first.result is not None
    written = json.loads((realistic_runs / "hvcl/seed-1/result.json").read_text())
    assert [list(row) for row in first.result.accuracy_matrix] == written["accuracy_matrix"]
    assert first.result.layers["body.1"].information == written["layers"]["body.1"]["information"]
    assert first.result.layers["body.1"].experts == 2


def test_a_seed_without_result_is_unfinished(write_run: WriteRun) -> None:
    folder = write_run("run", {1: MATRIX, 2: None, 3: MATRIX})
    (folder / "seed-2").mkdir()

    run = load_run(folder)

    assert [seed.seed for seed in run.finished] == [1, 3]
    assert [seed.seed for seed in run.seeds] == [1, 2, 3]


def test_a_planned_seed_that_has_not_begun_counts_as_unfinished(write_run: WriteRun) -> None:
    assert len(load_run(write_run("run", {1: MATRIX}, seeds=[1, 2])).seeds) == 2


def test_null_is_not_a_number(write_run: WriteRun, outcome: Callable[..., dict[str, object]]) -> None:
    result = load_run(write_run("run", {1: outcome(MATRIX, nll=None)})).seeds[0].result

    assert result is not None
    assert math.isnan(result.quantities["nll"])


EXPERT = {
    "expert": 0,
    "opened_step": 3,
    "opened_after": 96,
    "examples": 40,
    "labels": {"0": 30, "1": 10},
    "stretches": [[3, 4, 32], [7, 7, 8]],
}


def test_experts_are_read(write_run: WriteRun, outcome: Callable[..., dict[str, object]]) -> None:
    result = load_run(write_run("run", {1: outcome(MATRIX, experts=[EXPERT])})).seeds[0].result

    assert result is not None
    (expert,) = result.experts
    assert (expert.number, expert.opened_step, expert.opened_after, expert.examples) == (0, 3, 96, 40)
    assert expert.labels == {"0": 30, "1": 10}
    assert expert.stretches == ((3, 4, 32), (7, 7, 8))


def test_results_from_before_there_were_experts_are_read(write_run: WriteRun, outcome: Callable[..., dict[str, object]]) -> None:
    assert "experts" not in outcome(MATRIX)
    for result in (outcome(MATRIX), outcome(MATRIX, experts=[])):
        loaded = load_run(write_run("run", {1: result})).seeds[0].result
        assert loaded is not None
        assert loaded.experts == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert": -1}, "'expert' is not a whole number of at least 0"),
        ({"examples": 1.5}, "'examples' is not a whole number"),
        ({"labels": {"0": "many"}}, "'labels' is not counts by name"),
        ({"labels": [1]}, "'labels' is not an object"),
        ({"stretches": [[5, 4, 1]]}, "'stretches' is not a list of [first step, last step, examples]"),
        ({"stretches": [[5, 6]]}, "'stretches' is not a list of"),
        ({"stretches": 5}, "'stretches' is not a list of"),
    ],
)
def test_a_damaged_expert_is_named(
    write_run: WriteRun, outcome: Callable[..., dict[str, object]], change: dict[str, object], message: str
) -> None:
    folder = write_run("run", {1: outcome(MATRIX, experts=[EXPERT | change])})

    with pytest.raises(RunError, match=re.escape(message)) as error:
        load_run(folder)

    assert str(folder / "seed-1/result.json") in str(error.value)


def test_tasks_begin_where_the_evaluations_say(write_run: WriteRun, realistic_runs: Path) -> None:
    assert load_run(realistic_runs / "hvcl").seeds[0].task_starts() == (0, 100, 200, 300, 400)
    assert load_run(write_run("run", {1: MATRIX})).seeds[0].task_starts() == (0,)


@pytest.mark.parametrize("tail", [b'{"kind": "terms", "step": 3, "ta', b'{"kind": "terms", "\xc3', b"\n\n", b"\x00\x00\x00"])
def test_a_last_line_cut_off_is_left_out(write_run: WriteRun, tail: bytes) -> None:
    folder = write_run("run", {1: MATRIX})
    line = b'{"kind": "terms", "step": 2, "task": 0, "terms": {"loss": 0.5}}\n'
    (folder / "seed-1" / "metrics.jsonl").write_bytes(line + tail)

    terms = load_run(folder).seeds[0].terms

    assert [(record.step, record.values["loss"]) for record in terms] == [(2, 0.5)]


def test_a_step_written_twice_counts_as_written_last(write_run: WriteRun) -> None:
    folder = write_run("run", {1: MATRIX})
    lines = [{"kind": "terms", "step": step, "task": 0, "terms": {"loss": loss}} for step, loss in [(2, 1), (4, 2), (2, 3)]]
    (folder / "seed-1" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))

    assert [(record.step, record.values["loss"]) for record in load_run(folder).seeds[0].terms] == [(2, 3), (4, 2)]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "is not valid JSON"),
        ("config.json", "[]", "is not a JSON object"),
        ("config.json", '{"format": 2}', "has format 2"),
        ("config.json", '{"format": 1, "task_names": ["a"]}', "'benchmark' is missing"),
        ("seed-1/result.json", '{"seed": 1', "is not valid JSON"),
        ("seed-1/result.json", '{"seed": 1}', "'accuracy_matrix' is missing"),
        ("seed-1/result.json", '{"accuracy_matrix": [[0.9]]}', "'accuracy_matrix' is not a matrix of 2 x 2 numbers"),
        ("seed-1/result.json", '{"accuracy_matrix": [[1, 1], [1, "x"]]}', "is not a matrix of 2 x 2 numbers"),
        ("seed-1/environment.json", "", "is not valid JSON"),
        ("seed-1/metrics.jsonl", 'nonsense\n{"kind": "other"}\n', "line 1, is damaged"),
        ("seed-1/metrics.jsonl", '{"kind": "terms", "step": "x"}\n', "'step' is not a whole number"),
        ("seed-1/metrics.jsonl", '{"kind": "evaluation", "step": 0, "after": 0, "accuracy": [1]}\n', "2 numbers"),
    ],
)
def test_damage_is_named_in_one_line(write_run: WriteRun, file: str, content: str, message: str) -> None:
    folder = write_run("run", {1: MATRIX})
    (folder / file).write_text(content)

    with pytest.raises(RunError, match=re.escape(message)) as error:
        load_run(folder)

    assert str(folder / file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "seed-1").mkdir(parents=True)

    with pytest.raises(RunError, match=r"config\.json is missing"):
        load_run(tmp_path / "run")
