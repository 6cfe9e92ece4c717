"""Examples that a learner keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.core.errors import RunError
from hvcl.core.problem import Problem
from hvcl.learners.base import State


@dataclass(frozen=True)
class Stored:
    """Examples with targets and, where there are any, task ids and logits: a batch, or a memory of past ones."""

    x: Tensor
    """Inputs ``[n, *input_shape]``."""
    y: Tensor
    """Output units ``[n]``."""
    task: Tensor | None = None
    """Task ids ``[n]`` in Task-IL: each example is replayed through the head of its own task."""
    logits: Tensor | None = None
    """The network's logits ``[n, outputs]`` when they were stored, if they are kept; minus infinity outside the head."""

    def __len__(self) -> int:
        return len(self.y)

    def columns(self) -> dict[str, Tensor]:
        """The columns that are not None, by name."""
        return {name: column for name, column in vars(self).items() if column is not None}

    def rows(self, chosen: Tensor | slice) -> Stored:
        """A copy of some rows."""
        return Stored(**{name: column[chosen].clone() for name, column in self.columns().items()})

    def followed_by(self, others: Stored) -> Stored:
        """These rows and then the others', with the columns that these have."""
        after = others.columns()
        return Stored(**{name: torch.cat([mine, after[name].to(mine.device)]) for name, mine in self.columns().items()})

    def state(self) -> State:
        """The columns, for a checkpoint."""
        return dict(self.columns())


def room_for(size: int, problem: Problem, device: torch.device, *, logits: bool = False) -> Stored:
    """Room for `size` examples of a problem, all zeros."""
    return Stored(
        x=torch.zeros(size, *problem.input_shape, device=device),
        y=torch.zeros(size, dtype=torch.long, device=device),
        task=None if problem.task_outputs is None else torch.zeros(size, dtype=torch.long, device=device),
        logits=torch.zeros(size, problem.outputs, device=device) if logits else None,
    )


def from_state(state: State, like: Stored) -> Stored:
    """What `Stored.state` saved, of the same kind as `like`; anything else is refused."""
    columns = like.columns()
    fits = state.keys() == columns.keys() and all(state[name].shape[1:] == column.shape[1:] for name, column in columns.items())
    if not fits or len({len(column) for column in state.values()}) != 1:
        raise RunError("the saved memory does not fit this learner: was it made with other settings?")
    return Stored(**{name: state[name].to(column.device, column.dtype, copy=True) for name, column in columns.items()})
