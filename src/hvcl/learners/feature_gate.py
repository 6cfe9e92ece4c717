"""A generative gate on fixed features of the inputs, both made from the first examples of a stream."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.features import FeatureChoice, FeatureMap, InputFeatures, PatchFeatures
from hvcl.gates import GenerativeGate
from hvcl.learners.base import State
from hvcl.learners.warmup import WarmUp


@dataclass(frozen=True)
class FeatureGateConfig:
    """The gate and its features."""

    features: Literal["auto", "patches", "inputs"] = "auto"
    """What the gate sees: whitened patches, the inputs, or (auto) patches of pictures and else the inputs."""
    filters: int = 160
    """Patches: number of filters. There are 2 * grid^2 features a filter."""
    sizes: tuple[int, ...] = (7,)
    """Patches: their sizes in pixels."""
    grid: int = 3
    """Patches: cells across and down that responses are pooled over."""
    covariance: Literal["tied", "diagonal"] = "tied"
    """Covariance of the gate's Gaussians: one full matrix for all, or a diagonal for each."""
    temperature: float = 3.0
    """Of the gate's likelihoods: one is Bayes' rule, larger ones make up for features that are not Gaussian."""
    concentration: float = 0.01
    """Concentration of the gate's Chinese-restaurant prior: larger opens experts more readily."""
    window: int = 128
    """Smallest number of examples that are tested for a shift; smaller batches are tested together."""
    warmup: int = 256
    """Examples that the gate's features are fitted to. They are kept until then, and all belong to the first expert."""


class FeatureGate:
    """p(m|x) by a `GenerativeGate` on fixed features phi(x).

    The first `config.warmup` examples belong to expert 0; then the features are fitted to them, and the gate learns them.

    Args:
        input_shape: shape of one example.
        config: settings.
        seed: of the features.
        growing: whether detected shifts open experts; otherwise only `new_expert` does.
        features: a custom feature map, fitted or not, instead of the one that the settings choose.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        config: FeatureGateConfig,
        seed: int,
        *,
        growing: bool = True,
        features: FeatureMap | None = None,
    ) -> None:
        self.input_shape, self.config, self.seed, self.growing = input_shape, config, seed, growing
        self._custom = features
        self.features = features
        """None until the warm-up is over, unless a custom map was given."""
        self.gate: GenerativeGate | None = None
        """None until the warm-up is over."""
        self.warmup = WarmUp(config.warmup)
        if features is not None:
            features.require_inputs(input_shape)
            self.gate = self._new_gate(features) if features.fitted else None

    def observe(self, x: Tensor, y: Tensor) -> Tensor:
        """Learn from a batch; returns the expert ``[B]`` that each example is assigned to."""
        if self.gate is not None and self.features is not None:
            return self.gate.observe(self.features(x), y)
        with self.warmup.adding(x, y):
            if self.warmup.complete:
                self._end_warmup()
        return torch.zeros_like(y)

    def new_expert(self) -> None:
        """A task boundary is known to lie here: end the warm-up, and let the next examples open a new expert."""
        if self.warmup.batches:
            self._end_warmup()
        if self.gate is not None:
            self.gate.new_expert()

    def probabilities(self, x: Tensor) -> Tensor:
        """p(m|x) ``[B, experts]``, float32; one expert during the warm-up."""
        if self.gate is None or self.features is None:
            return torch.ones(len(x), 1)
        return self.gate.probabilities(self.features(x)).float()

    @property
    def num_parameters(self) -> int:
        """Number of learned values that p(m|x) depends on."""
        return 0 if self.gate is None else self.gate.num_parameters

    def check_savable(self) -> None:
        """Raise `InputError` for a custom feature map, which the settings do not describe."""
        if self._custom is not None and not self._choice().make(isinstance(self._custom, PatchFeatures)).rebuilds(self._custom):
            raise InputError("a feature map of your own cannot be built again from a file: save the learner's state_dict()")

    def _end_warmup(self) -> None:
        """Fit the features to the examples of the warm-up; the gate's first expert learns them."""
        x, y = self.warmup.inputs, self.warmup.targets
        features = self.features
        if features is None:
            features = self._choice().fit(x)
        else:
            features.fit(x)
        gate = self._new_gate(features)
        gate.learn(features(x), torch.zeros_like(y), y)
        self.features, self.gate = features, gate
        self.warmup.take()

    def _choice(self) -> FeatureChoice:
        shape, config = self.input_shape, self.config
        return FeatureChoice(
            shape,
            config.features,
            patches=lambda: PatchFeatures(
                shape, config.filters, sizes=config.sizes, grid=config.grid, mirror=False, seed=self.seed
            ),
            otherwise=lambda: InputFeatures(shape),
        )

    def _new_gate(self, features: FeatureMap) -> GenerativeGate:
        config = self.config
        return GenerativeGate(
            features.features,
            covariance=config.covariance,
            concentration=config.concentration,
            temperature=config.temperature,
            window=config.window,
            growing=self.growing,
        )

    def state_dict(self) -> State:
        """Features, gate, the examples of the warm-up, and the seed."""
        return {
            "features": None if self.features is None else self.features.state_dict(),
            "pictures": isinstance(self.features, PatchFeatures),
            "gate": None if self.gate is None else self.gate.state_dict(),
            "waiting": [[x, y] for x, y, _ in self.warmup.batches],
            "seed": self.seed,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.seed = int(state["seed"])
        self.features, self.gate = self._custom, None
        if state["gate"] is not None:
            # a custom map may be used elsewhere, and stays as it was
            self.features = copy.copy(self._custom) if self._custom else self._choice().make(bool(state["pictures"]))
            self.features.load_state_dict(state["features"])
            self.gate = self._new_gate(self.features)
            self.gate.load_state_dict(state["gate"])
        batches = [(x.clone(), y.clone(), None) for x, y in state["waiting"]]
        if any(x.shape != (len(y), *self.input_shape) or y.dim() != 1 for x, y, _ in batches):
            raise ValueError(f"the examples of the warm-up are not of shape {self.input_shape}")
        self.warmup.batches = batches  # type: ignore[assignment]
