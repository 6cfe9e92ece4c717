"""The interface that every method implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.random import float32
from hvcl.core.state import State, replace_state
from hvcl.learners.experts import ExpertLog

__all__ = ["Learner", "State"]


class Learner(ABC):
    """Learns from batches, one after another, and predicts.

    A learner knows no stream, no data set and no file. It is built from a `Problem`, and all that it remembers is in its
    `state_dict`: a learner that loads it goes on bit-identically.
    """

    needs_all_data: ClassVar[bool] = False
    """Upper bounds only: each part of the stream must hold the data of all tasks so far."""

    one_pass: ClassVar[bool] = False
    """Every example should be seen once: runs take one epoch unless another number is given."""

    config: Any
    """The settings: every method keeps what its constructor was given."""

    network: nn.Module | None = None
    """The network, where there is one: expert usage is read from it."""

    expert_log: ExpertLog | None = None
    """Learners that open experts as they go: which opened when, and what each learned from."""

    expert_probabilities: Tensor | None = None
    """p(m|x) ``[B, experts]`` of the last `predict`, where the learner has experts of its own (not those in a network's layers):
    who answers for which example."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> dict[str, float]:
        """Learn from one batch; returns the named terms of the loss.

        A batch that does not fit raises `InputError`, and nothing has changed.

        Args:
            x: inputs ``[B, *problem.input_shape]``, finite, of any floating-point type (they are learned from in float32).
            y: output units ``[B]``, integers below ``problem.outputs``.
            task: task ids ``[B]`` in Task-IL, None elsewhere.
        """
        with float32():
            return self.learn(*self.accept(x, y, task))

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """`observe` with a batch that fits: what a method implements."""

    def end_task(self) -> None:
        """A task boundary. Called only where the stream announces them; learners that need none do nothing here."""

    def predict(self, x: Tensor, task: Tensor | None = None) -> Tensor:
        """Class probabilities ``[B, problem.outputs]``; in Task-IL zero outside the head of each example's task."""
        with float32():
            return self.infer(*self.accept_inputs(x, task))

    @abstractmethod
    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        """`predict` with inputs that fit: what a method implements."""

    @property
    def memory(self) -> str:
        """What is stored of past data, at any time and in saved files, in words: "none", "all examples", "200 examples".

        "256 examples, then pieces": the first 256, until a feature map is fitted to them, and from then on pieces of them in the
        map (`hvcl.learners.warmup.memory_words`). A task's own data, while it lasts, are not past.
        """
        return "all examples" if self.needs_all_data else "none"

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """Number of learned numbers that predictions depend on."""

    @abstractmethod
    def state_dict(self) -> State:
        """All of it: weights, priors, optimiser, random state."""

    def load_state_dict(self, state: State) -> None:
        """Go on bit-identically from `state`, which a learner with the same problem and settings gave.

        A state that does not fit (of another method or problem, with other shapes, with missing or unknown keys) raises
        `RunError`, which says where, and nothing has changed.
        """
        with float32():
            replace_state(self, state, "learner")

    @abstractmethod
    def restore(self, state: State) -> None:
        """`load_state_dict` without the precautions: what a method implements.

        It may raise any error half-way, and is then called again with the learner's own state of before. It must not depend on
        what the learner has learned, nor keep tensors of `state` that it changes in place.
        """

    def save(self, path: str | Path) -> None:
        """Write the learner to one file, from which `hvcl.load` builds it again; atomically, also over an older file.

        The file holds the method's name, problem, settings and state, as safetensors with JSON in its header. A learner that was
        given parts which a file cannot hold (a feature map of one's own, say) raises `InputError`.
        """
        from hvcl.learners.saving import save  # it knows all methods, which know this

        save(self, path)

    def check_savable(self) -> None:
        """Raise `InputError` if the learner cannot be built again from its problem, settings and state."""

    def accept_inputs(self, x: Tensor, task: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Inputs in float32 and task ids as int64, without a gradient; `InputError` for what does not fit the problem."""
        problem = self.problem
        if not isinstance(x, Tensor):
            raise InputError(f"inputs must be a tensor, got {type(x).__name__}: convert them with torch.as_tensor(x)")
        if tuple(x.shape[1:]) != problem.input_shape or x.dim() == 0:
            raise InputError(f"inputs must have shape (batch, {_list(problem.input_shape)}), got {tuple(x.shape)}")
        if len(x) == 0:
            raise InputError("the batch is empty: give at least one example")
        if not x.is_floating_point():
            raise InputError(f"inputs must be floating point, got {x.dtype}: convert them with x.float()")
        x = x.detach().to(torch.float32)
        # one sum is far cheaper than a mask; only when it is not finite (or overflows) look closer
        if not bool(torch.isfinite(x.sum())) and not bool(x.isfinite().all()):
            bad = int((~x.flatten(1).isfinite().all(1)).sum())
            raise InputError(f"{bad} of {len(x)} inputs hold NaN or infinite values: clean the data before learning")
        if (task is None) != (problem.task_outputs is None):
            raise InputError("task ids must be given in Task-IL, and only there")
        if task is not None and problem.task_outputs is not None:
            task = _integers("task ids", task, len(x), len(problem.task_outputs))
        return x, task

    def accept(self, x: Tensor, y: Tensor, task: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """A batch as `learn` takes it: float32 inputs, int64 targets; `InputError` for what does not fit the problem."""
        x, task = self.accept_inputs(x, task)
        return x, _integers("targets", y, len(x), self.problem.outputs), task


def _integers(name: str, values: Tensor, count: int, limit: int) -> Tensor:
    """So many integers from 0 to `limit` - 1, as int64."""
    if not isinstance(values, Tensor):
        raise InputError(f"{name} must be a tensor, got {type(values).__name__}: convert them with torch.as_tensor")
    if values.shape != (count,) or values.is_floating_point() or values.is_complex():
        raise InputError(f"{name} must be {count} integers, got {values.dtype} of shape {tuple(values.shape)}")
    values = values.long()
    low, high = (int(v) for v in torch.aminmax(values))
    if low < 0 or high >= limit:
        raise InputError(f"{name} must lie between 0 and {limit - 1}, got values from {low} to {high}")
    return values


def _list(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
