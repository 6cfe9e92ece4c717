"""Stacked networks with a sigma per node, and the sums that hold them in uncertainty-based continual learning.

The mathematics are in `hvcl.learners.ucl`, whose `regularisers` are the reference in the tests. Of a compiled pass the sums are a
part, with their gradients in closed form (`hvcl.rl.compiled`); `terms` has them in plain operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hvcl.layers import loss_terms
from hvcl.learners.ucl import node_options, shrink_means
from hvcl.rl.move import StackedMoVE, StackedMoVELinear

NAMES = ("squares", "magnitudes", "spread")
"""The sums, in the order in which a compiled pass gives them."""


class NodeLinear(StackedMoVELinear):
    """A layer of one expert that knows how firmly each of its weights and biases is held; the bias is the last row."""

    old_bias: Tensor
    holds: Tensor
    certainties: Tensor

    def __init__(self, inputs: int, outputs: int, experts: int, copies: int, *options: Any) -> None:
        super().__init__(inputs, outputs, experts, copies, *options)
        self.register_buffer("old_bias", torch.zeros(copies, outputs))
        for name in ("holds", "certainties"):  # they follow from what was at the last boundary
            self.register_buffer(name, torch.zeros(copies, inputs + 1, outputs), persistent=False)

    def held(self) -> dict[str, Tensor]:
        """What a compiled pass needs for the sums."""
        return {"bias": self.bias, "old_bias": self.old_bias, "holds": self.holds, "certainties": self.certainties}

    def consolidate(self) -> None:
        """The posterior becomes the prior, and the bias the one that it is compared with."""
        super().consolidate()
        self.old_bias.copy_(self.bias.detach())

    @torch.no_grad()
    def hold(self, before: Tensor) -> Tensor:
        """Lambda^2 and (sigma_0 mu' / sigma')^2, from the strengths of the nodes before ``[copies, in, 1]``; those of its own."""
        node = self.posterior.initial_sigma / self.posterior.prior_log_sigma.exp().unsqueeze(1)
        self.holds.copy_(torch.cat([torch.maximum(node, before), node], 1).square())
        self.certainties.copy_((node * _rows(self.posterior.prior_mean, self.old_bias)).square())
        return node.transpose(1, 2)

    def terms(self) -> dict[str, Callable[[], Tensor]]:
        """squares, magnitudes, spread."""
        return {"squares": self.squares, "magnitudes": self.magnitudes, "spread": self.spread}

    def squares(self) -> Tensor:
        """Sum of (Lambda (mu - mu'))^2."""
        return (self.holds * self._shift().square()).sum()

    def magnitudes(self) -> Tensor:
        """Sum of (sigma_0 mu' / sigma')^2 |mu - mu'|."""
        return (self.certainties * self._shift().abs()).sum()

    def spread(self) -> Tensor:
        """Sum of r - log r + sigma^2 - log sigma^2, r = (sigma / sigma')^2."""
        log_variance = 2 * self.posterior.log_sigma
        log_ratio = log_variance - 2 * self.posterior.prior_log_sigma
        return (log_ratio.exp() - log_ratio + log_variance.exp() - log_variance).sum()

    def _shift(self) -> Tensor:
        return _rows(self.posterior.mean, self.bias) - _rows(self.posterior.prior_mean, self.old_bias)


class Nodes(StackedMoVE):
    """`copies` networks with a sigma per node, which has the share `ratio` of the He variance at the start."""

    layer = NodeLinear

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...], copies: int, ratio: float) -> None:
        super().__init__(inputs, outputs, hidden, 1, copies, **node_options(ratio))
        shrink_means(self, ratio)

    def hold(self) -> None:
        """Every weight by what was at the last boundary; the inputs hold nothing."""
        strengths = torch.zeros(1, 1, 1)
        for layer in self.layers:
            assert isinstance(layer, NodeLinear)
            strengths = layer.hold(strengths.expand(self.copies, layer.inputs, 1))

    def regularisers(self) -> Tensor:
        """The sums at the last pass, in the order of `NAMES`."""
        if self.compiled.terms is not None:
            return self.compiled.terms[: len(NAMES)]
        terms = [*loss_terms(self)]
        return torch.stack([torch.stack([term.evaluate() for term in terms if term.name == name]).sum() for name in NAMES])


def _rows(weights: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weights, bias.unsqueeze(1)], 1)
