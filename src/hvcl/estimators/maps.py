r"""The feature map of encoded rows, made from the scales and a seed alone: sites that share both have the same map.

Features are :math:`\cos(\omega_k\, w_k^T z + b_k)` as in `hvcl.features.RandomFeatures`, of two kinds:

- nearly linear ones, one for each column of numbers and of categories: :math:`\omega = 1/20`, b a quarter of a turn;
- random ones: :math:`w_k` is Gaussian with the second moments of the standardised numbers (nine tenths of them, and one tenth of
  the identity), so that :math:`w_k^T z` has variance one on the first rows; b is uniform. The frequencies are log-uniform from
  0.3 to :math:`6 / \sqrt d` (1 at least): few columns have to bend more than many. Higher frequencies have a smaller prior
  variance, :math:`\propto 1 / \omega`.

By default there are :math:`40 (d + 3)` random features for d columns, but from 200 to 1,000: two columns have 200, ten 520.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.estimators.scales import Scales
from hvcl.features import FeatureChoice, FeatureMap, PatchFeatures, RandomFeatures, is_picture

LINEAR = 0.05
"""Frequency of the nearly linear features: monotone up to the clipping of standardised numbers."""

MAX_LINEAR = 1000
"""Up to so many columns of the encoding there are nearly linear features."""

PICTURE_FEATURES = 1600
"""Default number of features of pictures."""

_REFERENCE = 2048

_NOISE = 512


FEW_FEATURES = 200
"""Number of random features of two columns, and of models of the first rows for the time being."""


def check_features(features: Any) -> None:
    """`InputError` unless it is a number of features, or None."""
    whole = isinstance(features, int | np.integer) and not isinstance(features, bool)
    if features is not None and not (whole and features >= 1):
        raise InputError(f"features must be a whole number of at least 1, or None, got {features!r}")


def default_features(columns: int) -> int:
    """Number of random features for so many columns."""
    return min(max(40 * (columns + 3), FEW_FEATURES), 1000)


def make_map(scales: Scales, features: int | None, seed: int) -> RandomFeatures:
    """The feature map of encoded rows, ready to be used.

    Args:
        scales: of the first rows.
        features: number of random features; None: `default_features`. The nearly linear ones come on top.
        seed: of the random numbers.
    """
    numbers, indicators, slots = len(scales.centre), scales.indicators, scales.slots
    columns = numbers + len(scales.categories)
    check_features(features)
    count = default_features(columns) if features is None else int(features)
    random = torch.Generator().manual_seed(seed)
    second = torch.eye(numbers, dtype=torch.float64)
    if scales.correlation is not None:
        second = 0.9 * scales.correlation + 0.1 * second
    root = torch.linalg.cholesky(second) if numbers else second
    draws = torch.randn(numbers + indicators + slots, count, generator=random).double()
    weights = torch.cat([root @ draws[:numbers], draws[numbers:]])
    # a category changes the projection about as much as a number does; what is missing does not count: it is rare
    variance = (weights[:numbers] * (second @ weights[:numbers])).sum(0)
    if slots:
        variance += weights[numbers + indicators :].square().mean(0) * len(scales.categories)
    top = max(6 / math.sqrt(columns), 1.0)
    frequency = torch.empty(count).uniform_(math.log(0.3), math.log(top), generator=random).exp().double()
    weights = weights * frequency / variance.sqrt()
    phase = 2 * math.pi * torch.rand(count, generator=random)
    amplitude = frequency.rsqrt().float()
    places = [*range(numbers), *range(numbers + indicators, len(draws))]
    if len(places) <= MAX_LINEAR:
        linear = LINEAR * torch.eye(len(draws), dtype=torch.float64)[:, places]
        weights, phase = torch.cat([linear, weights], 1), torch.cat([torch.full((len(places),), math.pi / 2), phase])
        amplitude = torch.cat([torch.ones(len(places)), amplitude])
    shift, scale = _standardised(scales, root, weights.float(), phase, random)
    made = RandomFeatures(scales.input_shape, len(phase), seed=seed)
    made.load_state_dict({"weights": weights.float(), "offset": phase, "shift": shift, "scale": amplitude * scale})
    return made


def _standardised(scales: Scales, root: Tensor, weights: Tensor, phase: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mean and one over deviation of the features on Gaussian rows with the second moments, and uniform categories."""
    numbers = torch.randn(_REFERENCE, len(root), generator=random) @ root.T.float()
    parts = [numbers, torch.zeros(_REFERENCE, scales.indicators)]
    width = scales.max_categories + 2
    for _ in scales.categories:
        chosen = torch.randint(width, (_REFERENCE,), generator=random)
        parts.append(torch.nn.functional.one_hot(chosen, width).float())
    phi = torch.addmm(phase, torch.cat(parts, 1), weights).cos_()
    deviation = (phi - phi.mean(0)).square_().mean(0).sqrt_()
    return phi.mean(0), 1 / deviation.clamp_min(1e-4)


def picture_choice(
    shape: tuple[int, ...],
    features: int | None,
    seed: int,
    *,
    kind: str = "auto",
    filters: int | None = None,
    sizes: tuple[int, ...] = (5, 8),
    grid: int = 2,
    mirror: bool = False,
    field: int | None = None,
) -> FeatureChoice:
    """Maps that pictures may have: patches where they are large enough and have the structure of pictures, else random ones."""
    count = PICTURE_FEATURES if features is None else features
    few = max(count // (2 * grid**2), len(sizes)) if filters is None else filters
    return FeatureChoice(
        shape,
        kind,
        patches=lambda: PatchFeatures(shape, few, sizes=sizes, grid=grid, mirror=mirror, seed=seed),
        otherwise=lambda: RandomFeatures(shape, count, field=field, seed=seed),
    )


def with_filters(scales: Scales, x: Tensor, choice: FeatureChoice) -> Scales:
    """Scales of pictures with a map that is fitted to the first ones ``[n, *shape]``, encoded."""
    return replace(scales, filters=choice.fit(x).state_dict())


def with_noise_filters(scales: Scales, x: Tensor, choice: FeatureChoice, seed: int) -> Scales:
    r"""Scales of pictures with a map that is fitted to noise, so that it holds nothing of the pictures.

    The noise is Gaussian with the spectrum of natural pictures, amplitudes :math:`\propto 1 / f`. Only the kind of map follows
    from the first pictures ``[n, *shape]``: patches where neighbouring pixels vary together.
    """
    made = choice.make(choice.perhaps_patches and (choice.always_patches or is_picture(x)))
    made.fit(_natural_noise(tuple(x.shape[1:]), seed))
    return replace(scales, filters=made.state_dict())


def _natural_noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Pictures ``[n, *shape]`` of variance one whose channels, if there are several, have correlation 0.64."""
    channels, height, width = shape
    white = torch.randn(_NOISE, channels, height, width, generator=torch.Generator().manual_seed(seed))
    down, across = torch.fft.fftfreq(height), torch.fft.fftfreq(width)
    frequency = (down.square().unsqueeze(1) + across.square()).sqrt().clamp_min(1 / max(height, width))
    x: Tensor = torch.fft.ifft2(torch.fft.fft2(white) / frequency).real
    if channels > 1:
        x = 0.8 * x.mean(1, keepdim=True) * math.sqrt(channels) + 0.6 * x
    return ((x - x.mean()) / x.std()).contiguous()


def picture_map(scales: Scales, choice: FeatureChoice) -> FeatureMap:
    """The map of pictures whose filters the scales hold."""
    made = choice.make(any(name.startswith("constant") for name in scales.filters))
    made.load_state_dict(scales.filters)
    return made
