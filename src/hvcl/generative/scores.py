"""Scores of generated examples, by the classifier that was trained along with the generator."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hvcl.core.errors import InputError


class InceptionScore(NamedTuple):
    """In bits: the score, and H(p(y)), which it cannot exceed."""

    score: float
    bound: float


def inception_score(probabilities: Tensor, task: Tensor | None = None) -> InceptionScore:
    r"""The continual inception score of generated examples, from the classifier's answers p(y|x) ``[N, classes]``.

    .. math:: IS = E_{x \sim G}\big[KL[p(y|x) \| p(y)]\big] = H(p(y)) - E_x[H(p(y|x))] \le H(p(y)) \le \log_2 \text{classes}

    with p(y) the mean answer. It is the mutual information of example and label: high when every example is surely of one class,
    and all classes occur.

    In Task-IL, `task` ``[N]`` gives the head that each example was classified by. Heads have labels of their own, so predictions
    identify the head with certainty, which is no merit of the example: score and bound are those within a head, averaged over
    the examples.
    """
    if probabilities.dim() != 2 or len(probabilities) == 0:
        raise InputError(f"probabilities must have shape (examples, classes), got {tuple(probabilities.shape)}")
    if task is not None:
        if task.shape != probabilities.shape[:1]:
            raise InputError(f"task must hold one number for each of the {len(probabilities)} examples, got {tuple(task.shape)}")
        parts = [probabilities[task == head] for head in task.unique()]
        scores = [(len(part) / len(probabilities), inception_score(part)) for part in parts]
        return InceptionScore(sum(share * one.score for share, one in scores), sum(share * one.bound for share, one in scores))
    p = probabilities.double()
    if bool((p < 0).any()) or not torch.allclose(p.sum(1), torch.ones(len(p), dtype=torch.float64), atol=1e-4):
        raise InputError("every row of probabilities must be non-negative and sum to 1")
    bound = float(torch.special.entr(p.mean(0)).sum()) / math.log(2)
    conditional = float(torch.special.entr(p).sum(1).mean()) / math.log(2)
    return InceptionScore(max(0.0, bound - conditional), bound)


def frechet_distance(a: Tensor, b: Tensor) -> float:
    r"""The Frechet (2-Wasserstein) distance, squared, of Gaussians fitted to two sets of features ``[N, features]``.

    .. math:: d^2 = \|\mu_a - \mu_b\|^2 + \text{tr}\big(C_a + C_b - 2 (C_a^{1/2} C_b C_a^{1/2})^{1/2}\big)

    0 for the same mean and covariance. With the features of the learner's own classifier it compares generated examples with
    real ones in the space that matters for replay; it cannot be compared between classifiers. Covariances of few examples are
    noisy, and noise drives them apart: the distance of two samples of one distribution is above 0 and falls with their size.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"features must have shapes (N, features) with as many features, got {tuple(a.shape)}, {tuple(b.shape)}")
    if len(a) < 2 or len(b) < 2:
        raise InputError(f"a covariance needs at least two examples, got {len(a)} and {len(b)}")
    if not bool(a.isfinite().all() and b.isfinite().all()):
        raise InputError("features hold NaN or infinite values: has the network that they come from diverged?")
    a, b = a.double(), b.double()
    cov_a, cov_b = (torch.cov(values.T).reshape(a.shape[1], a.shape[1]) for values in (a, b))
    values, vectors = torch.linalg.eigh(cov_a)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    distance = (a.mean(0) - b.mean(0)).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(0.0, float(distance))
