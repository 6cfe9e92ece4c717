r"""Learning without forgetting (Li & Hoiem, 2016).

At a boundary the network is copied. On the next task's inputs the copy's answers are to be kept up: with z and z' the old
outputs of the network and of the copy, every loss pays

    strength * sum_heads - sum_k softmax(z'/T)_k log softmax(z/T)_k ,        temperature T = 2,

a cross-entropy between softened answers. Old outputs are, in Task-IL, the heads of all earlier tasks, each with a softmax of its
own; elsewhere the units of all labels that were seen before the boundary, with one softmax. No example is kept, and none is
looked at again.

With `balance="tasks"` the new task t and the old ones weigh as many tasks as they stand for, cross-entropy / t and
strength * (1 - 1/t) * distillation, as van de Ven & Tolias (2019) have it; their strength is T^2 = 4.

Deviates from the paper: no warm-up of the new head alone, no weight decay, Adam instead of SGD. (Some implementations multiply
by T^2: that is a strength of 4.)

On a task-free stream there is never a copy: then it is naive training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners.base import State
from hvcl.learners.gradient import Terms
from hvcl.learners.registry import register
from hvcl.learners.taught import TaughtConfig, TaughtLearner


@dataclass(frozen=True)
class LwFConfig(TaughtConfig):
    """Learning without forgetting."""

    strength: float = 1.0
    """Weight of the distillation: too small forgets, too large cannot learn."""
    balance: Literal["constant", "tasks"] = "constant"
    """Whether both terms keep their weights, or are weighted by the number of tasks that they stand for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise InputError(f"strength must be at least 0, got {self.strength}")
        if self.balance not in ("constant", "tasks"):
            raise InputError(f"balance must be 'constant' or 'tasks', got {self.balance!r}")


@register("lwf", LwFConfig)
class LwF(TaughtLearner):
    """Learning without forgetting: keeps up the previous network's answers on the new inputs."""

    config: LwFConfig

    def __init__(self, problem: Problem, config: LwFConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.boundaries = 0

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy and, once there is a teacher, the distillation."""
        if self.teacher is None or not self.config.strength:
            return super().loss(x, y, task)
        outputs = self.network(x)
        with torch.no_grad():
            targets = self.teacher(x)
        distillation = self.distillation(outputs, targets)
        cross_entropy = nn.functional.cross_entropy(self.masked(outputs, task), y)
        share = 1 / (self.boundaries + 1)
        new, old = (share, 1 - share) if self.config.balance == "tasks" else (1.0, 1.0)
        return {"loss": new * cross_entropy + old * self.config.strength * distillation, "distillation": distillation}

    def end_task(self) -> None:
        """The network so far is the next task's teacher."""
        super().end_task()
        self.boundaries += 1

    def state_dict(self) -> State:
        """As with any teacher, and the number of boundaries."""
        return super().state_dict() | {"boundaries": self.boundaries}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.boundaries = int(state["boundaries"])
