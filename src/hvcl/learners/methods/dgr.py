r"""Deep generative replay (Shin et al., 2017), as van de Ven & Tolias (2018) run it.

A classifier and a plain VAE. At a boundary both are copied. From then on the copies make a batch of examples at every step: the
VAE's copy generates inputs z ~ N(0, I), the classifier's copy labels them with its first choice. Classifier and VAE train on

    1/t * L(current batch) + (1 - 1/t) * L(replayed batch),          t the number of tasks so far.

The published networks on MNIST have two layers of 400 units, 100 latent dimensions, 2,000 steps a task of 128 examples, Adam with
0.001. Deviates: leaky ReLU instead of ReLU.

On a task-free stream the boundaries are those that a generative gate finds (`hvcl.learners.boundaries`), which is not part of the
published method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.generative import Generator, MoVEVAE
from hvcl.generative.generator import frozen, frozen_from, frozen_state
from hvcl.learners.base import State
from hvcl.learners.generative import GenerativeConfig, GenerativeReplay, Replayed
from hvcl.learners.registry import register
from hvcl.objective import Objective


@dataclass(frozen=True)
class DGRConfig(GenerativeConfig):
    """Deep generative replay."""

    latent: int = 100
    """Dimensions of the VAE's latent variable."""
    vae_learning_rate: float = 1e-3
    """Step size of the VAE's Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.vae_learning_rate > 0:
            raise InputError(f"vae_learning_rate must be positive, got {self.vae_learning_rate}")


@register("dgr", DGRConfig)
class DGR(GenerativeReplay):
    """Deep generative replay: a plain VAE makes past inputs, the previous classifier their labels."""

    config: DGRConfig

    def __init__(self, problem: Problem, config: DGRConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        with self.random.active():
            vae = self.new_vae()
        optimizer = torch.optim.Adam(vae.parameters(), lr=config.vae_learning_rate, fused=True)
        self.generator = Generator(vae, optimizer, Objective())
        self.teacher: nn.Module | None = None
        """The classifier of the last boundary."""
        self.dreamer: MoVEVAE | None = None
        """The VAE of the last boundary."""

    def vaes(self) -> Sequence[MoVEVAE]:
        """The VAE."""
        return [self.generator.vae]

    def remember(self) -> None:
        """Keep frozen copies of both networks."""
        self.generator.end_task()
        self.teacher, self.dreamer = frozen(self.network), frozen(self.generator.vae)

    def draw(self, count: int) -> Replayed | None:
        """New examples at every step."""
        if self.teacher is None or self.dreamer is None:
            return None
        return self.make_replay(count, self.teacher, [self.dreamer])

    def targets(self, logits: Tensor, condition: Tensor) -> Tensor:
        """The class that an example was generated for, or the previous classifier's prediction."""
        return self.hard_targets(logits, condition)

    def train_generator(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The VAE's step on the same examples."""
        inputs, weights, condition = self.with_replay(x, y)
        return self.generator.learn(inputs, weights, condition, len(x), num_data=1, progress=0.0)  # plain layers pay nothing

    def state_dict(self) -> State:
        """Both networks and their copies."""
        copies = {"teacher": frozen_state(self.teacher), "dreamer": frozen_state(self.dreamer)}
        return super().state_dict() | {"generator": self.generator.state_dict(), "copies": copies}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.generator.load_state_dict(state["generator"])
        self.teacher = frozen_from(self.network, state["copies"]["teacher"])
        self.dreamer = frozen_from(self.generator.vae, state["copies"]["dreamer"])
