"""Task boundaries of task-free streams, detected by a generative gate.

The gate (`hvcl.gates.GenerativeGate`) sees fixed features of every batch and opens an expert where their means shift; a false
alarm has a probability of at most concentration / N after N examples. When most of a batch is assigned to another expert than
most of the one before, a boundary lies between them: the learner consolidates before it learns from the batch. The features are
whitened patches of pictures, or the inputs of other data, fitted to the first examples of the stream; only these are kept, and
only until then (`FeatureGate.memory`).

In Task-IL the task id of a batch is given in training, and a boundary is where it changes.
"""

from __future__ import annotations

from torch import Tensor

from hvcl.learners.base import State
from hvcl.learners.feature_gate import FeatureGate, FeatureGateConfig


class BoundaryDetector:
    """Decides for each batch of a task-free stream whether a new task begins with it.

    Args:
        input_shape: shape of one example.
        seed: of the features.
    """

    def __init__(self, input_shape: tuple[int, ...], seed: int) -> None:
        self.gate = FeatureGate(tuple(input_shape), FeatureGateConfig(covariance="diagonal"), seed)
        self.current: int | None = None
        """The expert (or, in Task-IL, the task) of most of the last batch."""

    def crossed(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> bool:
        """Whether a task boundary lies between the last batch and this one, from which the gate learns."""
        most = int((self.gate.observe(x, y) if task is None else task).mode()[0])
        before, self.current = self.current, most
        return before is not None and before != most

    def state_dict(self) -> State:
        """The gate with its features and warm-up, and the current expert."""
        return self.gate.state_dict() | {"current": self.current}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.gate.load_state_dict(state)
        self.current = None if state["current"] is None else int(state["current"])
