"""The choice of a feature map that suits the inputs: patches of pictures, something else otherwise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hvcl.features.base import FeatureMap

SMALLEST_PICTURE = 16
"""Smallest side in pixels of pictures that "auto" takes patches of."""

NEIGHBOURS = 0.2
"""Least excess of the mean correlation of neighbouring pixels over that of random pairs in a picture."""


class FeatureChoice:
    """Makes patch features or their alternative, as a method's setting `features` and the first examples decide.

    Args:
        input_shape: shape of one example.
        setting: "patches"; "auto", which means patches where the first examples are pictures (`is_picture`) of at least
            `SMALLEST_PICTURE` pixels a side; anything else means the alternative.
        patches: makes patch features.
        otherwise: makes the alternative.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        setting: str,
        *,
        patches: Callable[[], FeatureMap],
        otherwise: Callable[[], FeatureMap],
    ) -> None:
        self._patches, self._otherwise = patches, otherwise
        self.always_patches = setting == "patches"
        large = len(input_shape) == 3 and min(input_shape[1:]) >= SMALLEST_PICTURE
        self.perhaps_patches = self.always_patches or (setting == "auto" and large)

    def make(self, patches: bool) -> FeatureMap:
        """A new map of a given kind, not fitted yet."""
        return self._patches() if patches else self._otherwise()

    def fit(self, x: Tensor) -> FeatureMap:
        """A new map of the kind that suits the first examples of a stream ``[n, *input_shape]``, fitted to them."""
        features = self.make(self.perhaps_patches and (self.always_patches or is_picture(x)))
        features.fit(x)
        return features

    def check(self) -> None:
        """Raise `InputError` if the settings of a map that may be chosen do not fit the inputs."""
        if not self.always_patches:
            self.make(False)
        if self.perhaps_patches:
            self.make(True)


def is_picture(x: Tensor) -> bool:
    """Whether inputs ``[n, channels, height, width]`` have the local structure of pictures: neighbouring pixels vary together.

    Inputs of another shape, and images whose pixels were permuted, are not pictures: their patches have no common structure.
    """
    if x.dim() != 4 or min(x.shape[2:]) < 8 or len(x) < 2:
        return False
    pixels = x.float().mean(1)
    pixels = pixels - pixels.mean(0)
    pixels = pixels / pixels.square().mean(0).sqrt().clamp_min(1e-6)
    across, down = pixels[:, :, 1:] * pixels[:, :, :-1], pixels[:, 1:] * pixels[:, :-1]
    beside = torch.cat([across.mean(0).flatten(), down.mean(0).flatten()])
    flat = pixels.flatten(1)
    anywhere = (flat * flat[:, torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(0))]).mean(0)
    return bool(beside.abs().mean() > anywhere.abs().mean() + NEIGHBOURS)
