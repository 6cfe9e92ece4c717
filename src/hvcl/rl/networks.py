"""What networks of an agent have in common: a small start, and mirrors."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hvcl.layers import MoVEStack


@torch.no_grad()
def start_small(stack: MoVEStack) -> None:
    """Shrink the first means of the last layer: with He's variance a policy would start saturated and almost sure of itself.

    A first prior that is where the posterior starts is there, too.
    """
    *_, last = stack
    last.posterior.mean.mul_(0.1)
    last.posterior.reset_prior()


def mirror(network: nn.Module) -> nn.Module:
    """The same network on the same memory, in evaluation mode and without gradients of its own.

    It always has the other's present weights. Gradients flow through it to its inputs.
    """
    image = copy.deepcopy(network).eval()
    parts = zip(image.state_dict(keep_vars=True).values(), network.state_dict(keep_vars=True).values(), strict=True)
    for mine, theirs in parts:
        mine.data = theirs.data
    return image.requires_grad_(False)
