r"""Deep generative replay with distillation (van de Ven & Tolias, 2018).

As `dgr`, but the previous classifier labels what is replayed with all it knows: with z and z' the outputs of the network and
of its copy, replayed examples pay

    - T^2 sum_k softmax(z'/T)_k log softmax(z/T)_k ,                 temperature T = 2.

Boundaries are known or detected, as in `dgr`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hvcl.learners.generative import DistillingConfig, GenerativeReplay
from hvcl.learners.methods.dgr import DGR, DGRConfig
from hvcl.learners.registry import register


@dataclass(frozen=True)
class DGRDistillConfig(DGRConfig, DistillingConfig):
    """Deep generative replay with distillation."""


@register("dgr-distill", DGRDistillConfig)
class DGRDistill(DGR):
    """Deep generative replay with distillation: soft labels from the previous classifier."""

    config: DGRDistillConfig

    def targets(self, logits: Tensor, condition: Tensor) -> Tensor:
        """The previous classifier's softened probabilities."""
        return GenerativeReplay.targets(self, logits, condition)
