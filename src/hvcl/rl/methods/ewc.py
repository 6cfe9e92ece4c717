r"""Elastic weight consolidation (Kirkpatrick et al., 2017) for the actor and optionally the critics.

After a task the loss pays strength / 2 * sum_t sum_i F_ti (w_i - w_ti)^2, one anchor per task. The Fisher information is exact
for the Gaussian policy, F_i = E_s sum_o c_o(s) (d output_o(s) / d w_i)^2 with c = 1 / sigma^2 for the means and 2 for the log
sigmas (squashing does not change it), as in Continual World (Wolczyk et al., 2021); the critics are taken as Gaussians of unit
variance, c = 1. Actions that a task does not read have c = 0. As in Continual World, only the actor is held by default: acting
needs no critics of old tasks, and critics that are held cannot learn new values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from hvcl.core.errors import InputError
from hvcl.learners.quadratic import Quadratic
from hvcl.rl.dense import StackedDense
from hvcl.rl.methods.registry import register
from hvcl.rl.part import Part, Terms
from hvcl.rl.sac import SAC, SACConfig

CHUNK = 100
"""Examples whose derivatives are held at a time."""


@dataclass(frozen=True)
class EWCSACConfig(SACConfig):
    """Soft actor-critic with elastic weight consolidation."""

    strength: float = 10_000.0
    """Weight of the penalty: too small forgets, too large cannot learn. Continual World's."""
    hold_critics: bool = False
    """Consolidate the critics as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise InputError(f"strength must be at least 0, got {self.strength}")


class EWCPart(Part):
    """A plain network whose important weights are held in place."""

    def __init__(self, network: nn.Module, learning_rate: float, strength: float) -> None:
        super().__init__(network, learning_rate)
        self.strength, self.penalty = strength, Quadratic()

    def priced(self, loss: Tensor, progress: float) -> tuple[Tensor, Terms]:
        """The loss and the penalty, once there is an anchor."""
        if not self.penalty:
            return loss, {}
        penalty = self.strength / 2 * self.penalty(self.network)
        return loss + penalty, {"ewc": penalty.item()}

    def end_task(self, inputs: Tensor, curvature: Tensor) -> None:
        """Add an anchor at the present weights."""
        self.penalty.add(fisher(self.network, inputs, curvature), self.network)

    def state_dict(self) -> dict[str, Any]:
        """As any part's, and the penalty."""
        return super().state_dict() | {"penalty": self.penalty.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.penalty.load_state_dict(state["penalty"], self.network)


def fisher(network: nn.Module, inputs: Tensor, curvature: Tensor) -> dict[str, Tensor]:
    """The diagonal E_n sum_o curvature_no (d output_o(x_n) / d w)^2 for every parameter by name."""
    forward = _Plain(network) if isinstance(network, StackedDense) else network
    parameters = {name: value.detach() for name, value in forward.named_parameters()}

    def outputs(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        answer: Tensor = functional_call(forward, weights, row.unsqueeze(0))
        return answer[0]

    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for rows, weights in zip(inputs.split(CHUNK), curvature.split(CHUNK), strict=True):
        derivatives = vmap(jacrev(outputs), (None, 0))(parameters, rows)
        for name, value in derivatives.items():
            total[name] += torch.einsum("no,no...->...", weights, value.square())
    return {name.removeprefix("network."): value / len(inputs) for name, value in total.items()}


class _Plain(nn.Module):
    """A network in plain operations, which torch.func can see through."""

    def __init__(self, network: StackedDense) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.plain(x)


@register("ewc", EWCSACConfig)
class EWC(SAC):
    """SAC with elastic weight consolidation of the actor, and optionally of the critics."""

    config: EWCSACConfig

    def make_part(self, inputs: int, outputs: int | None) -> Part:
        """Plain networks that hold what was important."""
        part = super().make_part(inputs, outputs)
        if outputs is None and not self.config.hold_critics:
            return part
        return EWCPart(part.network, self.config.learning_rate, self.config.strength)
