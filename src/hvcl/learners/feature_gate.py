"""A generative gate on fixed features of the inputs, both made from the first examples of a stream."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.features import FeatureChoice, FeatureMap, InputFeatures, PatchFeatures, PrincipalDirections
from hvcl.gates import GenerativeGate
from hvcl.gates.generative import Covariance
from hvcl.gates.standardise import location_and_scale
from hvcl.learners.base import State
from hvcl.learners.conjugate import SharedExperts
from hvcl.learners.warmup import Batch, WarmUp, memory_words

FLOOR = 0.1
"""Smallest spread of a feature that the gate standardises with, as a share of the median one."""

Recognition = Literal["gaussians", "evidence"]


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
    stride: int = 1
    """Patches: step from one to the next; 2 takes a quarter of the time a filter."""
    mirror: bool = False
    """Patches: pool over the picture and its mirror image, for objects without a preferred side."""
    recognition: Recognition = "gaussians"
    """p(m|x) from the gate's Gaussians, or (evidence) by regression on pairs of expert and label, as `exact` has it."""
    covariance: Literal["tied", "diagonal"] = "tied"
    """Covariance of the gate's Gaussians: one full matrix for all, or a diagonal for each."""
    temperature: float = 3.0
    """Of the gate's likelihoods: one is Bayes' rule, larger ones make up for features that are not Gaussian."""
    concentration: float = 0.01
    """Concentration of the gate's Chinese-restaurant prior: larger opens experts more readily."""
    window: int = 128
    """Smallest number of examples that are tested for a shift; smaller batches are tested together."""
    max_experts: int | None = None
    """Most experts that the gate opens; then examples after a shift go to the most likely one. None: no bound."""
    warmup: int = 256
    """Examples that the gate's features are fitted to. They are kept until then, and all belong to the first expert."""


