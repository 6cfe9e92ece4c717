r"""A few hundred features of encoded rows, for models that have seen few rows (`hvcl.estimators.concepts`).

- a constant;
- every number, bent to stay bounded, :math:`\frac{3}{2} \tanh(z / 3)`; every category and every sign of a missing value as it is
  (rows of more than 500 columns have none of these);
- 150 cosines :math:`\sqrt{2} \cos(w^T z + b)`, a third each on two columns, three, and all of them. w is Gaussian, with
  log-normal sizes;
- 150 soft rules of k = 1, 2, 2 or 3 conditions on different columns: products of :math:`\sigma(\pm 6 (z_j - t))` with thresholds
  t from -1.8 to 1.8, or of "the category is one of these", less :math:`2^{-k}` and over the deviation that conditions of
  probability 1/2 have. Trees and rules ask for one or two columns at a time, and a projection of all columns hides them.

Pictures have 300 random projections of the features of the estimator's own map instead of all these. Scales and a seed determine
the map, so that models of two sites can be merged.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.estimators.scales import Scales

COSINES, RULES = 150, 150
"""Numbers of random features."""

CONDITIONS = (1, 2, 2, 3)
"""Conditions of a rule, in turn."""

LENGTHS = sorted((CONDITIONS[rule % len(CONDITIONS)] for rule in range(RULES)), reverse=True)
"""Numbers of conditions of the rules."""

MORE_CONDITIONS = tuple(sum(length > least for length in LENGTHS) for least in range(1, max(CONDITIONS)))
"""Rules of more than one condition, of more than two, and so on; these come first."""

SHARPNESS = 6.0
"""Slope of a condition at its threshold, times four."""

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
            self.weights = torch.randn(width, COSINES + RULES, generator=random).double() / math.sqrt(width)
            self.features, self.linear = 1 + COSINES + RULES, 0
            return
        numbers, categories = len(scales.centre), len(scales.categories)
        self.numbers, total = numbers, numbers + scales.indicators + scales.slots
        each = scales.slots // categories if categories else 0
        self.weights, self.phase, self.centre, self.size = _random_parts(numbers, scales.indicators, categories, each, seed)
        self.linear = total if total <= MOST_LINEAR else 0
        self.features = 1 + self.linear + COSINES + RULES
        # conditions with their sign turned: what is needed is exp(-p)
        signs = np.repeat([1.0, -1.0], [COSINES, sum(LENGTHS)])
        self.projections = self.weights.numpy() * signs, self.phase.numpy() * signs
        size, others = self.size.numpy(), np.ones(1 + self.linear)
        others[1 : 1 + min(numbers, self.linear)] = 1.5
        self.scale = np.concatenate([others, np.full(COSINES, math.sqrt(2)), size])
        self.shift = np.concatenate([np.zeros(1 + self.linear + COSINES), -self.centre.numpy() * size])
        names: list[str | int] = list(range(len(scales.kinds))) if scales.names is None else list(scales.names)
        of_numbers = [name for name, kind in zip(names, scales.kinds, strict=True) if kind == "number"]
        of_categories = [name for name, kind in zip(names, scales.kinds, strict=True) if kind == "category"]
        missing: list[str | int | None] = [*of_numbers] if scales.indicators == numbers else [None] * scales.indicators
        self._columns = [*of_numbers, *missing, *(name for name in of_categories for _ in range(each))]

    def __call__(self, x: Tensor, own: Tensor) -> Tensor:
        """Features ``[n, D]`` of encoded rows, whose features in the estimator's own map are `own`."""
        if self.pictures:
            one = torch.ones(len(x), 1, dtype=torch.float64)
            return torch.cat([one, (own.double() @ self.weights).clamp_(-BOUND, BOUND)], 1)
        return torch.from_numpy(self.scaled(self.parts(x.numpy())))

    def parts(self, x: NDArray[np.float32], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """What the features ``[n, D]`` of encoded rows of a table are affine functions of (`scaled`), each of one of them."""
        z = x.astype(np.float64)
        found = np.empty((len(z), self.features)) if out is None else out
        found[:, 0] = 1
        if self.linear:
            np.tanh(z[:, : self.numbers] / 3, out=found[:, 1 : 1 + self.numbers])
            found[:, 1 + self.numbers : 1 + self.linear] = z[:, self.numbers :]
        weights, phase = self.projections
        projected = z @ weights
        projected += phase
        begin = 1 + self.linear
        np.cos(projected[:, :COSINES], out=found[:, begin : begin + COSINES])
        # a product of sigmoids is one over a product of 1 + exp(-p), which is finite: numbers are clipped by the scales
        conditions = np.exp(projected[:, COSINES:], out=projected[:, COSINES:])
        conditions += 1
        rules, place = conditions[:, :RULES], RULES
        for count in MORE_CONDITIONS:
            rules[:, :count] *= conditions[:, place : place + count]
            place += count
        np.reciprocal(rules, out=found[:, begin + COSINES :])
        return found

    def scaled(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The features ``[n, D]``, from their `parts`, in place."""
        parts *= self.scale
        parts += self.shift
        return parts

    def columns(self, features: tuple[int, ...]) -> tuple[str | int, ...]:
        """The columns of rows that single features stand for, each once, by name or number; pictures have none."""
        found = [self._columns[i - 1] for i in features if 1 <= i <= self.linear]
        return tuple(name for name in dict.fromkeys(found) if name is not None)


@lru_cache(maxsize=16)
def _random_parts(numbers: int, indicators: int, categories: int, each: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights and offsets of cosines and conditions, and the rules' centres and sizes. Nobody changes them.

    Made once, since a stream's first rows ask for them many times. The first conditions of all rules stand after the cosines,
    then the second ones of the rules that have any, then the third ones.
    """
    random = torch.Generator().manual_seed(seed + 1)
    columns, inputs = numbers + categories, numbers + indicators + each * categories
    weights = torch.zeros(inputs, COSINES + sum(LENGTHS), dtype=torch.float64)
    offset = torch.zeros(COSINES + sum(LENGTHS), dtype=torch.float64)

    def places(column: int) -> slice:
        if column < numbers:
            return slice(column, column + 1)
        begin = numbers + indicators + each * (column - numbers)
        return slice(begin, begin + each)

    for feature in range(COSINES):
        wanted = (2, 3, columns)[feature % 3]
        chosen = torch.randperm(columns, generator=random)[: min(wanted, columns)].tolist()
        size = 2 * math.exp(0.5 * float(torch.randn((), generator=random))) / math.sqrt(len(chosen))
        for column in chosen:
            where = places(column)
            weights[where, feature] = size * torch.randn(where.stop - where.start, generator=random).double()
    offset[:COSINES] = 2 * math.pi * torch.rand(COSINES, generator=random).double()
    singles = LENGTHS.count(1)
    order = torch.randperm(columns, generator=random).tolist() if columns else []
    for rule, length in enumerate(LENGTHS):
        chosen = torch.randperm(columns, generator=random)[: min(length, columns)].tolist()
        threshold = torch.empty(length).uniform_(-1.8, 1.8, generator=random).tolist()
        if length == 1 and columns:  # spread evenly over the columns, and over each of them
            single = rule - (RULES - singles)
            chosen = [order[single % columns]]
            threshold = [3.6 * (single // columns + 0.5) / math.ceil(singles / columns) - 1.8]
        for number in range(length):
            place = COSINES + rule + sum((RULES, *MORE_CONDITIONS)[:number])
            if number >= len(chosen):  # fewer columns than conditions: one that always holds
                offset[place] = 30.0
                continue
            column = chosen[number]
            where, count = places(column), 1 if column < numbers else each
            sign = torch.randint(0, 2, (count,), generator=random).double().mul_(2).sub_(1)
            weights[where, place] = SHARPNESS * sign
            if column < numbers:
                offset[place] = -SHARPNESS * float(sign) * threshold[number]
    half = torch.tensor([0.5 ** min(length, columns) for length in LENGTHS], dtype=torch.float64)
    return weights, offset, half, (half * (1 - half)).rsqrt()
