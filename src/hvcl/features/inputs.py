"""The inputs themselves as features."""

from __future__ import annotations

import torch
from torch import Tensor

from hvcl.features.base import FeatureMap


class InputFeatures(FeatureMap):
    """The flattened inputs, standardised on the first examples.

    Args:
        input_shape: shape of one example.
    """

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__(input_shape, torch.Size(input_shape).numel())

    def _compute(self, x: Tensor) -> Tensor:
        return x.float().flatten(1).clone()
