"""Uncertainty-based continual learning (Ahn et al., 2019) for actor and critics.

The mathematics are in `hvcl.learners.methods.ucl`.

One network for all tasks, without heads of their own: so the last layer is held like the others, where the paper's separate
heads are left free. `strength` multiplies the first two terms; all three are divided by the size of the batch, as in the paper.
Noise is drawn by local reparameterisation (`hvcl.rl.nodes`): flipout's marginals, with less noise in the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.layers import consolidate
from hvcl.rl.methods.registry import register
from hvcl.rl.networks import start_small
from hvcl.rl.nodes import NAMES, Nodes
from hvcl.rl.part import Part, Terms
from hvcl.rl.sac import SAC, SACConfig


@dataclass(frozen=True)
class UCLWeights:
    """The weights of the regularisers."""

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
    """Networks with a sigma per node, whose certain nodes are regularised; plain layers beside them (heads) are not."""

    def __init__(self, network: nn.Module, config: UCLWeights, learning_rate: float, batch_size: int) -> None:
        super().__init__(network, learning_rate)
        self.nodes = next(module for module in network.modules() if isinstance(module, Nodes))
        self.config, self.batch_size = config, batch_size
        self.first = True
        self.anchor()

    def anchor(self) -> None:
        """What the network is now is what it will be compared with."""
        consolidate(self.nodes)
        self.nodes.hold()

    def priced(self, loss: Tensor, progress: float) -> tuple[Tensor, Terms]:
        """The loss and the three terms, the latter divided by the size of the batch."""
        config = self.config
        sums = self.nodes.regularisers() / self.batch_size
        held = (config.alpha / 2, 0.0) if self.first else (config.strength / 2, config.strength)
        terms = dict(zip(NAMES, sums.tolist(), strict=True))
        return loss + torch.dot(sums, sums.new_tensor([*held, config.beta / 2])), terms

    def end_task(self, inputs: Tensor, curvature: Tensor) -> None:
        """The present posterior is what the next task is compared with."""
        self.first = False
        self.anchor()

    def state_dict(self) -> dict[str, Any]:
        """As any part's (the values at the last boundary are in the network), and whether there was a boundary."""
        return super().state_dict() | {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.first = bool(state["first"])
        self.nodes.hold()


@register("ucl", UCLSACConfig)
class UCL(SAC):
    """SAC with uncertainty-based continual learning of actor and critics."""

    config: UCLSACConfig

    def make_part(self, inputs: int, outputs: int | None) -> Part:
        """Networks with a sigma per node."""
        config = self.config
        network = Nodes(inputs, outputs or 1, config.hidden, 1 if outputs is not None else 2, config.ratio)
        start_small(network)
        return UCLPart(network, config, config.learning_rate, config.batch_size)
