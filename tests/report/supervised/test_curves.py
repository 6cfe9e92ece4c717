"""Against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from hvcl.report import load_run
from hvcl.report.supervised.curves import accuracy_of_task, accuracy_over_seen, mean_matrix, terms_over_time

WriteRun = Callable[..., Path]
Outcome = Callable[..., dict[str, object]]

# Averages after the last task: 0.75, 0.80, 0.85.
FIRST = [[0.9, 0.5], [0.7, 0.8]]
SECOND = [[1.0, 0.6], [0.8, 0.8]]
THIRD = [[0.8, 0.4], [0.8, 0.9]]


def test_accuracy_over_time(write_run: WriteRun) -> None:
    seeds = load_run(write_run("run", {1: FIRST, 2: SECOND})).seeds

    # After one task only that one counts: 0.9 and 1.0. After two: 0.75 and 0.8.
    curve = accuracy_over_seen(seeds)
    assert curve == {
        1: (pytest.approx(0.95), pytest.approx(math.sqrt(0.005)), 2),
        2: (pytest.approx(0.775), pytest.approx(math.sqrt(0.00125)), 2),
    }
    assert {after: value.mean for after, value in accuracy_of_task(seeds, 1).items()} == pytest.approx({0: 0.5, 1: 0.55, 2: 0.8})
    matrix = [[cell.mean if cell else None for cell in row] for row in mean_matrix(seeds, 2)]
    assert matrix == [pytest.approx([0.95, 0.55]), pytest.approx([0.75, 0.8])]


def test_an_unfinished_run_is_shown_as_far_as_it_came(write_run: WriteRun) -> None:
    folder = write_run("run", {1: None})
    evaluations = [
        {"kind": "evaluation", "step": 100 * after, "after": after, "accuracy": accuracy}
        for after, accuracy in enumerate([[0.5, 0.5], [0.9, 0.6]])
    ]
    (folder / "seed-1").mkdir()
    (folder / "seed-1" / "metrics.jsonl").write_text("\n".join(map(json.dumps, evaluations)))

    seeds = load_run(folder).shown

    assert accuracy_over_seen(seeds) == {1: (0.9, None, 1)}
    assert len(mean_matrix(seeds, 2)) == 1


def test_loss_terms_are_placed_by_task_whatever_its_length(write_run: WriteRun) -> None:
    folder = write_run("run", {1: FIRST})
    # The first task takes 4 steps, the second 40.
    lines: list[dict[str, object]] = [
        {"kind": "evaluation", "step": step, "after": after, "accuracy": [[0.5, 0.5], *FIRST][after]}
        for after, step in enumerate([0, 4, 44])
    ]
    for step, loss in [(1, 1.0), (2, 3.0), (4, 5.0), (24, 7.0), (34, 9.0), (44, 11.0)]:
        lines.append({"kind": "terms", "step": step, "task": int(step > 4), "terms": {"loss": loss, "other": None}})
    (folder / "seed-1" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))

    seeds = load_run(folder).seeds
    curve = terms_over_time(seeds, "loss", tasks=2, bins=2)

    assert {place: value.mean for place, value in curve.items()} == {0.25: 2.0, 0.75: 5.0, 1.25: 7.0, 1.75: 10.0}
    assert terms_over_time(seeds, "other", tasks=2, bins=2) == {}
