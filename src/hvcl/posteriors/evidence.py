r"""The matrix-normal posterior of linear regression from centred sums, with the ridge of the largest evidence.

With A, B and the notation of `hvcl.posteriors.matrix_normal`, the best noise for a ridge :math:`\lambda` is
:math:`\sigma_c^2 = (\sum (y_c - \bar y_c)^2 - B_c^T M_c) / (n - 1)`: b takes one example away; with n there, the evidence of more
features than examples would only rise towards a ridge of zero. The evidence has its maximum where

.. math:: C \gamma = \lambda \sum_c |M_c|^2 / \sigma_c^2, \qquad \gamma = F - \lambda\, tr\, U,

with F features and C outputs; :math:`\gamma` counts the directions that the data determine. A power of two next to it is taken.
Should there be several maxima, it is the one that a search from n / 128 meets (`search`), which depends on the sums alone.

While few examples were added to many, the two factors on both sides of the maximum are kept, the new examples are put on top of
them (`Factor.extended`, Woodbury's identity), and the maximum is where it was as long as the slope of the evidence still changes
its sign between the two (`follow`). This gives the ridge of a new search, unless the evidence has several maxima, and the
posterior of that ridge to rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular

from hvcl.core.blas import threads_of_torch
from hvcl.posteriors.panels import diagonal, lower_triangle, times

EXACT_TRACE = 2048
"""Up to so many features the trace of the posterior covariance is exact, above it is estimated with fixed random probes."""

PROBES = 64
"""Random probes of the estimated trace."""

RIDGES = range(-20, 41)
"""Powers of two that the ridge is chosen from, for features whose mean variance is about one (see `powers`)."""

STEP = 10
"""The range follows the features' mean variance in steps of two to this power."""


@dataclass(frozen=True)
class CentredSums:
    """Sums over the examples, around their means."""

    count: float
    """n, the number of examples, or the sum of their weights."""
    feature_mean: Tensor
    """``[F]``."""
    target_mean: Tensor
    """``[C]``."""
    target_sum: Tensor
    """``[C]``; of indicators, the exact number of examples of each class."""
    panels: list[Tensor]
    """A ``[F, F]`` (`hvcl.posteriors.panels`), in single or double precision, in which its factors are computed as well."""
    cross: Tensor
    """B ``[F, C]``."""
    spread: Tensor
    """Sum of squares of each centred target ``[C]``."""
    floor: float = 0.0
    """Rounding of A: the smallest ridge that makes it positive definite whatever was rounded."""


