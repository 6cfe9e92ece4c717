"""Features of models that have seen few rows."""

import math

import numpy as np
import pytest
import torch

from hvcl.estimators.plain import COSINES, LENGTHS, MORE_CONDITIONS, RULES, PlainMap
from hvcl.estimators.scales import Scales
from hvcl.estimators.tables import Table


def scales_of(numbers: int, categories: int) -> tuple[Scales, Table]:
    random = np.random.default_rng(0)
    columns = tuple(np.array([str(c) for c in random.integers(3, size=200)], dtype=object) for _ in range(categories))
    table = Table(("number",) * numbers + ("category",) * categories, random.normal(size=(200, numbers)), columns)
    return Scales.measure(table, None, 4, None), table


@pytest.mark.parametrize(("numbers", "categories"), [(1, 0), (2, 0), (5, 2), (0, 1), (600, 0)])
def test_one_row_has_the_features_of_many(numbers, categories):
    scales, table = scales_of(numbers, categories)
    made = PlainMap(scales, 0, 10)
    x, _ = scales.encode(table)
    phi = made(x, torch.zeros(len(x), 10))
    assert phi.shape == (200, made.features) == (200, 1 + made.linear + COSINES + RULES)
    for row in (slice(1), slice(7, 8), slice(100, 200)):
        np.testing.assert_allclose(made(x[row], torch.zeros(1, 10)), phi[row], atol=1e-9)
    parts = made.parts(x.numpy())
    np.testing.assert_allclose(parts * made.scale + made.shift, phi, atol=1e-9)


def test_rules_are_soft_conjunctions_of_conditions_on_different_columns():
    scales, _ = scales_of(6, 0)
    made = PlainMap(scales, 3, 10)
    assert sorted(LENGTHS, reverse=True) == LENGTHS
    assert (RULES, *MORE_CONDITIONS) == (150, 112, 37)
    conditions = made.weights[:, COSINES:]
    places = [range(RULES), *(range(sum((RULES, *MORE_CONDITIONS)[:k]), sum((RULES, *MORE_CONDITIONS)[: k + 1])) for k in (1, 2))]
    for rule in (0, 50, 149):
        asked = [int(conditions[:, place[rule]].abs().argmax()) for place in places if rule < len(place)]
        assert len(asked) == LENGTHS[rule]
        assert len(set(asked)) == len(asked)
    # far on the right side of every threshold a rule holds, far on the wrong side of one it does not
    signs = conditions[:, 0].sign()[:6]
    x = torch.zeros(2, made.weights.shape[0])
    for place in places:
        signs = torch.where(conditions[:6, place[0]] != 0, conditions[:6, place[0]].sign(), signs)
    x[0, :6], x[1, :6] = 5 * signs.float(), 5 * signs.float()
    first = int(conditions[:6, 0].abs().argmax())
    x[1, first] *= -1
    phi = made(x, torch.zeros(2, 10))[:, 1 + made.linear + COSINES]
    half = 0.5 ** LENGTHS[0]
    deviation = math.sqrt(half * (1 - half))
    assert phi.tolist() == pytest.approx([(1 - half) / deviation, -half / deviation], abs=1e-3)


def test_single_conditions_are_spread_over_columns_and_their_range():
    scales, _ = scales_of(4, 0)
    made = PlainMap(scales, 0, 10)
    singles = slice(COSINES + RULES - LENGTHS.count(1), COSINES + RULES)
    columns = made.weights[:4, singles].abs().argmax(0)
    assert torch.bincount(columns, minlength=4).min() >= LENGTHS.count(1) // 4
    thresholds = -made.phase[singles] / made.weights[:, singles].sum(0)
    for column in range(4):
        gaps = thresholds[columns == column].sort().values.diff()
        assert float(gaps.max()) < 1.5 * 3.6 / 9
