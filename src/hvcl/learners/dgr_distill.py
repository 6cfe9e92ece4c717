r"""Deep generative replay with distillation (van de Ven & Tolias, 2018).

As `dgr`, but the previous classifier labels what is replayed with all it knows: with z and z' the outputs of the network and
of its copy, replayed examples pay

    - T^2 sum_k softmax(z'/T)_k log softmax(z/T)_k ,                 temperature T = 2.

Boundaries are told or found, as in `dgr`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hvcl.errors import InputError
from hvcl.learners.dgr import DGR, DGRConfig
from hvcl.learners.registry import register


@dataclass(frozen=True)
class DGRDistillConfig(DGRConfig):
    """Deep generative replay with distillation."""

    temperature: float = 2.0
    """What the outputs are divided by before they are compared."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise InputError(f"temperature must be positive, got {self.temperature}")


@register("dgr-distill", DGRDistillConfig)
class DGRDistill(DGR):
    """Deep generative replay with distillation: soft labels from the previous classifier."""

    config: DGRDistillConfig

    def targets(self, logits: Tensor, condition: Tensor) -> Tensor:
        """Softened answers."""
        return (logits / self.config.temperature).softmax(1)

    def replay_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of softened answers, times T^2: its gradient keeps its size whatever T is."""
        return self.config.temperature**2 * super().replay_loss(logits / self.config.temperature, targets)
