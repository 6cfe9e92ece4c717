r"""Quadratic penalties on the weights: what elastic weight consolidation, synaptic intelligence and memory-aware synapses share.

Once a task is over, moving a weight w_i away from an anchor costs its importance,

    loss + factor * strength * sum_i importance_i (w_i - anchor_i)^2 .

The methods differ in how they measure the importance. All parameters are penalised; in Task-IL the heads of other tasks have an
importance of zero, since nothing depends on them. Task-free streams announce no boundaries: then nothing is ever anchored, and
the methods are naive training.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensors_like
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner, Terms
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.task_data import TaskData


@dataclass(frozen=True)
class QuadraticConfig(GradientConfig):
    """Network, optimiser and the penalty's weight."""

    strength: float = 1.0
    """Weight of the penalty: too small forgets, too large cannot learn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise InputError(f"strength must be at least 0, got {self.strength}")


class Quadratic:
    r"""A penalty sum_i a_i (w_i - c_i)^2 + rest.

    Penalties of this kind add up to one of the same kind, whatever their number: with a = a1 + a2 and c = (a1 c1 + a2 c2) / a,

        a1 (w - c1)^2 + a2 (w - c2)^2 = a (w - c)^2 + a1 a2 / a (c1 - c2)^2 .
    """

    def __init__(self) -> None:
        self.importance: dict[str, Tensor] = {}
        self.centre: dict[str, Tensor] = {}
        self.rest = 0.0

    def __call__(self, network: nn.Module) -> Tensor:
        """The penalty at the network's weights."""
        costs = [
            torch.dot(self.importance[n].flatten(), (w - self.centre[n]).square().flatten())
            for n, w in network.named_parameters()
        ]
        return torch.stack(costs).sum() + self.rest

    def gradient(self, name: str, weight: Tensor) -> Tensor:
        """The penalty's gradient of one parameter."""
        return 2 * self.importance[name] * (weight - self.centre[name])

    def __bool__(self) -> bool:
        return bool(self.importance)

    @torch.no_grad()
    def add(self, importance: dict[str, Tensor], network: nn.Module) -> None:
        """Add a penalty around the present weights, keeping those around earlier ones."""
        for name, weight in network.named_parameters():
            new = importance[name]
            if name not in self.importance:
                self.importance[name], self.centre[name] = new.clone(), weight.detach().clone()
                continue
            old, centre = self.importance[name], self.centre[name]
            total = old + new
            share = torch.where(total > 0, new / total, 1.0)
            shift = weight - centre
            self.rest += float((old * share * shift.square()).sum())
            self.importance[name], self.centre[name] = total, centre + share * shift

    @torch.no_grad()
    def move(self, importance: dict[str, Tensor], network: nn.Module, decay: float = 1.0) -> None:
        """Add to the importance (the old one times `decay`) and move the centre to the present weights."""
        for name, weight in network.named_parameters():
            old = self.importance.get(name)
            self.importance[name] = importance[name].clone() if old is None else decay * old + importance[name]
            self.centre[name] = weight.detach().clone()
        self.rest = 0.0

    def state_dict(self) -> State:
        """Importances, centres and the constant."""
        return {"importance": self.importance, "centre": self.centre, "rest": self.rest}

    def load_state_dict(self, state: State, network: nn.Module) -> None:
        """Go on from `state`, which is of the weights of `network`."""
        weights = dict(network.named_parameters()) if state["importance"] else {}
        self.importance, self.centre = tensors_like(state["importance"], weights), tensors_like(state["centre"], weights)
        self.rest = float(state["rest"])


class QuadraticLearner(GradientLearner):
    """Pays for moving important weights. A method says what is important."""

    config: QuadraticConfig
    factor: ClassVar[float] = 1.0
    """What the strength is multiplied with in the method's paper: 1 or 1/2."""

    def __init__(self, problem: Problem, config: QuadraticConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.penalty = Quadratic()

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy and the penalty, once there is an anchor."""
        terms = super().loss(x, y, task)
        if self.penalty and self.config.strength:
            terms["penalty"] = self.factor * self.config.strength * self.penalty(self.network)
            terms["loss"] = terms["loss"] + terms["penalty"]
        return terms

    def state_dict(self) -> State:
        """As any network's, and the penalty."""
        return super().state_dict() | {"penalty": self.penalty.state_dict()}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.penalty.load_state_dict(state["penalty"], self.network)


class MeasuredLearner(QuadraticLearner):
    """Measures the importance of the weights on a finished task's examples."""

    def __init__(self, problem: Problem, config: QuadraticConfig, seed: int, examples: int | None) -> None:
        super().__init__(problem, config, seed)
        self.data = TaskData(problem, examples)

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; the first pass over a task is remembered until the task is over."""
        terms = super().learn(x, y, task)
        self.data.add(x, y, task)
        return terms

    def end_task(self) -> None:
        """Measure, anchor, and drop the examples."""
        examples = self.data.finish()
        if examples is not None:
            with self.random.active():
                self.anchor(self.importance(examples))

    @abstractmethod
    def importance(self, examples: Stored) -> dict[str, Tensor]:
        """The importance of every parameter for the finished task."""

    def anchor(self, importance: dict[str, Tensor]) -> None:
        """Importances add up, around the present weights."""
        self.penalty.move(importance, self.network)

    def state_dict(self) -> State:
        """As any quadratic learner's, and the current task's examples."""
        return super().state_dict() | {"data": self.data.state_dict()}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.data.load_state_dict(state["data"])
