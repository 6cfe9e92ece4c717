"""Stacked networks with a sigma per node, and the sums that hold them in uncertainty-based continual learning.

The mathematics are in `hvcl.learners.methods.ucl`, whose `regularisers` are the reference in the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hvcl.layers import MoVEStack
from hvcl.layers.linear import MoVELinear
from hvcl.learners.methods.ucl import node_options, shrink_means
from hvcl.ops import usable
from hvcl.ops.held import HeldLayer, held_sums
from hvcl.posteriors.mean_field import log_softplus

NAMES = ("squares", "magnitudes", "spread")
"""Names of the three sums, in the order of `regularisers`."""


class Hold(nn.Module):
    """How firmly each weight and bias of a layer is held ``[C, in + 1, out]``; the bias is the last row."""

    old_bias: Tensor
    holds: Tensor
    certainties: Tensor

    def __init__(self, layer: MoVELinear) -> None:
        super().__init__()
        shape = (layer.copies, layer.out_features)
        self.register_buffer("old_bias", torch.zeros(shape))
        for name in ("holds", "certainties"):  # they follow from what was at the last boundary
            self.register_buffer(name, torch.zeros(shape[0], layer.in_features + 1, shape[1]), persistent=False)

    @torch.no_grad()
    def by(self, layer: MoVELinear, before: Tensor) -> Tensor:
        """Lambda^2 and (sigma_0 mu' / sigma')^2, from the strengths of the nodes before ``[C, in, 1]``; those of its own."""
        posterior = layer.posterior
        node = posterior.initial_sigma / posterior.prior_log_sigma.exp().unsqueeze(1)
        self.holds.copy_(torch.cat([torch.maximum(node, before), node], 1).square())
        self.certainties.copy_((node * _rows(posterior.prior_mean, self.old_bias)).square())
        return node.transpose(1, 2)


class Nodes(MoVEStack):
    """`copies` networks with a sigma per node, which has the share `ratio` of the He variance at the start."""

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...], copies: int, ratio: float) -> None:
        options = node_options(ratio)
        super().__init__((inputs, *hidden, outputs), 1, copies=copies, side_by_side=True, estimator="local", **options)
        shrink_means(self, ratio)
        self.held = nn.ModuleList([Hold(layer) for layer in self])

    def consolidate(self) -> None:
        """The posteriors become the priors, and the biases those that they are compared with."""
        super().consolidate()
        for layer, hold in self._pairs():
            assert layer.bias is not None
            hold.old_bias.copy_(layer.bias.detach())

    def hold(self) -> None:
        """Every weight by what was at the last boundary; the inputs hold nothing."""
        strengths = torch.zeros(1, 1, 1)
        for layer, hold in self._pairs():
            strengths = hold.by(layer, strengths.expand(self.copies, layer.in_features, 1))

    def regularisers(self) -> Tensor:
        """The sums of all layers, in the order of `NAMES`.

        (Lambda (mu - mu'))^2, (sigma_0 mu' / sigma')^2 |mu - mu'|, and r - log r + sigma^2 - log sigma^2, r = (sigma / sigma')^2.
        """
        layers = [self._held(layer, hold) for layer, hold in self._pairs()]
        library = usable(*[tensor for layer in layers for tensor in layer])
        if library is not None:
            return held_sums(library, layers)
        sums = [torch.stack(_plain_sums(layer)) for layer in layers]
        return torch.stack(sums).sum(0)

    @staticmethod
    def _held(layer: MoVELinear, hold: Hold) -> HeldLayer:
        posterior, bias = layer.posterior, layer.bias
        assert bias is not None
        old = posterior.prior_mean, hold.old_bias, posterior.prior_log_sigma
        return HeldLayer(posterior.mean, bias, posterior.rho, *old, hold.holds, hold.certainties)

    def _pairs(self) -> list[tuple[MoVELinear, Hold]]:
        found = []
        for layer, hold in zip(self, self.held, strict=True):
            assert isinstance(hold, Hold)
            found.append((layer, hold))
        return found


def _plain_sums(layer: HeldLayer) -> tuple[Tensor, Tensor, Tensor]:
    shift = _rows(layer.mean, layer.bias) - _rows(layer.old_mean, layer.old_bias)
    log_variance = 2 * log_softplus(layer.rho)
    log_ratio = log_variance - 2 * layer.old_log_sigma
    spread = (log_ratio.exp() - log_ratio + log_variance.exp() - log_variance).sum()
    return (layer.holds * shift.square()).sum(), (layer.certainties * shift.abs()).sum(), spread


def _rows(weights: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weights, bias.unsqueeze(1)], 1)
