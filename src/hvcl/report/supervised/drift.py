"""Which expert opened when and learned from what, for learners that open experts as the stream goes on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvcl.report import words
from hvcl.report.charts import nice_axis
from hvcl.report.supervised.figures import Styles, padded, short_task_names
from hvcl.report.supervised.groups import Entry, Group
from hvcl.report.supervised.run import Expert, Seed

_BARS_OF_A_LANE = 240
_OWN_EXPERTS = "gate"  # the layer as which a learner's own experts are measured


class Span(NamedTuple):
    """Steps from `first` to before `end` in which an expert learned: from how many examples, and their share of all then."""

    first: int
    end: int
    examples: float
    share: float


@dataclass(frozen=True)
class Bar:
    """Steps in which an expert learned: places are percentages of the lane, the strength is its share of the examples."""

    left: float
    width: float
    strength: float
    tip: str


@dataclass(frozen=True)
class Lane:
    """One expert of a timeline: when it opened and learned, from what, and what it answers for."""

    number: int
    """From 1."""
    place: float
    """Where it opened, in percent of the lane."""
    opened: str
    step: str
    after: str
    change: str
    """When it opened against the nearest change of task, if those are known."""
    bars: tuple[Bar, ...]
    examples: str
    labels: str
    answers: str
    """The tasks with the fraction of their examples whose first choice it is, if that was measured."""


@dataclass(frozen=True)
class Timeline:
    """One seed's lanes on a common axis of steps; places are percentages of its width."""

    seed: int
    lead: str
    description: str
    lanes: tuple[Lane, ...]
    tasks: tuple[tuple[str, float, float], ...]
    """Name, place and width of each task's part of the stream; empty if they are not known."""
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class DriftFigure:
    """When the experts of one method opened and learned, in each finished seed."""

    entry: Entry
    style: str
    blend: str
    """How neighbouring tasks blend in its stream, if they do."""
    timelines: tuple[Timeline, ...]


def drift_figures(group: Group, styles: Styles) -> list[DriftFigure]:
    """For every method that opens experts as it goes: which opened when and what it answers for, in each finished seed."""
    figures = []
    for entry in group.entries:
        timelines = [
            _timeline(seed, seed.result.experts, group) for seed in entry.run.finished if seed.result and seed.result.experts
        ]
        if timelines:
            blur = entry.run.config.stream.get("blur")
            blend = f"Neighbouring tasks blend into each other over {words.setting(blur)} of a task" if blur else ""
            figures.append(DriftFigure(entry, styles[entry.label], blend, tuple(timelines)))
    return figures


