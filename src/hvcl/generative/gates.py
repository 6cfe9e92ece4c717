"""Gates of a decoder that depend on what is to be generated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError


class ContextGates(nn.Module):
    r"""Every context turns a random share of each hidden layer's units off, the same for ever (van de Ven et al., 2020).

    .. math:: h_l = f(W_l h_{l-1} + b_l) \odot \sum_c w_c g_{cl}, \qquad g_{clu} \in \{0, 1\}

    with w the probabilities of contexts, one of which is 1 if the context is known. Contexts whose units overlap little disturb
    each other little when they learn.

    Args:
        conditions: what generation can be conditioned on.
        widths: units of the hidden layers.
        share: of the units that are off, at least 0 and below 1; at least one stays on.
        members: so many conditions, which follow one another, are one context.
    """

    def __init__(self, conditions: int, widths: tuple[int, ...], share: float, members: int = 1) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise InputError(f"the share of gated units must lie in [0, 1), got {share}")
        if members < 1 or conditions % members:
            raise InputError(f"{conditions} conditions are no contexts of {members} each")
        self.conditions, self.layers = conditions, len(widths)
        for number, units in enumerate(widths):
            off = min(round(share * units), units - 1)
            ranks = torch.rand(conditions // members, units).argsort(1).argsort(1)
            self.register_buffer(f"open{number}", (ranks >= off).float().repeat_interleave(members, 0))

    def of_layer(self, number: int, weights: Tensor) -> Tensor:
        """The gates of a hidden layer ``[B, units]``, from probabilities of conditions ``[B, conditions]``."""
        return weights @ self.get_buffer(f"open{number}")

    def forward(self, decoder: nn.Module, z: Tensor, condition: Tensor) -> Tensor:
        """What a decoder of dense layers makes of z, if its hidden units are gated."""
        weights = condition if condition.is_floating_point() else F.one_hot(condition, self.conditions).to(z)
        number = 0
        for layer in decoder.children():
            z = layer(z)
            if isinstance(layer, nn.LeakyReLU) and number < self.layers:
                z = z * self.of_layer(number, weights)
                number += 1
        return z
