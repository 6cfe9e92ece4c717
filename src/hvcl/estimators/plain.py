r"""A few hundred features of encoded rows, for models that have seen few rows (`hvcl.estimators.concepts`).

- a constant;
- every number, bent to stay bounded, :math:`\frac{3}{2} \tanh(z / 3)`; every category and every sign of a missing value as it is
  (rows of more than 500 columns have none of these);
- 300 cosines :math:`\sqrt{2} \cos(w^T z + b)`, a quarter each on one column, two, three, and all of them: trees and rules
  ask for one or two columns at a time, and a projection of all columns hides them. w is Gaussian, with log-normal sizes.

Pictures have 300 random projections of the features of the estimator's own map instead of all these. Scales and a seed determine
the map, so that models of two sites can be merged.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from hvcl.estimators.scales import Scales

COSINES = 300
"""Number of random features."""

MOST_LINEAR = 500
"""Columns of the encoding up to which there are features of single columns."""

BOUND = 10.0
"""Projections of pictures' features are clipped here."""


class PlainMap:
    """Features of encoded rows, float64.

    Args:
        scales: of the rows.
        seed: of the random numbers.
        width: number of features of the estimator's own map, which pictures' features are projections of.
    """

    def __init__(self, scales: Scales, seed: int, width: int) -> None:
        self.pictures = scales.shape is not None
        self._columns: list[str | int | None] = []
        if self.pictures:
            random = torch.Generator().manual_seed(seed + 1)
            self.weights = torch.randn(width, COSINES, generator=random).double() / math.sqrt(width)
            self.features, self.linear = 1 + COSINES, 0
            return
        numbers, categories = len(scales.centre), len(scales.categories)
        self.numbers, total = numbers, numbers + scales.indicators + scales.slots
        each = scales.slots // categories if categories else 0
        self.weights, self.phase = _cosines(numbers, scales.indicators, categories, each, seed)
        self.linear = total if total <= MOST_LINEAR else 0
        self.features = 1 + self.linear + COSINES
        names: list[str | int] = list(range(len(scales.kinds))) if scales.names is None else list(scales.names)
        of_numbers = [name for name, kind in zip(names, scales.kinds, strict=True) if kind == "number"]
        of_categories = [name for name, kind in zip(names, scales.kinds, strict=True) if kind == "category"]
        missing: list[str | int | None] = [*of_numbers] if scales.indicators == numbers else [None] * scales.indicators
        self._columns = [*of_numbers, *missing, *(name for name in of_categories for _ in range(each))]

    def __call__(self, x: Tensor, own: Tensor) -> Tensor:
        """Features ``[n, D]`` of encoded rows, whose features in the estimator's own map are `own`."""
        one = torch.ones(len(x), 1, dtype=torch.float64)
        if self.pictures:
            return torch.cat([one, (own.double() @ self.weights).clamp_(-BOUND, BOUND)], 1)
        z = x.double()
        parts = [one]
        if self.linear:
            parts += [(z[:, : self.numbers] / 3).tanh_().mul_(1.5), z[:, self.numbers :]]
        return torch.cat([*parts, torch.addmm(self.phase, z, self.weights).cos_().mul_(math.sqrt(2))], 1)

    def columns(self, features: tuple[int, ...]) -> tuple[str | int, ...]:
        """The columns of rows that single features stand for, each once, by name or number; pictures have none."""
        found = [self._columns[i - 1] for i in features if 1 <= i <= self.linear]
        return tuple(name for name in dict.fromkeys(found) if name is not None)


@lru_cache(maxsize=16)
def _cosines(numbers: int, indicators: int, categories: int, each: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weights and phases of the cosines, which nobody changes: made once, since a stream's first rows ask for them many times."""
    random = torch.Generator().manual_seed(seed + 1)
    columns = numbers + categories
    weights = torch.zeros(numbers + indicators + each * categories, COSINES, dtype=torch.float64)
    for feature in range(COSINES):
        wanted = (1, 2, 3, columns)[feature % 4]
        chosen = torch.randperm(columns, generator=random)[: min(wanted, columns)]
        size = 2 * math.exp(0.5 * float(torch.randn((), generator=random))) / math.sqrt(len(chosen))
        for column in chosen.tolist():
            if column < numbers:
                places = slice(column, column + 1)
            else:
                begin = numbers + indicators + each * (column - numbers)
                places = slice(begin, begin + each)
            count = places.stop - places.start
            weights[places, feature] = size * torch.randn(count, generator=random).double()
    return weights, 2 * math.pi * torch.rand(COSINES, generator=random).double()
