r"""Synaptic intelligence (Zenke, Poole & Ganguli, 2017).

While a task is learned, each weight's share in the decrease of the task's loss L is summed along the path of the weights,

    omega_i = - sum_steps (dL/dw_i) * (change of w_i in the step) ,

and at the task's end divided by the square of how far the weight has moved altogether:

    Omega_i <- max(0, Omega_i + omega_i / (Delta_i^2 + damping)) .

From then on every loss pays strength * sum_i Omega_i (w_i - w~_i)^2 with w~ the weights at the last boundary. No example is
used again.

The gradient in omega is that of the task's loss without the penalty, and Omega is kept from becoming negative, as in the authors'
code. The defaults are the paper's for permuted MNIST (for split MNIST: strength 1, damping 0.001).

Deviates from the paper: Adam goes on over boundaries, instead of starting anew with every task.

Never consolidates on a task-free stream: then it is naive training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensors_like
from hvcl.learners.base import State
from hvcl.learners.quadratic import QuadraticConfig, QuadraticLearner
from hvcl.learners.registry import register


@dataclass(frozen=True)
class SIConfig(QuadraticConfig):
    """Synaptic intelligence."""

    strength: float = 0.1
    """c, weight of the penalty: too small forgets, too large cannot learn."""
    damping: float = 0.1
    """xi: keeps the importance of weights that have hardly moved bounded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.damping > 0:
            raise InputError(f"damping must be positive, got {self.damping}")


@register("si", SIConfig)
class SI(QuadraticLearner):
    """Synaptic intelligence: weights that made the loss fall on their way are held in place."""

    config: SIConfig

    def __init__(self, problem: Problem, config: SIConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self._begin_path()

    def _begin_path(self) -> None:
        self.path = {name: torch.zeros_like(weight) for name, weight in self.network.named_parameters()}
        self.beginning = {name: weight.detach().clone() for name, weight in self.network.named_parameters()}

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step, and its share in the path integral."""
        before = {name: weight.detach().clone() for name, weight in self.network.named_parameters()}
        terms = super().learn(x, y, task)
        penalised = "penalty" in terms
        with torch.no_grad():
            for name, weight in self.network.named_parameters():
                assert weight.grad is not None
                gradient = weight.grad
                if penalised:
                    gradient = gradient - self.factor * self.config.strength * self.penalty.gradient(name, before[name])
                self.path[name] -= gradient * (weight - before[name])
        return terms

    @torch.no_grad()
    def end_task(self) -> None:
        """The path integrals become importances."""
        importance = {}
        for name, weight in self.network.named_parameters():
            distance = (weight - self.beginning[name]).square()
            importance[name] = self.path[name] / (distance + self.config.damping)
        self.penalty.move(importance, self.network)
        for total in self.penalty.importance.values():
            total.clamp_(min=0)
        self._begin_path()

    def state_dict(self) -> State:
        """As any quadratic learner's, and the path since the last boundary."""
        return super().state_dict() | {"path": self.path, "beginning": self.beginning}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        weights = dict(self.network.named_parameters())
        self.path, self.beginning = tensors_like(state["path"], weights), tensors_like(state["beginning"], weights)
