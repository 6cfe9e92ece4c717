"""The drift figures: lanes, bars, openings and words, from records whose numbers a test chooses."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvcl.report import load_run
from hvcl.report.supervised.drift import DriftFigure, Timeline, drift_figures, expert_spans
from hvcl.report.supervised.groups import group_runs
from hvcl.report.supervised.run import Expert, Stretch

WriteRun = Callable[..., Path]
Outcome = Callable[..., dict[str, Any]]
MATRIX = [[0.9, 0.5], [0.7, 0.8]]
GATE = {
    "marginal_entropy": 1.0,
    "conditional_entropy": 0.1,
    "information": 0.9,
    "usage": [[0.99, 0.01], [0.1, 0.9]],
    "routed": [[0.996, 0.004], [0.1, 0.9]],
}


def expert(number: int, *stretches: tuple[int, int, int], after: int = 0, labels: dict[str, int] | None = None) -> dict[str, Any]:
    examples = sum(count for *_, count in stretches)
    return {
        "expert": number,
        "opened_step": stretches[0][0],
        "opened_after": after,
        "examples": examples,
        "labels": labels or {"0": examples},
        "stretches": [list(stretch) for stretch in stretches],
    }


TWO = [
    expert(0, (0, 11, 1200), labels={"10": 1, "9": 600, "0": 599}),
    expert(1, (12, 19, 800), after=1200),
]


def figures_of(folder: Path) -> list[DriftFigure]:
    (group,) = group_runs([load_run(folder)])
    return drift_figures(group, {entry.label: "series-1" for entry in group.entries})


@pytest.fixture
def timeline(write_run: WriteRun, outcome: Outcome) -> Callable[..., Timeline]:
    def make(experts: list[dict[str, Any]], change_at: int | None = 10, **changes: Any) -> Timeline:
        folder = write_run("run", {1: outcome(MATRIX, **{"experts": experts, "steps": 20, **changes})}, supervision="task-free")
        if change_at is not None:
            moments = [(0, 0), (1, change_at), (2, 20)]
            rows = [[0.5, 0.5], *MATRIX]
            lines = [{"kind": "evaluation", "after": after, "step": step, "accuracy": rows[after]} for after, step in moments]
            (folder / "seed-1" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        ((only,),) = (figure.timelines for figure in figures_of(folder))
        return only

    return make


def test_a_lane_for_each_expert_with_its_opening_and_bars(timeline: Callable[..., Timeline]) -> None:
    drawn = timeline(TWO)

    assert [lane.number for lane in drawn.lanes] == [1, 2]
    assert [lane.place for lane in drawn.lanes] == [0.0, 60.0]
    assert [[(bar.left, bar.width, bar.strength) for bar in lane.bars] for lane in drawn.lanes] == [
        [(0.0, 60.0, 1.0)],
        [(60.0, 40.0, 1.0)],
    ]
    assert drawn.lanes[1].bars[0].tip == "steps 12 to 19: 800 examples, 100 % of all"
    assert drawn.lanes[0].labels == "0: 599, 9: 600, 10: 1"
    assert drawn.tasks == (("first", 0.0, 50.0), ("second", 50.0, 50.0))
    assert drawn.ticks[0] == (0.0, "0")
    assert drawn.ticks[-1] == (100.0, "20")


def test_openings_are_told_in_words(timeline: Callable[..., Timeline]) -> None:
    drawn = timeline(TWO)

    assert drawn.description == (
        "2 experts: expert 1 opened at step 0, and learned from 1,200 examples; "
        "expert 2 opened at step 12, after 1,200 examples, and learned from 800 examples."
    )
    assert drawn.lead == "2 experts for 2 tasks."
    assert [lane.change for lane in drawn.lanes] == ["as first begins", "2 steps into second"]
    one = timeline([expert(0, (0, 0, 1))])
    assert one.description == "1 expert: expert 1 opened at step 0, and learned from 1 example."
    assert one.lead == "1 expert for 2 tasks."
    assert one.lanes[0].bars[0].tip == "step 0: 1 example, 100 % of all"


def test_an_opening_before_the_change_is_told_against_it(timeline: Callable[..., Timeline]) -> None:
    assert timeline(TWO, change_at=13).lanes[1].change == "1 step before second"


def test_what_an_expert_answers_for_comes_from_the_gate(timeline: Callable[..., Timeline]) -> None:
    drawn = timeline([*TWO, expert(2, (19, 19, 1), after=1999)], layers={"gate": GATE})

    # From one percent on, the largest first; the third has no column at all.
    assert [lane.answers for lane in drawn.lanes] == ["first (100 %), second (10 %)", "second (90 %)", "–"]
    assert [lane.answers for lane in timeline(TWO).lanes] == ["–", "–"]


def test_without_a_whole_log_there_are_no_task_changes(timeline: Callable[..., Timeline]) -> None:
    drawn = timeline(TWO, change_at=None)

    assert drawn.tasks == ()
    assert [lane.change for lane in drawn.lanes] == ["–", "–"]
    assert timeline(TWO, change_at=25).tasks == (), "a change after the end of the stream is no change"


def test_steps_that_are_missing_or_too_few_are_taken_from_the_stretches(timeline: Callable[..., Timeline]) -> None:
    for steps in (None, 5):
        assert [bar.left + bar.width for lane in timeline(TWO, steps=steps).lanes for bar in lane.bars] == [60.0, 100.0]


def test_a_blurred_stream_stays_small(timeline: Callable[..., Timeline]) -> None:
    chance = random.Random(0)
    whose = [int(chance.random() < step / 50_000) for step in range(50_000)]
    experts = [expert(m, *((s, s, chance.randrange(1, 32)) for s, mine in enumerate(whose) if mine == m)) for m in (0, 1)]
    drawn = timeline(experts, change_at=25_000, steps=50_000)

    assert min(len(one["stretches"]) for one in experts) > 10_000
    for lane in drawn.lanes:
        assert 100 < len(lane.bars) <= 300
        assert all(0 < bar.strength <= 1 for bar in lane.bars)
        assert max(bar.left + bar.width for bar in lane.bars) <= 100.01
    first, second = drawn.lanes
    assert first.bars[5].strength > 0.9 > 0.1 > first.bars[-5].strength
    assert second.bars[-5].strength > 0.9


def test_the_blend_of_tasks_is_told(write_run: WriteRun, outcome: Outcome) -> None:
    for blur, told in ((0.5, "Neighbouring tasks blend into each other over 0.5 of a task"), (0.0, "")):
        folder = write_run("run", {1: outcome(MATRIX, experts=TWO)}, supervision="task-free", stream={"blur": blur})
        assert [figure.blend for figure in figures_of(folder)] == [told]


def test_every_finished_seed_with_experts_has_a_timeline(write_run: WriteRun, outcome: Outcome) -> None:
    folder = write_run("run", {1: outcome(MATRIX, experts=TWO), 2: None, 3: outcome(MATRIX, experts=TWO[:1]), 4: MATRIX})
    (figure,) = figures_of(folder)

    assert [(one.seed, len(one.lanes)) for one in figure.timelines] == [(1, 2), (3, 1)]
    assert figures_of(write_run("other", {1: MATRIX})) == []


def learned(number: int, *stretches: tuple[int, int, int]) -> Expert:
    total = sum(examples for *_, examples in stretches)
    return Expert(number, stretches[0][0], 0, total, {"0": total}, tuple(Stretch(*stretch) for stretch in stretches))


def test_stretches_that_do_not_meet_are_spans_of_their_own() -> None:
    spans = expert_spans([learned(0, (0, 9, 100), (15, 19, 50)), learned(1, (10, 14, 50))], steps=20, most=100)

    assert spans == [[(0, 10, 100.0, 1.0), (15, 20, 50.0, 1.0)], [(10, 15, 50.0, 1.0)]]


def test_a_share_is_of_all_examples_of_the_same_steps() -> None:
    # In steps 4 to 7 both learn: 10 examples a step to the first, 30 to the second.
    first, second = expert_spans([learned(0, (0, 7, 80)), learned(1, (4, 9, 180))], steps=10, most=100)

    assert first == [(0, 4, 40.0, 1.0), (4, 8, 40.0, 0.25)]
    assert second == [(4, 8, 120.0, 0.75), (8, 10, 60.0, 1.0)]


def test_very_many_stretches_become_few_spans_and_lose_no_example() -> None:
    even = learned(0, *((step, step, 7) for step in range(0, 10_000, 2)))
    odd = learned(1, *((step, step, step % 5 + 1) for step in range(1, 10_000, 2)))
    spans = expert_spans([even, odd], steps=10_000, most=150)

    for expert, mine in zip([even, odd], spans, strict=True):
        assert 1 <= len(mine) <= 150
        assert sum(span.examples for span in mine) == pytest.approx(expert.examples)
        assert mine[0].first == 0
        assert mine[-1].end == 10_000
        assert all(before.end <= after.first for before, after in itertools.pairwise(mine))
    assert {round(span.share, 1) for span in spans[0]} == {0.7}  # 7 beside 3 on average


def test_a_long_stretch_is_cut_over_many_parts_by_their_overlap() -> None:
    (mine,) = expert_spans([learned(0, (5, 94, 900))], steps=100, most=10)

    assert mine == [(0, 100, pytest.approx(900.0), 1.0)]
    first, second = expert_spans([learned(0, (0, 4, 50)), learned(1, (5, 99, 950))], steps=100, most=10)
    assert [span.examples for span in first] == [pytest.approx(50.0)]
    assert [(span.first, span.end, round(span.examples), round(span.share, 2)) for span in second] == [
        (0, 10, 50, 0.5),
        (10, 100, 900, 1.0),
    ]
