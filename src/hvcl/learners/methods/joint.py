"""Joint training: the upper bound.

At every task the network is trained on the data of all tasks so far ("offline re-training" in the paper). It uses data that
no continual learner has, and stands in the tables as the upper bound for a network of its size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hvcl.core.problem import Problem
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.registry import register


@dataclass(frozen=True)
class JointConfig(GradientConfig):
    """Joint training."""

    restart: bool = True
    """Begin with a new network at every boundary, so that each figure is that of training offline on all data so far."""


@register("joint", JointConfig)
class Joint(GradientLearner):
    """Trains on the data of all tasks so far (the upper bound)."""

    needs_all_data = True
    config: JointConfig

    def __init__(self, problem: Problem, config: JointConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self._restart_due = False

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; the first one after a boundary begins anew."""
        if self._restart_due:
            self.start()
            self._restart_due = False
        return super().learn(x, y, task)

    def end_task(self) -> None:
        """The next task's data hold this task's as well: begin anew with the next batch."""
        self._restart_due = self.config.restart

    def state_dict(self) -> State:
        """As any network's, and whether a restart is due."""
        return super().state_dict() | {"restart_due": self._restart_due}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self._restart_due = bool(state["restart_due"])
