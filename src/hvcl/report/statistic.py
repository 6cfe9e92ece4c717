"""Means and standard deviations over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Statistic(NamedTuple):
    """A quantity over seeds: its mean, its sample standard deviation (None for one seed), and how many seeds gave it."""

    mean: float
    sd: float | None
    seeds: int


def statistic(values: Iterable[float]) -> Statistic | None:
    """Mean and sample standard deviation (n - 1) of the finite values; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    mean = math.fsum(finite) / len(finite)
    if len(finite) == 1:
        return Statistic(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in finite)
    return Statistic(mean, math.sqrt(squares / (len(finite) - 1)), len(finite))


def over_seeds(curves: Sequence[Mapping[float, float]]) -> dict[float, Statistic]:
    """Curves of several seeds as one: at each place, the statistic of those that have a value there."""
    statistics = {
        place: statistic(curve[place] for curve in curves if place in curve)
        for place in sorted({place for curve in curves for place in curve})
    }
    return {place: value for place, value in statistics.items() if value}
