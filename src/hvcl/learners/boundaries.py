"""Boundaries that nobody tells, found by a generative gate.

The gate (`hvcl.gates.GenerativeGate`) sees fixed features of every batch and opens an expert where their means shift; a false
alarm has a probability of at most concentration / N after N examples. When most of a batch goes to another expert than most of
the one before, a boundary has been crossed: what was learned up to here is to be held fast before the batch is learned from. The
features are whitened patches of pictures, or the inputs of other data, taken from the first examples of the stream; only they are
kept, and only until then.

In Task-IL the task of a batch is given in training, and a boundary is where it changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hvcl.features import FeatureMap, PatchFeatures, is_picture
from hvcl.gates import GenerativeGate
from hvcl.learners.base import State
from hvcl.learners.methods.growing import Inputs

WARMUP = 256
"""Examples that the features are taken from."""

FILTERS, SIZES, GRID = 160, (7,), 3
"""Of the patch features: as many as `hvcl-growing` has."""

CONCENTRATION = 0.01
"""Of the gate's Chinese-restaurant prior."""


class BoundaryFinder:
    """Says of each batch of a task-free stream whether something new begins with it."""

    def __init__(self, input_shape: tuple[int, ...], seed: int) -> None:
        self.input_shape, self.seed = tuple(input_shape), seed
        self.features: FeatureMap | None = None
        self.gate: GenerativeGate | None = None
        self.current: int | None = None
        """The expert (or, in Task-IL, the task) of most of the last batch."""
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def crossed(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> bool:
        """Whether a boundary lies between the last batch and this one; learns from it."""
        most = int((self._experts(x, y) if task is None else task).mode()[0])
        before, self.current = self.current, most
        return before is not None and before != most

    def _experts(self, x: Tensor, y: Tensor) -> Tensor:
        if self.gate is not None and self.features is not None:
            return self.gate.observe(self.features(x), y)
        self.waiting.append((x.clone(), y.clone()))
        if sum(len(labels) for _, labels in self.waiting) >= WARMUP:
            waiting, self.waiting = self.waiting, []
            first, labels = (torch.cat(parts) for parts in zip(*waiting, strict=True))
            features = self._begin(is_picture(first) and min(self.input_shape[1:]) >= 16)
            features.fit(first)
            assert self.gate is not None
            self.gate.learn(features(first), torch.zeros_like(labels), labels)
        return torch.zeros_like(y)

    def _begin(self, pictures: bool) -> FeatureMap:
        if pictures:
            self.features = PatchFeatures(self.input_shape, FILTERS, sizes=SIZES, grid=GRID, mirror=False, seed=self.seed)
        else:
            self.features = Inputs(self.input_shape)
        self.gate = GenerativeGate(self.features.features, covariance="diagonal", concentration=CONCENTRATION)
        return self.features

    def state_dict(self) -> State:
        """Features, gate, and what waits for them."""
        return {
            "features": None if self.features is None else self.features.state_dict(),
            "pictures": isinstance(self.features, PatchFeatures),
            "gate": None if self.gate is None else self.gate.state_dict(),
            "current": self.current,
            "waiting": [list(pair) for pair in self.waiting],
            "seed": self.seed,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from `state`."""
        self.seed = int(state["seed"])
        self.features = self.gate = None
        if state["gate"] is not None:
            self._begin(bool(state["pictures"])).load_state_dict(state["features"])
            assert self.gate is not None
            self.gate.load_state_dict(state["gate"])
        self.current = None if state["current"] is None else int(state["current"])
        self.waiting = [(x.clone(), y.clone()) for x, y in state["waiting"]]
        if any(x.shape != (len(y), *self.input_shape) or y.dim() != 1 for x, y in self.waiting):
            raise ValueError(f"the examples that wait are not of shape {self.input_shape}")