def expert_spans(experts: Sequence[Expert], steps: int, most: int) -> list[list[Span]]:
    """When each expert learned, in at most `most` spans each, whatever the number of its stretches.

    The steps are cut into equal parts, over which the examples of a stretch are spread evenly; neighbouring parts with the same
    share, to a percent, are one span.
    """
    width = max(1, math.ceil(steps / most))
    amounts: list[dict[int, float]] = [{} for _ in experts]
    totals: dict[int, float] = {}
    for expert, mine in zip(experts, amounts, strict=True):
        for first, last, examples in expert.stretches:
            for part in range(first // width, last // width + 1):
                inside = min(last, (part + 1) * width - 1) - max(first, part * width) + 1
                amount = examples * inside / (last - first + 1)
                mine[part] = mine.get(part, 0.0) + amount
                totals[part] = totals.get(part, 0.0) + amount
    return [_joined(mine, totals, width, steps) for mine in amounts]


def _joined(amounts: Mapping[int, float], totals: Mapping[int, float], width: int, steps: int) -> list[Span]:
    def alike(numbered: tuple[int, int]) -> tuple[int, int]:
        place, part = numbered
        return part - place, round(100 * amounts[part] / totals[part])  # the difference is the same for consecutive parts

    spans = []
    for _, run in itertools.groupby(enumerate(sorted(part for part in amounts if amounts[part])), key=alike):
        parts = [part for _, part in run]
        examples = math.fsum(amounts[part] for part in parts)
        share = examples / math.fsum(totals[part] for part in parts)
        spans.append(Span(parts[0] * width, min((parts[-1] + 1) * width, steps), examples, share))
    return spans


def _timeline(seed: Seed, experts: Sequence[Expert], group: Group) -> Timeline:
    names = short_task_names(group.task_names)
    result = seed.result
    assert result is not None
    recorded = int(result.steps) if math.isfinite(result.steps) else 0
    steps = max(recorded, 1, *(1 + last for expert in experts for _, last, _ in expert.stretches))
    starts = seed.task_starts()
    if len(starts) != len(names) or starts[-1] > steps:
        starts = ()  # the log is not whole
    routed = padded(result.layers[_OWN_EXPERTS].routed) if _OWN_EXPERTS in result.layers else ()

    def place(step: int) -> float:
        return round(100 * min(step / steps, 1.0), 2)

    lanes = []
    for expert, spans in zip(experts, expert_spans(experts, steps, _BARS_OF_A_LANE), strict=True):
        opened = f"opened at step {words.whole(expert.opened_step)}"
        opened += f", after {_examples(expert.opened_after)}" if expert.opened_after else ""
        lanes.append(
            Lane(
                number=expert.number + 1,
                place=place(expert.opened_step),
                opened=opened,
                step=words.whole(expert.opened_step),
                after=words.whole(expert.opened_after),
                change=_nearest_change(expert.opened_step, starts, names),
                bars=tuple(_bar(span, place) for span in spans),
                examples=_examples(expert.examples),
                labels=", ".join(f"{label}: {words.whole(expert.labels[label])}" for label in _label_order(expert.labels)),
                answers=_answers([row[expert.number] if expert.number < len(row) else 0.0 for row in routed], names),
            )
        )
    count = f"{len(lanes)} expert{'' if len(lanes) == 1 else 's'}"
    described = [f"expert {lane.number} {lane.opened}, and learned from {lane.examples}" for lane in lanes]
    axis = nice_axis([0.0, float(steps)], count=6)
    ends = (*starts[1:], steps)
    return Timeline(
        seed=seed.seed,
        lead=f"{count} for {len(names)} task{'' if len(names) == 1 else 's'}.",
        description=f"{count}: {'; '.join(described)}.",
        lanes=tuple(lanes),
        tasks=tuple((name, place(a), round(place(b) - place(a), 2)) for name, a, b in zip(names, starts, ends, strict=False)),
        ticks=tuple((place(int(value)), label) for value, label in axis.ticks if value == int(value) <= steps),
    )


def _bar(span: Span, place: Callable[[int], float]) -> Bar:
    steps = f"step {words.whole(span.first)}"
    if span.end - span.first > 1:
        steps = f"steps {words.whole(span.first)} to {words.whole(span.end - 1)}"
    return Bar(
        left=place(span.first),
        width=round(place(span.end) - place(span.first), 2),
        strength=span.share,
        tip=f"{steps}: {_examples(span.examples)}, {words.percent(span.share, 0)} % of all",
    )


def _examples(number: float) -> str:
    return "1 example" if round(number) == 1 else f"{words.whole(number)} examples"


def _label_order(labels: Mapping[str, int]) -> list[str]:
    """Numbers by their value, before all else."""
    return sorted(labels, key=lambda label: (not label.isdecimal(), int(label) if label.isdecimal() else 0, label))


def _nearest_change(step: int, starts: Sequence[int], names: Sequence[str]) -> str:
    """How far a step is from the nearest beginning of a task, in words."""
    if not starts:
        return words.MISSING
    start, name = min(zip(starts, names, strict=True), key=lambda task: abs(task[0] - step))
    if step == start:
        return f"as {name} begins"
    away = f"{words.whole(abs(step - start))} step{'' if abs(step - start) == 1 else 's'}"
    return f"{away} into {name}" if step > start else f"{away} before {name}"


def _answers(shares: Sequence[float], names: Sequence[str]) -> str:
    """The tasks of which an expert answers for one percent or more, the largest share first."""
    of_tasks = sorted((-share, task) for task, share in enumerate(shares) if share >= 0.01)
    return ", ".join(f"{names[task]} ({words.percent(-share, 0)} %)" for share, task in of_tasks) or words.MISSING
