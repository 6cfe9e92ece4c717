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

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner, Terms
from hvcl.learners.registry import register


@dataclass(frozen=True)
class LwFConfig(GradientConfig):
    """Learning without forgetting."""

    strength: float = 1.0
    """Weight of the distillation: too small forgets, too large cannot learn."""
    temperature: float = 2.0
    """What the outputs are divided by before they are compared."""
    balance: Literal["constant", "tasks"] = "constant"
    """Whether both terms keep their weights, or are weighted by the number of tasks that they stand for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise InputError(f"strength must be at least 0, got {self.strength}")
        if not self.temperature > 0:
            raise InputError(f"temperature must be positive, got {self.temperature}")
        if self.balance not in ("constant", "tasks"):
            raise InputError(f"balance must be 'constant' or 'tasks', got {self.balance!r}")


@register("lwf", LwFConfig)
class LwF(GradientLearner):
    """Learning without forgetting: keeps up the previous network's answers on the new inputs."""

    config: LwFConfig

    def __init__(self, problem: Problem, config: LwFConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.teacher: nn.Module | None = None
        self.seen = torch.zeros(problem.outputs, dtype=torch.bool)
        """Labels that have occurred."""
        self.old = self.seen.clone()
        """Labels that had occurred when the teacher was made."""
        self.boundaries = 0

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; remembers which labels there are."""
        terms = super().learn(x, y, task)
        self.seen[y] = True
        return terms

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

    def distillation(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of softened answers, summed over old heads, a mean over examples."""
        total = outputs.new_zeros(())
        for head in self.old_heads():
            soft = (targets[:, head] / self.config.temperature).softmax(1)
            total = total - (soft * (outputs[:, head] / self.config.temperature).log_softmax(1)).sum(1).mean()
        return total

    def old_heads(self) -> list[list[int]]:
        """The groups of outputs that share a softmax and were learned before the last boundary."""
        known = self.old.nonzero().flatten().tolist()
        if self.problem.task_outputs is None:
            return [known]
        return [list(head) for head in self.problem.task_outputs if set(head) & set(known)]

    def end_task(self) -> None:
        """The network so far is the next task's teacher."""
        self.teacher = self._frozen_copy()
        self.old = self.seen.clone()
        self.boundaries += 1

    def _frozen_copy(self) -> nn.Module:
        return copy.deepcopy(self.network).eval().requires_grad_(False)

    def state_dict(self) -> State:
        """As any network's, and the teacher."""
        teacher = None if self.teacher is None else dict(self.teacher.state_dict())
        return super().state_dict() | {"teacher": teacher, "seen": self.seen, "old": self.old, "boundaries": self.boundaries}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.seen, self.old = (tensor_like(state[name], self.seen, name) for name in ("seen", "old"))
        self.boundaries = int(state["boundaries"])
        self.teacher = None
        if state["teacher"] is not None:
            self.teacher = self._frozen_copy()
            self.teacher.load_state_dict(state["teacher"])
