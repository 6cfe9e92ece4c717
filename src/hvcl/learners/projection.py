"""The gradient of a network as one vector, to be read, compared and replaced."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gradient_of(loss: Tensor, network: nn.Module) -> Tensor:
    """The gradient of `loss`, as one vector; the parameters' `grad` stay as they are."""
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])


def held_gradient(network: nn.Module) -> Tensor:
    """The parameters' `grad`, as one vector."""
    return torch.cat([part.flatten() for part in _parts(network)])


def hold_gradient(network: nn.Module, gradient: Tensor) -> None:
    """Make one vector the parameters' `grad`."""
    parts = _parts(network)
    for part, values in zip(parts, gradient.split([part.numel() for part in parts]), strict=True):
        part.copy_(values.view_as(part))


def _parts(network: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
