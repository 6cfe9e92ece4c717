"""The statistic behind the shift test."""

import math

import pytest
import torch

from hvcl.gates.shift import Group, Repeats, _pools, label_surprise, nearest_in_hull


def test_evidence_is_the_f_statistics_likelihood_ratio():
    # isotropic scatter with r = k, by hand: label means 0.3 off in every dimension, known to be 0 from 40 examples each
    count, k = torch.tensor([30.0, 20.0], dtype=torch.float64), 4
    group = Group(torch.tensor([0, 1]), count, torch.full((2, k), 0.3).double(), 48 * torch.eye(k).double(), count - 1, 48.0)
    shift = torch.tensor([0.36 / (1 / 30 + 1 / 40), 0.36 / (1 / 20 + 1 / 40)]).mean().item()
    ratio, above, below = shift / 4, 2 * k, 48 * k
    expected = (above + below) / 2 * math.log((above * ratio + below) / (above + below)) - above / 2 * math.log(ratio)
    variance, seen, forty = torch.tensor([1 / 40, 1 / 40]).double(), torch.tensor([True, True]), torch.full((2,), 40.0).double()
    assert group.evidence(torch.zeros(2, k).double(), variance, seen, forty - 1, forty) == pytest.approx(expected, rel=1e-6)
    assert group.evidence(group.mean, torch.zeros(2).double(), seen, forty - 1, forty) == 0.0


def test_a_rare_label_that_varies_more_than_the_others_is_measured_by_its_own_spread():
    """200 examples of one label and 12 of another with three times the deviation: e is as small as with equal ones."""
    random = torch.Generator().manual_seed(3)
    labels = (torch.arange(212) >= 200).long()
    zero, seen = torch.zeros(2, 6).double(), torch.tensor([True, True])
    evidence = []
    for _ in range(200):
        z = torch.randn(212, 6, generator=random, dtype=torch.float64) * torch.where(labels == 1, 3.0, 1.0)[:, None]
        group = Group.of(z, labels)[0].whitened(torch.eye(6).double(), torch.ones(6).double())
        count = torch.tensor([1000.0, 60.0]).double()
        evidence.append(group.evidence(zero, torch.zeros(2).double(), seen, count * torch.tensor([1.0, 9.0]), count))
    assert max(evidence) < 7  # P(e > 7) <= 0.001 in each of 200


def test_rare_labels_are_pooled_until_eight_examples_vouch_for_their_shift():
    information = torch.tensor([100.0, 3.0, 2.0, 50.0, 4.0, 1.0])
    seen = torch.tensor([True, True, True, True, True, False])
    assert _pools(information, seen) == [[2, 1, 4], [3], [0]]
    assert _pools(information[1:3], seen[:2]) == [[1, 0]]


@pytest.mark.parametrize(("draw", "expected"), [("new", 1.0), ("five times each", 5.0), ("three values", 1.0)])
def test_repeated_rows_are_counted_but_not_those_that_coincide_by_chance(draw, expected):
    """Tolerance 0.2: rows that fall into one cell by chance."""
    random, repeats = torch.Generator().manual_seed(1), Repeats(3)

    def group():
        if draw == "three values":
            return torch.randint(0, 3, (256, 1), generator=random).double().expand(-1, 3)
        rows = torch.randn(256 if draw == "new" else 52, 3, generator=random, dtype=torch.float64)
        return rows if draw == "new" else rows.repeat_interleave(5, 0)[:256]

    first = repeats.cells(group())
    assert repeats.of_first(first) == pytest.approx(expected, rel=0.2)
    repeats.remember(repeats.counts(first))
    second = group()[torch.randperm(256, generator=random)]  # the order does not matter any more
    assert repeats.of(repeats.counts(repeats.cells(second))) == pytest.approx(expected, rel=0.2)


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
            .whitened(metric, metric.square().sum(1))
            .evidence(zero, torch.zeros(1).double(), seen, torch.zeros(1).double(), torch.zeros(1).double())
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


def test_labels_that_were_never_seen_are_evidence_if_there_are_more_than_expected():
    """An expert has seen 49 labels in 256 examples, so that 16 in 100 may well have others; or 2 labels, and hardly one."""

    def surprise(new, distinct):
        group = Group(
            torch.tensor([0, 1]), torch.tensor([100.0 - new, new]), torch.zeros(2, 1), torch.zeros(1, 1), torch.zeros(2), 98
        )
        return label_surprise(group, torch.tensor([True, False]), torch.tensor(256.0), torch.tensor(float(distinct)))

    assert surprise(0, 2) == surprise(0, 49) == surprise(3, 49) == surprise(15, 49) == 0
    assert 0 < surprise(30, 49) < surprise(60, 49) < surprise(60, 2)
    # by hand: one label, one example; the urn gives new labels B(1 + 100, 1) / B(1, 1) = 1 / 101 in all of 100
    group = Group(torch.tensor([1]), torch.tensor([100.0]), torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1), 99)
    assert label_surprise(group, torch.tensor([False]), torch.tensor(1.0), torch.tensor(1.0)) == pytest.approx(math.log(101))
