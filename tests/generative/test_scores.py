"""Inception score and Frechet distance of cases that are known in closed form."""

import math

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.generative.scores import frechet_distance, inception_score


def test_sure_and_balanced_answers_reach_the_bound():
    score, bound = inception_score(torch.eye(4).repeat(3, 1))
    assert score == pytest.approx(2.0)
    assert bound == pytest.approx(2.0)


def test_sure_answers_of_few_classes_reach_the_entropy_of_those():
    sure = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]])
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert inception_score(sure) == pytest.approx((entropy, entropy))


def test_answers_that_know_nothing_score_zero_below_a_full_bound():
    assert inception_score(torch.full((5, 2), 0.5)) == pytest.approx((0.0, 1.0))


def test_score_is_the_mean_divergence_from_the_marginal():
    p = torch.rand(50, 6, generator=torch.Generator().manual_seed(0)).softmax(1)
    expected = (p * (p / p.mean(0)).log2()).sum(1).mean().item()
    score, bound = inception_score(p)
    assert score == pytest.approx(expected, abs=1e-5)
    assert score < bound < math.log2(6)


def test_with_heads_the_score_is_that_within_a_head():
    sure = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    head = torch.tensor([0, 0, 1, 1])
    assert inception_score(sure, head) == pytest.approx((0.5, 1.0))
    assert inception_score(sure) == pytest.approx((1.5, 2.0)), "one bit of it was the head"
    with pytest.raises(InputError, match="one number for each of the 4"):
        inception_score(sure, head[:3])


@pytest.mark.parametrize("bad", [torch.ones(3, 2), torch.ones(3), torch.ones(0, 2), torch.tensor([[1.5, -0.5]])])
def test_what_is_no_distribution_is_refused(bad):
    with pytest.raises(InputError, match="probabilities"):
        inception_score(bad)


def gaussian(mean, covariance, n=6):
    """A sample whose mean and covariance are exactly these."""
    raw = torch.randn(n, len(mean), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    centred = raw - raw.mean(0)
    white = centred @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(centred.T))).T
    return white @ torch.linalg.cholesky(torch.tensor(covariance, dtype=torch.float64)).T + torch.tensor(mean)


def test_frechet_distance_of_commuting_covariances():
    a, b = gaussian([0.0, 0.0], [[4.0, 0], [0, 1]]), gaussian([3.0, 4.0], [[1.0, 0], [0, 9]])
    assert frechet_distance(a, b) == pytest.approx(25 + (2 - 1) ** 2 + (1 - 3) ** 2)


def test_frechet_distance_of_covariances_that_do_not_commute():
    first, second = [[2.0, 1.0], [1.0, 2.0]], [[5.0, -1.0], [-1.0, 1.0]]
    a, b = gaussian([0.0, 0.0], first), gaussian([0.0, 0.0], second)
    # the eigenvalues of the product are those of the symmetric one; of a 2 x 2 matrix tr sqrt = sqrt(tr + 2 sqrt det)
    product = torch.tensor(first) @ torch.tensor(second)
    cross = math.sqrt(product.trace() + 2 * math.sqrt(torch.det(product)))
    assert frechet_distance(a, b) == pytest.approx(4 + 6 - 2 * cross)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a))


def test_frechet_distance_to_itself_is_zero_also_with_fewer_examples_than_features():
    few = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    assert frechet_distance(few, few) == pytest.approx(0.0, abs=1e-6)


def test_features_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="as many features"):
        frechet_distance(torch.zeros(3, 2), torch.zeros(3, 4))
    with pytest.raises(InputError, match="NaN or infinite"):
        frechet_distance(torch.full((3, 2), torch.nan), torch.zeros(3, 2))
    with pytest.raises(InputError, match="at least two"):
        frechet_distance(torch.zeros(1, 2), torch.zeros(3, 2))
