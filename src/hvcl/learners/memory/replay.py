"""The base of learners that keep past examples in a reservoir."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.reservoir import Reservoir


@dataclass(frozen=True)
class MemoryConfig(GradientConfig):
    """A network with a memory."""

    memory: int = 500
    """Examples that are kept, of all tasks together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < 0:
            raise InputError(f"memory must be at least 0, got {self.memory}")


@dataclass(frozen=True)
class ReplayConfig(MemoryConfig):
    """A network that sees examples of its memory again."""

    replay_batch: int | None = None
    """Examples drawn from the memory at each step; none draws as many as the stream's batch has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay_batch is not None and self.replay_batch < 1:
            raise InputError(f"replay_batch must be at least 1, got {self.replay_batch}")


class ReplayLearner(GradientLearner):
    """A network with a reservoir. Needs no boundaries.

    A method overrides `loss` (or `correct_gradient`), draws there with `replay`, and keeps the batch with `reservoir.add`.
    """

    config: ReplayConfig

    keeps_logits: ClassVar[bool] = False
    """Whether the reservoir also keeps what the network answered."""

    def __init__(self, problem: Problem, config: ReplayConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.reservoir = Reservoir(problem, config.memory, seed, self.device, logits=self.keeps_logits)

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; the memory takes the batch in only if it succeeds."""
        with self.reservoir.whole():
            return super().learn(x, y, task)

    def replay(self, y: Tensor, before: int | None = None) -> Stored:
        """Examples of the memory to go with a batch that has the targets `y`."""
        return self.reservoir.draw(self.config.replay_batch or len(y), before)

    @property
    def memory(self) -> str:
        """The size of the memory."""
        return memory_words(self.config.memory)

    def state_dict(self) -> State:
        """As any network's, and the memory."""
        return super().state_dict() | {"reservoir": self.reservoir.state()}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.reservoir.load_state(state["reservoir"])


def memory_words(examples: int) -> str:
    """A number of stored examples in words."""
    return f"{examples} examples" if examples else "none"
