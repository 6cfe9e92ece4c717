r"""Prioritized experience replay (Schaul et al., 2016) on a sum tree.

Transition i is drawn with probability P(i) = p_i^alpha / sum_j p_j^alpha, p_i = |TD error| + epsilon, one from each of B equal
slices of the total (stratified). Its loss is weighted by w_i = (N P(i))^-beta / max_j w_j, with beta rising to 1 over a task. New
transitions get the highest priority seen. alpha = 0 is uniform replay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.ops.tree import Indices
from hvcl.rl.environments import Array
from hvcl.rl.sum_tree import SumTree

EPSILON = 1e-3
"""What keeps a transition with no error from never being drawn."""


class Transitions(NamedTuple):
    """What happened in one step of some environments; every array has a row for each of them."""

    observation: Array
    action: Array
    """Zero where the task reads none."""
    reward: Array
    next_observation: Array
    terminal: Array
    """1 where the episode ended for good; a limit of steps does not count as an end."""
    mask: Array
    """1 for the actions that the task reads."""


class Batch(NamedTuple):
    """Transitions as tensors, with the weights of their losses and their places in the replay."""

    pair: Tensor
    """Observation and action side by side: what a critic reads."""
    observation: Tensor
    reward: Tensor
    next_observation: Tensor
    terminal: Tensor
    mask: Tensor
    weight: Tensor
    places: Indices


class PrioritizedReplay:
    """The last `capacity` transitions, each row laid out in one array: a batch is one gather."""

    def __init__(self, capacity: int, observations: int, actions: int, alpha: float, seed: int) -> None:
        if capacity < 1:
            raise InputError(f"the replay's capacity must be at least 1, got {capacity}")
        if not 0 <= alpha <= 1:
            raise InputError(f"alpha must lie between 0 (uniform) and 1, got {alpha}")
        self.capacity, self.alpha = capacity, alpha
        self._sizes = [observations, actions, 1, observations, 1, actions]
        ends = np.cumsum(self._sizes)
        self._parts = [slice(int(end - size), int(end)) for size, end in zip(self._sizes, ends, strict=True)]
        try:
            self._rows = np.empty((capacity, int(ends[-1])), np.float32)
            self._tree = SumTree(capacity)
        except (MemoryError, ValueError):  # numpy's ValueError: more than an address can name
            raise InputError(f"a replay of {capacity} transitions does not fit into memory: choose a smaller capacity") from None
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._next = 0
        self._highest = 1.0
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def add(self, transitions: Transitions) -> None:
        """One more row for every environment; the oldest make room."""
        count = len(transitions.reward)
        places = (self._next + np.arange(count)) % self.capacity
        for part, values in zip(self._parts, transitions, strict=True):
            self._rows[places, part] = values.reshape(count, -1)
        self._tree.set(places, np.full(count, self._highest**self.alpha))
        self._next = int((self._next + count) % self.capacity)
        self.size = min(self.size + count, self.capacity)

    def sample(self, count: int, beta: float) -> Batch:
        """`count` transitions by priority, with the weights of importance sampling."""
        if not self.size:
            raise InputError("the replay is empty: add transitions before drawing some")
        total = self._tree.total
        places = self._tree.find((np.arange(count) + self._random.random(count)) * (total / count))
        if self.alpha:
            weights = (self.size / total * self._tree.get(places)) ** -beta
            weight = torch.from_numpy((weights / weights.max()).astype(np.float32))
        else:
            weight = torch.ones(count)
        # torch's memory, always aligned: matrix products of the same numbers elsewhere may differ in their last digits
        rows = torch.from_numpy(self._rows).index_select(0, torch.from_numpy(places))
        observation, action, reward, following, terminal, mask = rows.split(self._sizes, 1)
        pair = rows[:, : observation.shape[1] + action.shape[1]]
        return Batch(pair, observation, reward[:, 0], following, terminal[:, 0], mask, weight, places)

    def reprioritize(self, places: Indices, errors: Array) -> None:
        """New absolute TD errors of transitions that were drawn."""
        if not self.alpha:
            return
        priorities = errors.astype(np.float64) + EPSILON
        self._highest = max(self._highest, float(priorities.max()))
        self._tree.set(places, priorities**self.alpha)

    def clear(self) -> None:
        """Forget everything (a task is over)."""
        self._tree.clear()
        self._next = self.size = 0
        self._highest = 1.0

    def state_dict(self) -> dict[str, Any]:
        """Transitions, priorities, random state."""
        return {
            "rows": torch.from_numpy(self._rows[: self.size]),
            "weights": torch.from_numpy(self._tree.weights(self.size)),
            "next": self._next,
            "highest": self._highest,
            "random": _plain(self._random.bit_generator.state),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clear()
        rows = state["rows"].numpy()
        if rows.shape[1:] != self._rows.shape[1:] or len(rows) > self.capacity:
            raise InputError(f"the saved replay holds rows of shape {rows.shape}, this one takes {self._rows.shape}")
        self.size = len(rows)
        self._rows[: self.size] = rows
        if self.size:
            self._tree.set(np.arange(self.size), state["weights"].numpy())
        self._next, self._highest = int(state["next"]), float(state["highest"])
        self._random.bit_generator.state = state["random"]


def _plain(state: Any) -> dict[str, Any]:
    """The random state as values that JSON knows; its integers have any length there."""
    found: dict[str, Any] = {**state, "state": {name: int(value) for name, value in state["state"].items()}}
    return found
