"""The statistic behind the shift test."""

import math

import pytest
import torch

from hvcl.gates.shift import Group, nearest_in_hull


def test_evidence_is_the_f_statistics_likelihood_ratio():
    # isotropic scatter with r = k, by hand: label means 0.3 off in every dimension, known to be 0 from 40 examples each
    count, k = torch.tensor([30.0, 20.0], dtype=torch.float64), 4
    group = Group(torch.tensor([0, 1]), count, torch.full((2, k), 0.3).double(), 48 * torch.eye(k).double())
    shift = torch.tensor([0.36 / (1 / 30 + 1 / 40), 0.36 / (1 / 20 + 1 / 40)]).mean().item()
    ratio, above, below = shift / 4, 2 * k, 48 * k
    expected = (above + below) / 2 * math.log((above * ratio + below) / (above + below)) - above / 2 * math.log(ratio)
    actual = group.evidence(torch.zeros(2, k).double(), torch.tensor([1 / 40, 1 / 40]).double(), torch.tensor([True, True]))
    assert actual == pytest.approx(expected, rel=1e-6)
    assert group.evidence(group.mean, torch.zeros(2).double(), torch.tensor([True, True])) == 0.0


def test_evidence_without_a_shift_exceeds_t_with_a_probability_of_at_most_exp_minus_t():
    """2,000 groups of 40 skewed, correlated examples of one expert; the bound may be missed by 3 standard deviations."""
    dim, groups, n = 10, 2000, 40
    random = torch.Generator().manual_seed(1)
    mixing = torch.randn(dim, dim, generator=random) / math.sqrt(dim) + torch.eye(dim)
    z = -torch.rand(groups * n, dim, generator=random).clamp_min(1e-9).log() @ mixing
    z = z - z.mean(0)
    zero, seen = torch.zeros(1, dim).double(), torch.tensor([True])
    metric = torch.linalg.cholesky(torch.cov(z.double().T))
    evidence = torch.tensor(
        [
            Group.of(part.double(), torch.zeros(n, dtype=torch.long))[0]
            .whitened(metric)
            .evidence(zero, torch.zeros(1).double(), seen)
            for part in z.split(n)
        ]
    )
    for t in (2.0, 3.0, 4.0):
        bound = math.exp(-t)
        assert (evidence > t).double().mean() <= bound + 3 * math.sqrt(bound / groups)


def test_nearest_point_of_a_hull():
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]]).double()
    inside = torch.tensor([1.0, 2.0]).double()
    torch.testing.assert_close(nearest_in_hull(corners, inside) @ corners, inside, rtol=0, atol=1e-5)
    torch.testing.assert_close(nearest_in_hull(corners, torch.tensor([5.0, 5.0]).double()), torch.tensor([0, 0.5, 0.5]).double())
