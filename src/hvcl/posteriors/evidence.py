r"""The matrix-normal posterior of linear regression from centred sums, with the ridge of the largest evidence.

With A, B and the notation of `hvcl.posteriors.matrix_normal`, the best noise for a ridge :math:`\lambda` is
:math:`\sigma_c^2 = (\sum (y_c - \bar y_c)^2 - B_c^T M_c) / (n - 1)`: b takes one example away; with n there, the evidence of more
features than examples would only rise towards a ridge of zero. The evidence has its maximum where

.. math:: C \gamma = \lambda \sum_c |M_c|^2 / \sigma_c^2, \qquad \gamma = F - \lambda\, tr\, U,

with F features and C outputs; :math:`\gamma` counts the directions that the data determine. A power of two next to it is taken.
Should there be several maxima, it is the one that a search from n / 128 meets: where the search begins and ends depends on the
sums alone, not on the posteriors that were computed on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EXACT_TRACE = 2048
"""Up to so many features the trace of the posterior covariance is exact, above it is estimated with fixed random probes."""

PROBES = 64
"""Random probes of the estimated trace."""

BLOCK = 2048
"""Rows of A that are converted to double precision at a time."""

RIDGES = range(-20, 41)
"""Powers of two that the ridge is chosen from."""


@dataclass(frozen=True)
class CentredSums:
    """Sums over the examples, around their means."""

    count: int
    """n."""
    feature_mean: Tensor
    """``[F]``."""
    target_mean: Tensor
    """``[C]``."""
    moments: Tensor
    """A ``[F, F]``, in single or double precision, in which its factors are computed as well."""
    cross: Tensor
    """B ``[F, C]``."""
    spread: Tensor
    """Sum of squares of each centred target ``[C]``."""


@dataclass
class Posterior:
    """A matrix-normal posterior over W, and its predictive distribution."""

    count: int
    """n, the number of examples."""
    ridge: float
    """lambda, prior precision over noise precision."""
    weights: Tensor
    """M ``[F, C]``, the mean of W."""
    intercept: Tensor
    """Mean target ``[C]``, predicted at the mean feature."""
    feature_mean: Tensor
    """``[F]``."""
    noise: Tensor
    """sigma^2 of every output ``[C]``."""
    effective: float
    """gamma, the number of directions that the data determine."""
    evidence: float
    """Log evidence in nats, of the outputs that varied."""
    slope: float
    """Twice the evidence's derivative with respect to log(lambda)."""
    factor: Tensor | None
    """Lower Cholesky factor of A + lambda I; None once it was dropped to save memory."""

    def mean(self, phi: Tensor) -> Tensor:
        """Predicted targets ``[B, C]`` for features ``[B, F]``."""
        weights = self.weights.to(phi.dtype)
        return phi @ weights + (self.intercept - self.feature_mean @ self.weights).to(phi.dtype)

    def variance(self, phi: Tensor) -> Tensor:
        r"""Variance ``[B, C]`` with the noise: :math:`\sigma_c^2 (1 + 1/n + (\phi - \bar\phi)^T U (\phi - \bar\phi))`."""
        assert self.factor is not None
        centred = (phi.double() - self.feature_mean).to(self.factor.dtype)
        distance = torch.linalg.solve_triangular(self.factor, centred.T, upper=False).square_().sum(0).double()
        variance: Tensor = (1 + 1 / self.count + distance).unsqueeze(1) * self.noise
        return variance.to(phi.dtype)


def most_evident_posterior(sums: CentredSums) -> Posterior:
    """The posterior with the ridge of the largest evidence."""
    tried: dict[int, Posterior] = {}

    def slope(power: int) -> float:
        """Derivative of the evidence with respect to log(lambda), times two."""
        if power not in tried:
            # factors are as large as the moments themselves: keep two, the search ends at one of the last two
            for other in list(tried.values())[:-1]:
                other.factor = None
            tried[power] = posterior_given(2.0**power, sums)
        return tried[power].slope

    power = root(slope, round(math.log2(sums.count / 128)))
    if tried[power].factor is None:
        tried[power] = posterior_given(2.0**power, sums)
    return tried[power]


