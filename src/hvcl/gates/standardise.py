r"""Robust standardisation of the generative gate's features, and the compression of outliers.

    u = (z - centre) / spread,        phi(u) = u  where |u| <= LIMIT,  else sign(u) (LIMIT + log(1 + |u| - LIMIT))

Centre and spread are the mean and standard deviation of the first examples after their values beyond FIRST_LIMIT robust
deviations from the median are brought back to there, so a share of outliers among them does little harm. phi is the identity
for nearly all values, and monotone: a shift stays a shift, however far, but no finite value is further than about LIMIT + 700
deviations, so that sums of squares in float64 stay exact enough for everything that is computed from them.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIMIT = 16.0
"""Deviations from the centre beyond which values are compressed logarithmically, and counted."""

FIRST_LIMIT = 10.0
"""Robust deviations from the median to which values of the first examples are brought back."""

LARGEST = 1e100
"""Largest absolute value of a feature; larger ones are refused, as differences and squares would overflow."""

_LEVELS = ((0.5, 1.4826), (0.9, 0.608), (0.98, 0.43), (1.0, 0.3))
"""Quantiles of the absolute deviations, and the factors that make standard deviations of them for a Gaussian (the last one: for
128 examples). The first that is positive counts: half the values of a column may be the same."""


def location_and_scale(z: Tensor) -> tuple[Tensor, Tensor]:
    """Robust centre and spread ``[d]`` of examples ``[n, d]``, float64; constant columns get the median spread of the others."""
    middle = z.median(0).values
    size = (z - middle).abs()
    rough = torch.zeros_like(middle)
    for level, factor in _LEVELS:
        rough = torch.where(rough > 0, rough, factor * size.quantile(level, 0))
    # differences in the last digits of a column are rounding, not spread
    varies = rough > 1e-12 * middle.abs()
    rough = torch.where(varies, rough, 1.0)
    u = ((z - middle) / rough).clamp(-FIRST_LIMIT, FIRST_LIMIT)
    mean, deviation = u.mean(0), u.std(0, correction=0)
    varies = varies & (deviation > 0)
    spread = torch.where(varies, rough * deviation, 0.0)
    usual = spread[varies].median() if bool(varies.any()) else torch.ones((), dtype=z.dtype)
    return torch.where(varies, middle + rough * mean, middle), torch.where(varies, spread, usual)


def compressed(z: Tensor, centre: Tensor, spread: Tensor) -> tuple[Tensor, int]:
    """phi((z - centre) / spread), and how many of the values lie beyond `LIMIT`."""
    u = ((z - centre) / spread).clamp(-1e300, 1e300)
    size = u.abs()
    beyond = size > LIMIT
    count = int(beyond.sum())
    if count:
        u = torch.where(beyond, u.sign() * (LIMIT + torch.log1p((size - LIMIT).clamp_min(0))), u)
    return u, count
