"""The bounds: weights carried over as they are, a new network for every task, and all tasks at once."""

from __future__ import annotations

from hvcl.rl.methods.registry import register
from hvcl.rl.sac import SAC, SACConfig


@register("naive", SACConfig)
class Naive(SAC):
    """SAC whose weights are carried over from task to task: the lower bound."""


@register("reset", SACConfig)
class Reset(SAC):
    """A new network for every task: the upper bound for learning the present one, with all that was before forgotten."""

    def on_task_start(self, task: int, steps: int) -> None:
        """Start from new networks."""
        super().on_task_start(task, steps)
        self.start()


@register("multitask", SACConfig)
class Multitask(SAC):
    """SAC on all tasks at once, with the same number of steps in all: the upper bound."""

    all_tasks_at_once = True
