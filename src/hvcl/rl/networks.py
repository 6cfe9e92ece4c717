"""Networks of an agent: one policy, a pair of critics, and their mirrors."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hvcl.networks import DenseFactory, build_network
from hvcl.posteriors import MeanFieldGaussian
from hvcl.rl.dense import StackedDense


class Twin(nn.Module):
    """Two networks on the same inputs, ``[B, in]`` to ``[B, 2]``."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """Both answers, ``[B, 2]``."""
        return torch.cat([self.first(x), self.second(x)], 1)


def network_of(inputs: int, outputs: int, hidden: tuple[int, ...], layer: DenseFactory | None = None) -> nn.Module:
    """A network of dense layers with leaky ReLU between them, plain or of any kind of layer."""
    if layer is None:
        return StackedDense(inputs, outputs, hidden)
    network = build_network((inputs,), outputs, hidden=hidden, dense=layer)
    del network.flatten  # vectors are flat
    return network


def twin_of(inputs: int, hidden: tuple[int, ...], layer: DenseFactory | None = None) -> nn.Module:
    """A pair of critics, plain or of any kind of layer."""
    if layer is None:
        return StackedDense(inputs, 1, hidden, copies=2)
    return Twin(network_of(inputs, 1, hidden, layer), network_of(inputs, 1, hidden, layer))


@torch.no_grad()
def start_small(last: nn.Module) -> None:
    """Shrink the first means of a last layer: with He's variance a policy would start saturated and almost sure of itself."""
    posterior = last.posterior
    assert isinstance(posterior, MeanFieldGaussian)
    posterior.mean.mul_(0.1)


def mirror(network: nn.Module) -> nn.Module:
    """The same network on the same memory, in evaluation mode and without gradients of its own.

    It always has the other's present weights. Gradients flow through it to its inputs.
    """
    image = copy.deepcopy(network).eval()
    parts = zip(image.state_dict(keep_vars=True).values(), network.state_dict(keep_vars=True).values(), strict=True)
    for mine, theirs in parts:
        mine.data = theirs.data
    return image.requires_grad_(False)
