"""The paper's own rivals: EWC and UCL on PPO, with a head for every task (whose id must be given, in acting too)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hvcl.core.errors import InputError
from hvcl.ops.dense import SLOPE
from hvcl.rl.methods.ewc import EWCPart
from hvcl.rl.methods.registry import register
from hvcl.rl.methods.ucl import UCLPart, UCLWeights
from hvcl.rl.nodes import Nodes
from hvcl.rl.part import Part
from hvcl.rl.ppo import PPO, PPOConfig


@dataclass(frozen=True)
class EWCPPOConfig(PPOConfig):
    """PPO with elastic weight consolidation."""

    strength: float = 10.0
    """Weight of the penalty: too small forgets, too large cannot learn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise InputError(f"strength must be at least 0, got {self.strength}")


@register("ewc-ppo", EWCPPOConfig)
class EWCPPO(PPO):
    """PPO with a head for every task and elastic weight consolidation; the task id is given."""

    config: EWCPPOConfig

    def make_part(self, inputs: int, outputs: int) -> Part:
        """Plain networks that hold what was important; heads of other tasks have no Fisher information."""
        return EWCPart(super().make_part(inputs, outputs).network, self.config.learning_rate, self.config.strength)


@dataclass(frozen=True)
class UCLPPOConfig(UCLWeights, PPOConfig):
    """PPO with uncertainty-based continual learning."""

    def __post_init__(self) -> None:
        PPOConfig.__post_init__(self)
        UCLWeights.__post_init__(self)


@register("ucl-ppo", UCLPPOConfig)
class UCLPPO(PPO):
    """PPO with a plain head for every task and a trunk under uncertainty-based continual learning; the task id is given."""

    config: UCLPPOConfig

    def make_part(self, inputs: int, outputs: int) -> Part:
        """A trunk with a sigma per node, and plain heads, which are not held."""
        config = self.config
        *hidden, last = config.hidden
        trunk = Nodes(inputs, last, tuple(hidden), 1, config.ratio)
        network = nn.Sequential(trunk, nn.LeakyReLU(SLOPE), nn.Linear(last, outputs))
        return UCLPart(network, config, config.learning_rate, config.batch_size)
