r"""Averaged gradient episodic memory (Chaudhry et al., 2019).

With g the gradient on the stream's batch and g_ref the gradient of the mean loss on a random batch of past examples, the step may
not raise the memory's loss to first order. The closest gradient that does not is

    g~ = g - (g . g_ref) / (g_ref . g_ref) g_ref    if g . g_ref < 0,    else g.

With boundaries g_ref is taken from examples of finished tasks only, so that the first task is learned as if there were no memory.
On a task-free stream past tasks are not known, and g_ref is taken from all of the memory (A-GEM-R in Buzzega et al., 2020).

Deviates from the paper: the memory is a reservoir over all that was seen, not a ring for each class of each task, so that its
size is stated once and no task must be known. Adam instead of SGD: the condition holds for the gradient that Adam is given; its
step, which remembers earlier gradients and scales each weight, may violate it.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from hvcl.core.problem import Problem
from hvcl.learners.base import State
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.replay import ReplayConfig, ReplayLearner
from hvcl.learners.projection import gradient_of, held_gradient, hold_gradient
from hvcl.learners.registry import register


@register("agem", ReplayConfig)
class AGEM(ReplayLearner):
    """Averaged gradient episodic memory: no step against the gradient of a batch of past examples."""

    def __init__(self, problem: Problem, config: ReplayConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.past: int | None = None if problem.task_steps is None else 0
        """How many of the stream's examples belong to finished tasks; None where boundaries are not known."""

    def correct_gradient(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        """Project the gradient if it points against the memory's."""
        past = self.replay(y, before=self.past)
        self.reservoir.add(Stored(x, y, task))
        if not len(past):
            return
        loss = F.cross_entropy(self.logits(past.x, past.task), past.y)
        hold_gradient(self.network, project(held_gradient(self.network), gradient_of(loss, self.network)))

    def end_task(self) -> None:
        """All examples so far belong to past tasks."""
        self.past = self.reservoir.seen

    def state_dict(self) -> State:
        """As with any memory, and what of it is past."""
        return super().state_dict() | {"past": self.past}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.past = None if state["past"] is None else int(state["past"])


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """The vector closest to `gradient` that does not point against `reference`."""
    agreement = gradient @ reference
    return gradient if agreement >= 0 else gradient - agreement / (reference @ reference) * reference
