"""Random features with receptive fields."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.features.base import FeatureMap


class RandomFeatures(FeatureMap):
    r"""Cosines of random projections, :math:`\phi_k(x) = \cos(\omega\, w_k^T (x - \mu) + b_k)`, b uniform.

    The projections follow the data: :math:`w_k` is a random combination of the first examples around their mean, so that it
    varies most where they do (its covariance is theirs), with a tenth of isotropic noise for what they do not show, scaled to
    unit variance on them. This is the random Fourier map (Rahimi & Recht, 2007) of a kernel whose metric is the data's.

    With a `field`, each projection of an image sees one random square of this size only.

    Args:
        input_shape: shape of one example; (channels, height, width) if there is a `field`.
        features: number of features.
        field: side of the receptive fields in pixels; None: every feature sees all of the input.
        frequency: omega; larger ones bend more.
        seed: of the projections.
    """

    keeps_pieces = True

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 3000,
        *,
        field: int | None = None,
        frequency: float = 0.7,
        seed: int = 0,
    ) -> None:
        super().__init__(input_shape, features)
        if field is not None and (len(input_shape) != 3 or not 1 <= field <= min(input_shape[1:])):
            raise InputError(f"a receptive field of {field} x {field} does not fit inputs of shape {tuple(input_shape)}")
        if not frequency > 0:
            raise InputError(f"frequency must be positive, got {frequency}")
        self.field, self.frequency, self.seed = field, frequency, seed

    def _prepare(self, x: Tensor) -> None:
        random = torch.Generator().manual_seed(self.seed)
        x = x.float().flatten(1)
        mean = x.mean(0)
        centred = x - mean
        weights = centred.T @ torch.randn(len(x), self.features, generator=random) / math.sqrt(len(x))
        typical = centred.square().mean().sqrt().clamp_min(1e-6)
        weights += 0.1 * typical * torch.randn(weights.shape, generator=random)
        if self.field is not None:
            weights *= _windows(self.input_shape, self.field, self.features, random)
        spread = (centred @ weights).square_().mean(0).sqrt_()
        weights *= self.frequency / spread.clamp_min(0.1 * spread.mean().clamp_min(1e-12))
        phase = 2 * math.pi * torch.rand(self.features, generator=random)
        self.state["weights"], self.state["offset"] = weights, phase - mean @ weights

    def _compute(self, x: Tensor) -> Tensor:
        return torch.addmm(self.state["offset"], x.float().flatten(1), self.state["weights"]).cos_()


def _windows(shape: tuple[int, ...], field: int, count: int, random: torch.Generator) -> Tensor:
    """0 or 1 ``[pixels, count]``: one random square of pixels a column."""
    channels, height, width = shape
    top, left = (torch.randint(length - field + 1, (count,), generator=random) for length in (height, width))
    row, column = torch.arange(height).unsqueeze(1), torch.arange(width).unsqueeze(1)
    rows = ((row >= top) & (row < top + field)).float()
    columns = ((column >= left) & (column < left + field)).float()
    return torch.einsum("hk,wk->hwk", rows, columns).repeat(channels, 1, 1, 1).flatten(0, 2)