class FeatureGate:
    """p(m|x) on fixed features phi(x): by a `GenerativeGate`, or by conjugate regression on pairs (expert, label).

    The first `config.warmup` examples belong to expert 0; then the features are fitted to them, and the gate learns them. Either
    way a `GenerativeGate` assigns the experts in training; for the regression it sees a random projection of the features.

    Args:
        input_shape: shape of one example.
        config: settings.
        seed: of the features.
        growing: whether detected shifts open experts; otherwise only `new_expert` does.
        features: a custom feature map, fitted or not, instead of the one that the settings choose.
        directions: how many principal directions of the features a network stands on, fitted to the warm-up; 0: on all features.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        config: FeatureGateConfig,
        seed: int,
        *,
        growing: bool = True,
        features: FeatureMap | None = None,
        directions: int = 0,
    ) -> None:
        self.input_shape, self.config, self.seed, self.growing = input_shape, config, seed, growing
        self._custom = features
        self._map_was_given = features is not None and features.fitted
        self.features = features
        """None until the warm-up is over, unless a custom map was given."""
        self.gate: GenerativeGate | None = None
        """None until the warm-up is over."""
        self.shared: SharedExperts | None = None
        """The regression, where it is asked for; None until the warm-up is over."""
        self.warmup = WarmUp(config.warmup)
        self._directions = directions
        self.directions: PrincipalDirections | None = None
        """None until the warm-up is over, and where there are none."""
        if directions and self._map_was_given:
            raise InputError(
                "principal directions are fitted to the warm-up, and a map that is fitted already has none: leave them out"
            )
        if features is not None:
            features.require_inputs(input_shape)
            if features.fitted:
                self._make_gate(features)

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over, so that inputs have features."""
        return self.gate is not None

    def embed(self, x: Tensor) -> Tensor:
        """phi(x) ``[B, D]``, once the warm-up is over."""
        assert self.features is not None
        return self.features(x)

    @property
    def network_features(self) -> int:
        """Length of what a network on these features takes, once the warm-up is over."""
        assert self.features is not None
        return self.features.features if self.directions is None else self.directions.directions

    def network_inputs(self, phi: Tensor) -> Tensor:
        """What a network on these features takes: them, or their principal directions."""
        return phi if self.directions is None else self.directions(phi)

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> Tensor:
        """Learn from a batch; returns the expert ``[B]`` that each example is assigned to.

        Task ids are kept with the batches of the warm-up, for those who want to learn from them when it is over.
        """
        if self.ready:
            return self.observe_features(self.embed(x), y)
        with self.warmup.adding(x, y, task):
            if self.warmup.complete:
                self._end_warmup()
        return torch.zeros_like(y)

    def observe_features(self, phi: Tensor, y: Tensor) -> Tensor:
        """`observe` with the features of a batch, once the warm-up is over."""
        if self.shared is not None:
            return self.shared.learn_features(phi, y, None)
        assert self.gate is not None
        return self.gate.observe(phi, y)

    def new_expert(self) -> list[Batch]:
        """A task boundary is known to lie here: the next examples open a new expert.

        An unfinished warm-up ends; returns its batches.
        """
        batches = self.warmup.batches
        if batches:
            self._end_warmup()
        if self.gate is not None:
            self.gate.new_expert()
        return batches

    def probabilities(self, x: Tensor) -> Tensor:
        """p(m|x) ``[B, experts]``, float32; one expert during the warm-up."""
        return self.probabilities_of(self.embed(x)) if self.ready else torch.ones(len(x), 1)

    def probabilities_of(self, phi: Tensor) -> Tensor:
        """`probabilities` from the features of a batch, once the warm-up is over."""
        if self.shared is not None and self.shared.columns:
            return self.shared.expert_probabilities(phi).float()
        assert self.gate is not None
        return self.gate.probabilities(phi).float() if self.shared is None else torch.ones(len(phi), 1)

    @property
    def memory(self) -> str:
        """What is stored of past data, in words (`Learner.memory`): the warm-up, and what the features keep of it."""
        if self._map_was_given:
            return "none"
        pieces = self._choice().perhaps_patches if self._custom is None else self._custom.keeps_pieces
        return memory_words(self.config.warmup, pieces)

    @property
    def num_parameters(self) -> int:
        """Number of learned values that p(m|x) depends on."""
        if self.shared is not None:
            return (self.shared.head.model.features + 1) * self.shared.head.classes
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
        phi, first = features(x), torch.zeros_like(y)
        if self._directions:
            # a first task that ended before the warm-up has fewer
            self.directions = PrincipalDirections(features.features, min(self._directions, features.features, len(phi) - 1))
            self.directions.fit(phi)
        self._make_gate(features)
        assert self.gate is not None
        if self.shared is None:
            centre, spread = location_and_scale(phi.double())
            # a feature that hardly varies on the first examples may vary later: do not blow it up
            self.gate.standardise(centre, spread.clamp_min(FLOOR * float(spread.median())))
            self.gate.learn(phi, first, y)
        else:
            self.gate.learn(phi @ self.shared.projection, first, y)
            self.shared.learn_features(phi, y, first)
        self.warmup.take()

    def _make_gate(self, features: FeatureMap) -> None:
        self.features, self.shared = features, None
        if self.config.recognition == "evidence":
            self.shared = SharedExperts(features, self._new_gate, None)
            self.gate = self.shared.gate
        else:
            self.gate = self._new_gate(features.features, self.config.covariance)

    def _new_gate(self, dim: int, covariance: Covariance) -> GenerativeGate:
        config = self.config
        return GenerativeGate(
            dim,
            covariance=covariance,
            concentration=config.concentration,
            temperature=config.temperature,
            window=config.window,
            growing=self.growing,
            max_experts=config.max_experts if self.growing else None,
        )

    def _choice(self) -> FeatureChoice:
        shape, config = self.input_shape, self.config
        return FeatureChoice(
            shape,
            config.features,
            patches=lambda: PatchFeatures(
                shape,
                config.filters,
                sizes=config.sizes,
                grid=config.grid,
                stride=config.stride,
                mirror=config.mirror,
                seed=self.seed,
            ),
            otherwise=lambda: InputFeatures(shape),
        )

    def state_dict(self) -> State:
        """Features, gate, regression, the examples of the warm-up, and the seed."""
        state = {
            "features": None if self.features is None else self.features.state_dict(),
            "pictures": isinstance(self.features, PatchFeatures),
            "gate": None if self.gate is None else self.gate.state_dict(),
            "waiting": [[x, y] if task is None else [x, y, task] for x, y, task in self.warmup.batches],
            "seed": self.seed,
        }
        if self._directions:
            state["directions"] = {} if self.directions is None else self.directions.state_dict()
        if self.shared is not None:
            state["head"] = {name: value for name, value in self.shared.state_dict().items() if name in ("columns", "head")}
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.seed = int(state["seed"])
        self.features, self.gate, self.shared, self.directions = self._custom, None, None, None
        if state["gate"] is not None:
            # a custom map may be used elsewhere, and stays as it was
            features = copy.copy(self._custom) if self._custom else self._choice().make(bool(state["pictures"]))
            features.load_state_dict(state["features"])
            if self._directions:
                count = min(self._directions, int(state["directions"]["basis"].shape[1]))
                self.directions = PrincipalDirections(features.features, count)
                self.directions.load_state_dict(state["directions"])
            self._make_gate(features)
            if self.shared is not None:
                self.shared.load_state_dict(state["head"] | {"gate": state["gate"]})
            else:
                assert self.gate is not None
                self.gate.load_state_dict(state["gate"])
        batches: list[Batch] = [(x.clone(), y.clone(), task[0].clone() if task else None) for x, y, *task in state["waiting"]]
        if any(x.shape != (len(y), *self.input_shape) or y.dim() != 1 for x, y, _ in batches):
            raise ValueError(f"the examples of the warm-up are not of shape {self.input_shape}")
        self.warmup.batches = batches
