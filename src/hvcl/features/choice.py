"""Which feature map suits the inputs."""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURS = 0.2
"""How much more neighbouring pixels of a picture correlate, at least, than pixels anywhere."""


def is_picture(x: Tensor) -> bool:
    """Whether inputs ``[n, channels, height, width]`` have the local structure of pictures: neighbouring pixels vary together.

    Inputs of another shape, and images whose pixels were permuted, are not pictures: patches of them mean nothing.
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