class Factor:
    r"""The inverse U of :math:`A + \lambda I` by its Cholesky factor, with examples that came later on top; never changed.

    With L the factor of :math:`A_0 + \lambda I`, :math:`U_0` its inverse, and :math:`A = A_0 + V^T V`,

    .. math:: U = U_0 - Y K^{-1} Y^T, \qquad Y = U_0 V^T = U V^T K, \qquad K = I + V Y .
    """

    def __init__(self, ridge: float, lower: Tensor) -> None:
        self.ridge, self.lower = ridge, lower
        self.added: Tensor | None = None
        """Y ``[F, k]``; None if nothing was added."""
        self._inner = self._core = lower.new_zeros(0, 0)  # K and its Cholesky factor
        self._first = (_trace_of_inverse(lower), 2 * float(lower.diagonal().double().log().sum()))
        self.trace, self.log_determinant = self._first
        """tr U, and the log determinant of its inverse."""

    def extended(self, rows: Tensor) -> Factor | None:
        """With all of V ``[k, F]``, which begins with what this one has; None if rounding does not allow it."""
        known = len(self._inner)
        if len(rows) == known:
            return self
        fresh = solve_triangular(self.lower.mT, solve_triangular(self.lower, rows[known:].T, upper=False), upper=True)
        corner = rows @ fresh
        inner = torch.eye(len(rows), dtype=rows.dtype)
        inner[:known, :known] = self._inner
        inner[:, known:] += corner
        inner[known:, :known] = corner[:known].T
        core, failed = cholesky_ex(inner)
        if int(failed) or not bool(torch.isfinite(core).all()):
            return None
        new = copy.copy(self)
        new.added = fresh if self.added is None else torch.cat([self.added, fresh], 1)
        new._inner, new._core = inner, core
        probes = new.added.T if len(self.lower) <= EXACT_TRACE else new.added.T @ _probes(len(self.lower), rows.dtype)
        less = float(solve_triangular(core, probes, upper=False).square_().sum())
        trace, log_determinant = self._first
        new.trace = trace - (less if len(self.lower) <= EXACT_TRACE else less / PROBES)
        new.log_determinant = log_determinant + 2 * float(core.diagonal().log().sum())
        return new

    def solve(self, right: Tensor) -> Tensor:
        """U times ``[F, C]``, without what was added."""
        half = solve_triangular(self.lower, right.to(self.lower.dtype), upper=False)
        answer: Tensor = solve_triangular(self.lower.mT, half, upper=True)
        return answer

    def corrected(self, weights: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        r"""Weights M ``[F, C]`` without what was added, corrected by its errors: :math:`M + U V^T (T - V M)`.

        `rows` is V ``[k, F]``, `targets` T ``[k, C]``. Nothing cancels here, unlike in U times all sums.
        """
        if self.added is None:
            return weights
        return weights + self.added @ torch.cholesky_solve(targets - rows @ weights, self._core)

    def distance(self, rows: Tensor) -> Tensor:
        r""":math:`\phi^T U \phi` of every row ``[B, F]``."""
        rows = rows.to(self.lower.dtype)
        distance: Tensor = solve_triangular(self.lower, rows.T, upper=False).square_().sum(0)
        if self.added is not None:
            distance -= solve_triangular(self._core, self.added.T @ rows.T, upper=False).square_().sum(0)
        return distance.clamp_min_(0).double()


@dataclass(frozen=True)
class Posterior:
    """A matrix-normal posterior over W, and its predictive distribution: a snapshot that later examples leave as it is."""

    count: float
    """n, the number of examples, or the sum of their weights."""
    ridge: float
    """lambda, prior precision over noise precision."""
    weights: Tensor
    """M ``[F, C]``, the mean of W."""
    intercept: Tensor
    """Mean target ``[C]``, predicted at the mean feature."""
    feature_mean: Tensor
    """``[F]``."""
    target_sum: Tensor
    """Sum of the targets ``[C]``."""
    cross: Tensor
    """B ``[F, C]``, the sum of products of centred features and targets."""
    noise: Tensor
    """sigma^2 of every output ``[C]``."""
    effective: float
    """gamma, the number of directions that the data determine."""
    evidence: float
    """Log evidence in nats, of the outputs that varied."""
    slope: float
    """Twice the evidence's derivative with respect to log(lambda)."""
    factor: Factor
    """U, the inverse of A + lambda I."""

    def mean(self, phi: Tensor) -> Tensor:
        """Predicted targets ``[B, C]`` for features ``[B, F]``."""
        # around the mean, as far as the type of phi can say it: far from the origin products would cancel
        near = self.feature_mean.to(phi.dtype)
        rest = self.intercept - (self.feature_mean - near) @ self.weights
        return torch.addmm(rest.to(phi.dtype), phi - near, self.weights.to(phi.dtype))

    def variance(self, phi: Tensor) -> Tensor:
        r"""Variance ``[B, C]`` with the noise: :math:`\sigma_c^2 (1 + 1/n + (\phi - \bar\phi)^T U (\phi - \bar\phi))`."""
        distance = self.factor.distance(phi.double() - self.feature_mean)
        variance: Tensor = (1 + 1 / self.count + distance).unsqueeze(1) * self.noise
        return variance.to(phi.dtype)


@dataclass(frozen=True)
class Found:
    """Where a search ended."""

    power: int | None
    """Of the ridge; None: the ridge was given."""
    searched: float
    """n when the search began at n / 128."""
    factors: tuple[Factor, ...] = ()
    """At the ridges on both sides of the maximum, smaller one first; one at an end of the range or where the ridge is given."""
    weights: tuple[Tensor, ...] = ()
    """M at each of them, when they were made."""
    rising: bool = False
    """Whether the evidence rises at the first of them."""


def search(sums: CentredSums, last: Found | None = None) -> tuple[Posterior, Found]:
    """The posterior with the ridge of the largest evidence; from the power of `last`, if there is one, else from n / 128."""
    kept: dict[bool, tuple[int, Posterior]] = {}
    slopes: dict[int, float] = {}

    def slope(power: int) -> float:
        """Derivative of the evidence with respect to log(lambda), times two."""
        if power not in slopes:
            posterior = posterior_given(2.0**power, sums)
            slopes[power] = posterior.slope
            # factors are as large as the moments themselves: keep the nearest on either side of the maximum
            kept[posterior.slope > 0] = (power, posterior)
        return slopes[power]

    allowed, start = powers(sums)
    power = root(slope, start if last is None or last.power is None else last.power, allowed)
    both = dict(kept.values())
    searched = sums.count if last is None else last.searched
    return both[power], _found(power, searched, [both[p] for p in sorted(both) if abs(p - power) <= 1])


def _found(power: int | None, searched: float, posteriors: list[Posterior]) -> Found:
    factors, weights = (tuple(getattr(each, name) for each in posteriors) for name in ("factor", "weights"))
    return Found(power, searched, factors, weights, posteriors[0].slope > 0)


def given(ridge: float, sums: CentredSums) -> tuple[Posterior, Found]:
    """The posterior for a given ridge, or for the smallest one above it that rounding of the sums allows."""
    posterior = posterior_given(ridge, sums)
    return posterior, _found(None, sums.count, [posterior])


def follow(sums: CentredSums, last: Found, rows: Tensor, targets: Tensor) -> tuple[Posterior, Found] | None:
    """The posterior with more examples on top of the factors of `last`; None if the maximum has left their ridges.

    Args:
        sums: over all examples.
        last: what was found before.
        rows: V ``[k, F]``: A is larger by its products than when the factors were made.
        targets: ``[k, C]``: B is larger by products with these.
    """
    if last.factors[0].ridge < sums.floor:
        return None
    posteriors, factors = [], []
    for before, weights in zip(last.factors, last.weights, strict=True):
        factor = before.extended(rows)
        if factor is None:
            return None
        padded = torch.nn.functional.pad(weights, (0, targets.shape[1] - weights.shape[1]))
        posteriors.append(posterior_of(factor, sums, factor.corrected(padded, rows, targets)))
        factors.append(factor)
    slopes = [posterior.slope for posterior in posteriors]
    chosen = 0
    if last.power is not None:
        if (slopes[0] > 0) != last.rising or (len(slopes) > 1 and slopes[1] > 0):
            return None
        chosen = min(range(len(slopes)), key=lambda i: (abs(slopes[i]), -i))
    power = None if last.power is None else round(math.log2(factors[chosen].ridge))
    return posteriors[chosen], replace(last, power=power, factors=tuple(factors))


def posterior_given(ridge: float, sums: CentredSums) -> Posterior:
    """The posterior for a given ridge, or for the smallest one above it that rounding of the sums allows."""
    factor = factorise(sums.panels, max(ridge, sums.floor))
    weights = factor.solve(sums.cross).double()
    if factor.lower.dtype != torch.float64:
        for _ in range(2):
            weights += factor.solve(sums.cross - factor.ridge * weights - times(sums.panels, weights))
    return posterior_of(factor, sums, weights)


def posterior_of(factor: Factor, sums: CentredSums, weights: Tensor) -> Posterior:
    """The posterior with a covariance that has been factorised and weights that have been solved for."""
    features, cross, spread, ridge = len(sums.cross), sums.cross, sums.spread, factor.ridge
    varied = spread > 0
    free = max(sums.count - 1, 1)
    explained, size = (cross * weights).sum(0), ridge * weights.square().sum(0)
    # the errors of learned examples are what is left beyond `size`; where they vanish, rounding must not make them negative
    noise = torch.maximum(spread - explained, size).clamp_min(1e-9 * spread) / free
    # no more than there are features or centred examples: the trace may be an estimate
    effective = min(max(features - ridge * factor.trace, 0.0), features, max(sums.count - 1, 0))
    pull = (size[varied] / noise[varied]).sum()
    outputs = int(varied.sum())
    log_determinant = factor.log_determinant - features * math.log(ridge)
    log_likelihood = free * float((2 * math.pi * noise[varied]).log().sum() + outputs)
    evidence = -0.5 * (log_likelihood + outputs * (log_determinant + math.log(sums.count)))
    return Posterior(
        count=sums.count,
        ridge=ridge,
        weights=weights,
        intercept=sums.target_mean,
        feature_mean=sums.feature_mean,
        target_sum=sums.target_sum,
        cross=cross,
        noise=noise,
        effective=effective,
        evidence=evidence,
        slope=outputs * effective - float(pull),
        factor=factor,
    )


def factorise(panels: list[Tensor], ridge: float) -> Factor:
    """The factor of A + lambda I, with the smallest multiple of the ridge by a power of two that makes it positive definite."""
    from scipy.linalg.lapack import dpotrf, spotrf  # here, because importing it takes a seventh of a second

    features, dtype = panels[-1].shape[1], panels[-1].dtype
    while True:
        matrix = torch.empty(features, features, dtype=dtype)  # only its lower triangle is read
        lower_triangle(panels, matrix).diagonal().add_(ridge)
        # in place, where torch copies the matrix; LAPACK goes along columns, and finds the triangle of the transposed one
        with threads_of_torch(features**3 / 6):
            _, failed = (dpotrf if dtype == torch.float64 else spotrf)(matrix.numpy().T, overwrite_a=True)
        # finite sums: with a ridge above all of them the matrix is diagonally dominant, so this ends
        if not failed:
            return Factor(ridge, matrix)
        if dtype != torch.float64:
            dtype = torch.float64
        else:
            ridge *= 2


def powers(sums: CentredSums) -> tuple[range, int]:
    """The powers of two that the ridge may be, and the one to begin with.

    From 2^-20 to 2^40, beginning with n / 128, for features of any mean variance between 2^-5 and 2^5, and so on in
    steps of 2^10: so features in any unit are fitted as well. None below the rounding of the sums.
    """
    variance = float(diagonal(sums.panels).mean()) / sums.count
    shift = STEP * round(math.log2(variance) / STEP) if variance > 0 else 0
    low, high = RIDGES[0] + shift, RIDGES[-1] + shift
    if sums.floor > 0:
        low = min(max(low, math.ceil(math.log2(sums.floor))), high)
    return range(low, high + 1), round(math.log2(sums.count / 128)) + shift


def _probes(features: int, dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (features, PROBES), generator=random).to(dtype).mul_(2).sub_(1)


def _trace_of_inverse(lower: Tensor) -> float:
    """tr U from the Cholesky factor of its inverse."""
    features = len(lower)
    if features <= EXACT_TRACE:
        from scipy.linalg.lapack import dtrtri, strtri

        # LAPACK's inverse of a triangle does a third of the work of a solution for every column of the identity
        with threads_of_torch(features**3 / 6):
            inverse, _ = (dtrtri if lower.dtype == torch.float64 else strtri)(lower.numpy().T)
        return float(np.square(inverse, dtype=np.float64).sum())
    probes = solve_triangular(lower, _probes(features, lower.dtype), upper=False)
    return float(probes.square_().sum(dtype=torch.float64)) / PROBES


def root(slope: Callable[[int], float], start: int, allowed: range = RIDGES) -> int:
    """The power in `allowed` next to where a decreasing function of the power crosses zero, searched for from `start`."""
    low, high = allowed[0], allowed[-1]
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
