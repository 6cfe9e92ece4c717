"""What methods share that keep up the answers of the network of the last boundary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like
from hvcl.generative.generator import frozen, frozen_from, frozen_state
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner


@dataclass(frozen=True)
class TaughtConfig(GradientConfig):
    """A network that is held to earlier answers."""

    temperature: float = 2.0
    """What the outputs are divided by before they are compared."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise InputError(f"temperature must be positive, got {self.temperature}")


class TaughtLearner(GradientLearner):
    """A network that is copied at every boundary; the copy says what its old outputs should be."""

    config: TaughtConfig

    def __init__(self, problem: Problem, config: TaughtConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.teacher: nn.Module | None = None
        self.seen = torch.zeros(problem.outputs, dtype=torch.bool)
        """Labels that have occurred."""
        self.old = self.seen.clone()
        """Labels that had occurred when the teacher was made."""

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; remembers which labels there are."""
        terms = super().learn(x, y, task)
        self.seen[y] = True
        return terms

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
        super().end_task()
        self.teacher = frozen(self.network)
        self.old = self.seen.clone()

    def state_dict(self) -> State:
        """As any network's, and the teacher."""
        return super().state_dict() | {"teacher": frozen_state(self.teacher), "seen": self.seen, "old": self.old}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.seen, self.old = (tensor_like(state[name], self.seen, name) for name in ("seen", "old"))
        self.teacher = frozen_from(self.network, state["teacher"])
