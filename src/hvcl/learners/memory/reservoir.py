"""A reservoir: a memory of fixed size in which every example seen so far is equally likely to be.

Vitter's algorithm R. The first C examples fill the C places. Example number i (counted from 0) then draws a place
s ~ Uniform{0, ..., i} and takes it if s < C. By induction each of the i + 1 examples seen is kept with probability C / (i + 1).

An example that a stream shows once an epoch counts as often as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import RunError
from hvcl.core.problem import Problem
from hvcl.learners.base import State
from hvcl.learners.memory.examples import Stored, from_state, room_for


class Reservoir:
    """Keeps a uniform sample of at most `capacity` of all the examples that were added.

    Its random numbers are its own: what a learner draws for its network is the same with a memory and without.
    """

    def __init__(self, problem: Problem, capacity: int, seed: int, device: torch.device, *, logits: bool = False) -> None:
        self.capacity = capacity
        self.seen = 0
        self._places = room_for(capacity, problem, device, logits=logits)
        self._numbers = torch.zeros(capacity, dtype=torch.long)
        self._generator = memory_generator(seed)
        self._undo: list[Callable[[], object]] | None = None

    @contextmanager
    def whole(self) -> Iterator[None]:
        """If anything fails inside, the reservoir is as it was: its examples, and what it will draw."""
        seen, random, self._undo = self.seen, self._generator.get_state(), []
        try:
            yield
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            self.seen = seen
            self._generator.set_state(random)
            raise
        finally:
            self._undo = None

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    @property
    def numbers(self) -> Tensor:
        """For each example that is kept, how many had come before it."""
        return self._numbers[: len(self)]

    @property
    def kept(self) -> Stored:
        """All examples that are kept."""
        return self._places.rows(slice(len(self)))

    def add(self, batch: Stored) -> None:
        """Offer it a batch, of which it keeps a random part."""
        numbers = self.seen + torch.arange(len(batch))
        self.seen += len(batch)
        if not self.capacity:
            return
        chances = torch.rand(len(batch), dtype=torch.float64, generator=self._generator)
        places = torch.where(numbers < self.capacity, numbers, (chances * (numbers + 1)).long())
        # as if one by one: of two that take the same place the later stays
        latest = {place: row for row, place in enumerate(places.tolist()) if place < self.capacity}
        to, rows = torch.tensor(list(latest), dtype=torch.long), torch.tensor(list(latest.values()), dtype=torch.long)
        if self._undo is not None:
            changed = [self._numbers, *self._places.columns().values()]
            self._undo += [partial(column.index_copy_, 0, to.to(column.device), column[to]) for column in changed]
        self._numbers[to] = numbers[rows]
        incoming = batch.columns()
        for name, column in self._places.columns().items():
            column[to] = incoming[name][rows.to(incoming[name].device)].to(column.device, column.dtype)

    def draw(self, count: int, before: int | None = None) -> Stored:
        """A random `count` of the examples that are kept, without repetition, or all if there are fewer.

        With `before`, only examples that had fewer than so many others before them.
        """
        eligible = torch.arange(len(self)) if before is None else (self.numbers < before).nonzero().flatten()
        order = torch.randperm(len(eligible), generator=self._generator)[:count]
        return self._places.rows(eligible[order])

    def state(self) -> State:
        """Examples, their numbers and the random state, for a checkpoint."""
        return {
            "kept": self.kept.state(),
            "numbers": self.numbers.clone(),
            "seen": self.seen,
            "random": self._generator.get_state(),
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned; `RunError` if it is of another size."""
        kept, seen = from_state(state["kept"], self._places), int(state["seen"])
        if len(kept) != min(seen, self.capacity):
            raise RunError(f"the saved memory holds {len(kept)} of {seen} examples, this one {self.capacity}: set the same size")
        self.seen = seen
        self._numbers[: len(kept)] = state["numbers"]
        for name, column in self._places.columns().items():
            column[: len(kept)] = kept.columns()[name]
        self._generator.set_state(state["random"])


def memory_generator(seed: int) -> torch.Generator:
    """Random numbers for a memory, unrelated to those that the network of the same seed starts from."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]))
