"""The histogram behind p-values of novelty."""

import pytest
import torch

from hvcl.gates.calibration import Calibration


def test_shares_are_those_of_the_distances_within_the_width_of_a_cell():
    """The width is 1.8 %; one more distance is counted, so tolerance 0.002 for 10,000 that are exponential."""
    distance = -torch.rand(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log()
    made = Calibration()
    made.count(distance)
    for value in (0.1, 1.0, 3.0):
        share = made.share(torch.tensor([value], dtype=torch.float64))
        assert share == pytest.approx(float((distance >= value).double().mean()), abs=0.002)
    far = made.share(torch.tensor([1e4, 1e30, 0.0], dtype=torch.float64))
    assert far.tolist() == pytest.approx([1 / 10_001, 1 / 10_001, 1.0])
    assert Calibration().share(torch.ones(2, dtype=torch.float64)).tolist() == [1.0, 1.0]


def test_newer_distances_count_more():
    """The first 4,000 of 8,000 examples have weight t / N each: a quarter of all, give or take the first 512."""
    made = Calibration()
    for i in range(80):
        made.count(torch.full((100,), 10.0 if i < 40 else 1.0, dtype=torch.float64))
    assert float(made.share(torch.tensor([5.0]).double())) == pytest.approx(0.25, abs=0.04)
    twice = made.plus(made)
    assert torch.equal(twice.counts, 2 * made.counts)
