"""Uncertainty-based continual learning (Ahn et al., 2019) for actor and critics; the mathematics are in `hvcl.learners.ucl`.

One network for all tasks, without heads of their own: so the last layer is held like the others, where the paper's separate
heads are left free. `strength` multiplies all three terms, which the paper divides by the size of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from hvcl.errors import InputError
from hvcl.layers import MoVELinear, consolidate
from hvcl.learners.ucl import bias_of, layers_of, node_options, regularisers, shrink_means
from hvcl.rl.methods.registry import register
from hvcl.rl.networks import Twin, network_of, start_small, twin_of
from hvcl.rl.part import Part, Terms
from hvcl.rl.sac import SAC, SACConfig


@dataclass(frozen=True)
class UCLWeights:
    """What the price is made of."""

    ratio: float = 0.02
    """Share of sigma^2 in the He variance at the start; the means have the rest. Small: critics do not bear much noise."""
    alpha: float = 0.01
    """Weight of the first term in the first task."""
    beta: float = 0.03
    """Weight of the term on sigma."""
    strength: float = 1.0
    """Weight of the first two terms from the second task on; 1 in the paper."""

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1 or min(self.alpha, self.beta, self.strength) < 0:
            raise InputError("ratio must lie between 0 and 1, and alpha, beta and strength be at least 0")


@dataclass(frozen=True)
class UCLSACConfig(UCLWeights, SACConfig):
    """Soft actor-critic with uncertainty-based continual learning."""

    def __post_init__(self) -> None:
        SACConfig.__post_init__(self)
        UCLWeights.__post_init__(self)


class UCLPart(Part):
    """A network with a sigma per node, whose sure nodes are held in place; plain layers in it (heads) are not."""

    def __init__(self, network: nn.Module, config: UCLWeights, learning_rate: float, batch_size: int) -> None:
        super().__init__(network, learning_rate)
        self.config, self.batch_size = config, batch_size
        self.first = True
        self.anchor()

    @property
    def chains(self) -> list[nn.Module]:
        """The networks in here, each from its inputs to its outputs."""
        return [self.network.first, self.network.second] if isinstance(self.network, Twin) else [self.network]

    def anchor(self) -> None:
        """What the network is now is what it will be compared with."""
        consolidate(self.network)
        self.biases = [[bias_of(layer).detach().clone() for layer in layers_of(chain)] for chain in self.chains]

    def priced(self, loss: Tensor, progress: float) -> tuple[Tensor, Terms]:
        """The loss and the three terms, the latter divided by the size of the batch."""
        config = self.config
        sums = [regularisers(layers_of(chain), old) for chain, old in zip(self.chains, self.biases, strict=True)]
        squares, magnitudes, spread = (sum(terms[1:], terms[0]) / self.batch_size for terms in zip(*sums, strict=True))
        held = config.alpha / 2 * squares if self.first else config.strength * (squares / 2 + magnitudes)
        terms = {"squares": squares.item(), "magnitudes": magnitudes.item(), "spread": spread.item()}
        return loss + held + config.beta / 2 * spread, terms

    def end_task(self, inputs: Tensor, curvature: Tensor) -> None:
        """The present posterior is what the next task is compared with."""
        self.first = False
        self.anchor()

    def state_dict(self) -> dict[str, Any]:
        """As any part's, and the values at the last boundary (those of the weights are in the network)."""
        return super().state_dict() | {"first": self.first, "biases": self.biases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        super().load_state_dict(state)
        self.first, self.biases = bool(state["first"]), [list(chain) for chain in state["biases"]]


@register("ucl", UCLSACConfig)
class UCL(SAC):
    """SAC with uncertainty-based continual learning of actor and critics."""

    config: UCLSACConfig

    def make_part(self, inputs: int, outputs: int | None) -> Part:
        """Networks with a sigma per node."""
        config = self.config
        layer = partial(MoVELinear, experts=1, **node_options(config.ratio))
        network = twin_of(inputs, config.hidden, layer) if outputs is None else network_of(inputs, outputs, config.hidden, layer)
        shrink_means(network, config.ratio)
        part = UCLPart(network, config, config.learning_rate, config.batch_size)
        for chain in part.chains:
            start_small(chain.get_submodule("head"))
        part.anchor()
        return part
