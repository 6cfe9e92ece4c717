"""A gate that is told which expert answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SURE = 80.0
"""Logit of the chosen expert: exp(-80) vanishes beside 1 in float32, so that the choice has probability exactly 1."""


class PathGate(nn.Module):
    """p(m|x) = 1 for the expert that somebody else has chosen; it reads that choice, one-hot.

    It has the form of a `SoftmaxGate` (a linear map of what it reads, and a prior that is the same map), so that layers run it in
    the same passes. Nothing in it is learned, and its KL to its prior is exactly zero.

    Args:
        experts: M.
        copies: C, gates of one shape side by side.
    """

    weight: Tensor
    bias: Tensor
    prior_weight: Tensor
    prior_bias: Tensor

    def __init__(
        self, experts: int, copies: int = 1, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.copies = copies
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        weight = (SURE * torch.eye(experts, **factory)).repeat(copies, 1)
        bias = torch.zeros(copies * experts, **factory)
        for name, value in (("weight", weight), ("bias", bias), ("prior_weight", weight.clone()), ("prior_bias", bias.clone())):
            self.register_buffer(name, value, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """log p(m|x), one-hot choices ``[C, B, M]`` to ``[C, B, M]``."""
        return (SURE * features).log_softmax(2)

    prior = forward

    def consolidate(self) -> None:
        """Nothing to do: the prior is the gate."""

    def reset_parameters(self) -> None:
        """Nothing to do: nothing is learned."""

    def grown(self, like: int | None) -> PathGate:
        """The gate with one expert more."""
        experts = self.weight.shape[1] + 1
        return PathGate(experts, self.copies, self.weight.device, self.weight.dtype)
