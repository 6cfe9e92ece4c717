"""The softmax gate of the paper, and its prior: the gate as it was after the previous task."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class SoftmaxGate(nn.Module):
    r"""A linear-softmax selection policy :math:`p(m|x) \propto \exp(w_m^T x + b_m)`.

    Its weights are not sampled (a second stochastic step would hinder specialisation). The prior is the previous
    gate *evaluated on the current input*; before the first task its weights are zero, which makes it uniform.

    Args:
        in_features: numbers that it reads.
        experts: M.
        copies: C, gates of one shape side by side, each with features and experts of its own; `weight` is ``[C * M, in]``.
    """

    prior_weight: Tensor
    prior_bias: Tensor

    def __init__(
        self,
        in_features: int,
        experts: int,
        copies: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.copies = copies
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(copies * experts, in_features, **factory))
        self.bias = nn.Parameter(torch.empty(copies * experts, **factory))
        self.register_buffer("prior_weight", torch.empty(copies * experts, in_features, **factory))
        self.register_buffer("prior_bias", torch.empty(copies * experts, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small random weights (ties would send every input to the first expert) and a uniform prior."""
        with torch.no_grad():
            self.weight.normal_(0.0, 1.0 / math.sqrt(self.weight.shape[1]))
            for zero in (self.bias, self.prior_weight, self.prior_bias):
                zero.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """log p(m|x), ``[C, B, in]`` to ``[C, B, M]``."""
        return self._log_softmax(features, self.weight, self.bias)

    def prior(self, features: Tensor) -> Tensor:
        """log p(m|x) of the prior gate on the same features."""
        return self._log_softmax(features, self.prior_weight, self.prior_bias)

    def _log_softmax(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = weight.unflatten(0, (self.copies, -1)), bias.view(self.copies, 1, -1)
        return (features @ weight.transpose(1, 2) + bias).log_softmax(2)

    @torch.no_grad()
    def grown(self, like: int | None) -> SoftmaxGate:
        """The gate with one expert more, in every copy.

        Like another, it shares that one's probability, half and half, and all others keep theirs, for gate and prior. A new one
        starts with small random weights and an indifferent prior.
        """
        copies, inputs = self.copies, self.weight.shape[1]
        experts = len(self.weight) // copies
        made = SoftmaxGate(inputs, experts + 1, copies, self.weight.device, self.weight.dtype)
        made.weight.requires_grad_(self.weight.requires_grad)
        made.bias.requires_grad_(self.bias.requires_grad)
        for name in ("weight", "bias", "prior_weight", "prior_bias"):
            old, new = (getattr(gate, name).unflatten(0, (copies, -1)) for gate in (self, made))
            new[:, :experts] = old
            if like is not None:
                new[:, experts] = old[:, like]
                if old.dim() == 2:
                    new[:, like] -= math.log(2)
                    new[:, experts] -= math.log(2)
        return made

    @torch.no_grad()
    def consolidate(self) -> None:
        """Make the gate the prior of what comes next."""
        self.prior_weight.copy_(self.weight)
        self.prior_bias.copy_(self.bias)
