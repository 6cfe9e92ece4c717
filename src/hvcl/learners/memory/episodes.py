"""An episodic memory: the last examples of every task, and the learners that have one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientLearner
from hvcl.learners.memory.examples import Stored, from_state, room_for
from hvcl.learners.memory.replay import MemoryConfig, memory_words
from hvcl.learners.memory.reservoir import memory_generator


class Episodes:
    """The last examples of each task so far, `capacity` in all, in equal shares: with every new task the shares shrink."""

    def __init__(self, problem: Problem, capacity: int, seed: int, device: torch.device) -> None:
        self.capacity = capacity
        self._nothing = room_for(0, problem, device)
        self._episodes = [self._nothing]
        self._generator = memory_generator(seed)

    @property
    def current(self) -> Stored:
        """The stored examples of the current task."""
        return self._episodes[-1]

    @property
    def finished(self) -> list[Stored]:
        """The stored examples of each earlier task."""
        return self._episodes[:-1]

    def add(self, batch: Stored) -> None:
        """Keep the last examples of the current task, up to its share of the memory."""
        self._episodes[-1] = self._last(self.current.followed_by(batch))

    def begin(self) -> None:
        """Begin a new task; the oldest one is dropped where there would be less than one example for each."""
        if len(self.current):
            self._episodes = [*self._episodes, self._nothing][-self.capacity :]
            self._episodes = [self._last(episode) for episode in self._episodes]

    @contextmanager
    def same_draws_if_it_fails(self) -> Iterator[None]:
        """What is drawn inside is drawn again the next time, if anything fails inside."""
        random = self._generator.get_state()
        try:
            yield
        except BaseException:
            self._generator.set_state(random)
            raise

    def draw(self, count: int) -> Stored:
        """A random `count` of all examples of earlier tasks, without repetition, or all if there are fewer."""
        past = self._nothing
        for episode in self.finished:
            past = past.followed_by(episode)
        return past.rows(torch.randperm(len(past), generator=self._generator)[:count])

    def _last(self, episode: Stored) -> Stored:
        share = self.capacity // len(self._episodes)
        return episode.rows(slice(max(len(episode) - share, 0), None))

    def state(self) -> State:
        """The memory and the current task, for a checkpoint."""
        return {"episodes": [episode.state() for episode in self._episodes], "random": self._generator.get_state()}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        episodes = [from_state(episode, self._nothing) for episode in state["episodes"]]
        if sum(map(len, episodes)) > self.capacity:
            raise RunError(f"the saved memory holds more than {self.capacity} examples: set the same size")
        self._episodes = episodes
        self._generator.set_state(state["random"])


@dataclass(frozen=True)
class EpisodicConfig(MemoryConfig):
    """A network with a memory of each task."""

    segment_steps: int = 1_000
    """Batches that count as one task on a task-free stream, where boundaries are not known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segment_steps < 1:
            raise InputError(f"segment_steps must be at least 1, got {self.segment_steps}")


class EpisodicLearner(GradientLearner):
    """A network with an episodic memory, one part for each task: on a task-free stream, for each `segment_steps` batches."""

    config: EpisodicConfig

    def __init__(self, problem: Problem, config: EpisodicConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.episodes = Episodes(problem, config.memory, seed, self.device)
        self.step = 0

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step, and then the batch is remembered."""
        with self.episodes.same_draws_if_it_fails():
            terms = super().learn(x, y, task)
        self.episodes.add(Stored(x, y, task))
        self.step += 1
        if self.problem.task_steps is None and self.step % self.config.segment_steps == 0:
            self.end_task()
        return terms

    def end_task(self) -> None:
        """The next examples belong to another task."""
        super().end_task()
        self.episodes.begin()

    @property
    def memory(self) -> str:
        """The size of the memory."""
        return memory_words(self.config.memory)

    def state_dict(self) -> State:
        """As any network's, the memory, and the position in the stream."""
        return super().state_dict() | {"episodes": self.episodes.state(), "step": self.step}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.episodes.load_state(state["episodes"])
        self.step = int(state["step"])
