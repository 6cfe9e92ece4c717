"""Accuracies and loss terms over time, each value with its spread over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hvcl.report.statistic import Statistic, over_seeds, statistic
from hvcl.report.supervised.run import Seed


def mean_matrix(seeds: Sequence[Seed], tasks: int) -> list[list[Statistic | None]]:
    """The accuracy matrix over seeds: row t after task t + 1, for as many rows as some seed has come to."""
    rows = [seed.accuracy_after() for seed in seeds]
    return [
        [statistic(row[after][task] for row in rows if after in row) for task in range(tasks)]
        for after in range(1, tasks + 1)
        if any(after in row for row in rows)
    ]


def accuracy_of_task(seeds: Sequence[Seed], task: int) -> dict[float, Statistic]:
    """The accuracy on one task by the number of tasks finished, 0 being before training."""
    return over_seeds([{after: row[task] for after, row in seed.accuracy_after().items()} for seed in seeds])


def accuracy_over_seen(seeds: Sequence[Seed]) -> dict[float, Statistic]:
    """The average accuracy over the tasks seen so far, by the number of tasks finished, from 1."""
    return over_seeds(
        [{after: math.fsum(row[:after]) / after for after, row in seed.accuracy_after().items() if after > 0} for seed in seeds]
    )


def terms_over_time(seeds: Sequence[Seed], name: str, tasks: int, bins: int) -> dict[float, Statistic]:
    """A loss term by progress through the stream, which is measured in tasks so that methods with more steps align.

    Every task is cut into `bins` equal parts; a value is the mean over the records of a part, and then over seeds.
    """
    return over_seeds([_binned_terms(seed, name, tasks, bins) for seed in seeds])


def _binned_terms(seed: Seed, name: str, tasks: int, bins: int) -> dict[float, float]:
    parts: dict[int, list[float]] = {}
    for record, progress in zip(seed.terms, _progress(seed), strict=True):
        value = record.values.get(name, math.nan)
        if math.isfinite(value):
            # A record averages the steps up to its own, so that one exactly on a boundary belongs to the task before.
            part = min(max(math.ceil(progress * bins) - 1, 0), tasks * bins - 1)
            parts.setdefault(part, []).append(value)
    return {(part + 0.5) / bins: math.fsum(values) / len(values) for part, values in parts.items()}


def _progress(seed: Seed) -> list[float]:
    """For each record of loss terms, how many tasks had been worked through by then, fractions included."""
    ends = {0: 0} | {evaluation.after: evaluation.step for evaluation in seed.evaluations}
    last_step = max((record.step for record in seed.terms), default=0)
    finished = max(ends)
    if last_step > ends[finished]:
        # The task that a killed run was in: as long as the one before, if that can be.
        length = ends[finished] - ends.get(finished - 1, 0)
        ends[finished + 1] = max(ends[finished] + length, last_step)
    knots = sorted(ends.items())
    places = []
    for record in seed.terms:
        place = float(knots[-1][0])
        for (task, start), (next_task, end) in itertools.pairwise(knots):
            if start <= record.step <= end and end > start:
                place = task + (next_task - task) * (record.step - start) / (end - start)
                break
        places.append(place)
    return places
