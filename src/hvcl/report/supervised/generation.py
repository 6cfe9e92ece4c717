"""What generators made: rows of pictures, one for each task, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hvcl.core.pictures import data_uri
from hvcl.report import words
from hvcl.report.statistic import statistic
from hvcl.report.supervised.groups import Entry, Group
from hvcl.report.supervised.run import Generation, Seed

_Measure = tuple[str, str, str, Callable[[Generation], float]]
"""Name, unit, meaning, and how it is read."""

_MEASURES: tuple[_Measure, ...] = (
    (
        "Inception score",
        "bits",
        "How much a generated example tells about its label, E[KL(p(y|x) || p(y))]",
        lambda made: made.inception_score,
    ),
    (
        "at most H(p(y))",
        "bits",
        "Entropy of the labels of generated examples: what the score is at most",
        lambda made: made.inception_bound,
    ),
    (
        "Fréchet distance",
        "",
        "Squared, of generated and real examples' features; lower is better",
        lambda made: made.frechet_distance,
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
        found = [
            (evaluation.after, evaluation.generation)
            for seed in entry.run.shown
            for evaluation in seed.evaluations
            if evaluation.generation is not None
        ]
        if not found:
            continue
        finished = tuple(sorted({after for after, _ in found}))
        measures = tuple(
            (title, unit, meaning, tuple(_over_seeds(found, after, read) for after in finished))
            for title, unit, meaning, read in (*_MEASURES, *_expert_measures(max(len(made.experts) for _, made in found)))
        )
        seeds = ((seed.seed, _rows(seed)) for seed in entry.run.shown)
        figures.append(GenerationFigure(entry, tuple((number, rows) for number, rows in seeds if rows), measures, finished))
    return figures


def _expert_measures(experts: int) -> list[_Measure]:
    """How much each expert of the latent mean made; nothing where there is only one."""

    def share(number: int) -> Callable[[Generation], float]:
        return lambda made: 100 * made.experts[number] if number < len(made.experts) else 0.0

    meaning = "Share of the generated examples whose latent variable came from this expert of the latent mean"
    return [(f"Made by expert {number + 1}", "%", meaning, share(number)) for number in range(experts)] if experts > 1 else []


def _over_seeds(found: Sequence[tuple[int, Generation]], after: int, read: Callable[[Generation], float]) -> str:
    """Mean and standard deviation over seeds of what is read of the generators after some tasks."""
    value = statistic(read(made) for when, made in found if when == after)
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
    return tuple(PictureRow(label, data_uri(pictures[key])) for label, key in wanted if key in pictures)
