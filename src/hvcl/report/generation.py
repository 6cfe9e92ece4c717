"""What generators made: rows of pictures, one for each task, and what they are worth."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from hvcl.report import words
from hvcl.report.run import Seed
from hvcl.report.summary import Entry, Group, Statistic, statistic

_MEASURES = (
    ("inception_score", "Inception score", "bits", "How much a generated example tells about its label, E[KL(p(y|x) || p(y))]"),
    (
        "inception_bound",
        "at most H(p(y))",
        "bits",
        "Entropy of the labels of generated examples: what the score is at most",
    ),
    (
        "frechet_distance",
        "Fréchet distance",
        "",
        "Squared, of generated and real examples' features; lower is better",
    ),
)


@dataclass(frozen=True)
class PictureRow:
    """A row of pictures: its label and the address of the picture."""

    label: str
    address: str


@dataclass(frozen=True)
class GenerationFigure:
    """One method's generator: rows of pictures for each seed, and its measures by the number of tasks finished."""

    entry: Entry
    seeds: tuple[tuple[int, tuple[PictureRow, ...]], ...]
    measures: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    """Name, unit, meaning, and a text for each number of tasks finished."""
    finished: tuple[int, ...]


def generation_figures(group: Group) -> list[GenerationFigure]:
    """The generators of a group's methods; nothing for methods that have none."""
    figures = []
    for entry in group.entries:
        values = _measured(entry)
        if not values:
            continue
        finished = tuple(sorted({after for by_task in values.values() for after in by_task}))
        measures = tuple(
            (title, unit, meaning, tuple(_text(values[name].get(after)) for after in finished))
            for name, title, unit, meaning in _MEASURES
        )
        seeds = ((seed.seed, _rows(seed)) for seed in entry.run.shown)
        figures.append(GenerationFigure(entry, tuple((number, rows) for number, rows in seeds if rows), measures, finished))
    return figures


def _measured(entry: Entry) -> dict[str, dict[int, Statistic | None]]:
    """Each measure over seeds, by the number of tasks finished."""
    found = [
        (evaluation.after, evaluation.generation)
        for seed in entry.run.shown
        for evaluation in seed.evaluations
        if evaluation.generation is not None
    ]
    if not found:
        return {}
    every = {after for after, _ in found}
    return {
        name: {after: statistic(getattr(generation, name) for other, generation in found if other == after) for after in every}
        for name, *_ in _MEASURES
    }


def _text(value: Statistic | None) -> str:
    if value is None:
        return words.MISSING
    return words.decimal(value.mean, 2) + (f" ± {words.decimal(value.sd, 2)}" if value.sd is not None else "")


def _rows(seed: Seed) -> tuple[PictureRow, ...]:
    """Originals and their reconstructions after the last task, then what was generated after each."""
    pictures: Mapping[tuple[int, str], bytes] = seed.pictures
    if not pictures:
        return ()
    last = max(after for after, _ in pictures)
    wanted = [("originals", (last, "originals")), ("reconstructions", (last, "reconstructions"))]
    wanted += [(f"after task {after}", (after, name)) for after, name in sorted(pictures) if name == "samples"]
    return tuple(PictureRow(label, _address(pictures[key])) for label, key in wanted if key in pictures)


def _address(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