def posterior_given(ridge: float, sums: CentredSums) -> Posterior:
    """The posterior for a given ridge."""
    features, cross, spread = len(sums.moments), sums.cross, sums.spread
    factor = cholesky(sums.moments, ridge)
    weights = torch.cholesky_solve(cross.to(factor.dtype), factor).double()
    if factor.dtype != torch.float64:
        for _ in range(2):
            weights += torch.cholesky_solve(_residual(sums.moments, ridge, weights, cross).to(factor.dtype), factor)
    varied = spread > 0
    free = max(sums.count - 1, 1)
    explained, size = (cross * weights).sum(0), ridge * weights.square().sum(0)
    # the errors of learned examples are what is left beyond `size`; where they vanish, rounding must not make them negative
    noise = torch.maximum(spread - explained, size).clamp_min(1e-9 * spread) / free
    effective = features - ridge * _trace(factor)
    pull = (size[varied] / noise[varied]).sum()
    outputs = int(varied.sum())
    log_determinant = 2 * float(factor.diagonal().double().log().sum()) - features * math.log(ridge)
    log_likelihood = free * float((2 * math.pi * noise[varied]).log().sum() + outputs)
    evidence = -0.5 * (log_likelihood + outputs * (log_determinant + math.log(sums.count)))
    return Posterior(
        count=sums.count,
        ridge=ridge,
        weights=weights,
        intercept=sums.target_mean,
        feature_mean=sums.feature_mean,
        noise=noise,
        effective=effective,
        evidence=evidence,
        slope=outputs * effective - float(pull),
        factor=factor,
    )


def _trace(factor: Tensor) -> float:
    """tr U from the Cholesky factor of its inverse."""
    features = len(factor)
    if features <= EXACT_TRACE:
        columns = torch.eye(features, dtype=factor.dtype)
        return float(torch.linalg.solve_triangular(factor, columns, upper=False).square().sum())
    random = torch.Generator().manual_seed(0)
    probes = torch.randint(0, 2, (features, PROBES), generator=random).to(factor.dtype).mul_(2).sub_(1)
    return float(torch.linalg.solve_triangular(factor, probes, upper=False).square_().sum(dtype=torch.float64)) / PROBES


def cholesky(moments: Tensor, ridge: float) -> Tensor:
    """Lower Cholesky factor of A + lambda I, with as much more on the diagonal as rounding of A makes necessary."""
    factor: Tensor
    matrix = moments.clone()
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed) and moments.dtype != torch.float64:
        matrix = moments.double()
        matrix.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(matrix)
    # rounding of the sums outweighs so small a ridge: what the sums cannot resolve is noise
    floor = 1e-6 * float(moments.diagonal().mean())
    while int(failed):
        matrix.diagonal().add_(floor)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        floor = max(2 * floor, torch.finfo(torch.float32).tiny)
    return factor


def _residual(moments: Tensor, ridge: float, weights: Tensor, cross: Tensor) -> Tensor:
    """B - (A + lambda I) W in double precision."""
    rest = cross - ridge * weights
    for first in range(0, len(moments), BLOCK):
        rows = slice(first, first + BLOCK)
        rest[rows] -= moments[rows].double() @ weights
    return rest


def root(slope: Callable[[int], float], start: int) -> int:
    """The power in `RIDGES` next to where a decreasing function of the power crosses zero, searched for from `start`."""
    low, high = RIDGES[0], RIDGES[-1]
    power, stride = min(max(start, low), high), 1
    if slope(power) > 0:
        below = power
        while below < high and slope(min(below + stride, high)) > 0:
            below, stride = min(below + stride, high), 2 * stride
        above = min(below + stride, high)
    else:
        above = power
        while above > low and slope(max(above - stride, low)) <= 0:
            above, stride = max(above - stride, low), 2 * stride
        below = max(above - stride, low)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if slope(middle) > 0 else (below, middle)
    return below if abs(slope(below)) < abs(slope(above)) else above
