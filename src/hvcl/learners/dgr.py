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
from torch.nn import functional as F

from hvcl.errors import InputError, RunError
from hvcl.generative import Generator, MoVEVAE
from hvcl.generative.generator import frozen
from hvcl.learners.base import State
from hvcl.learners.generative import GenerativeConfig, GenerativeReplay, Replayed
from hvcl.learners.registry import register
from hvcl.objective import Objective
from hvcl.problem import Problem


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
            vae = self._new_vae()
        optimizer = torch.optim.Adam(vae.parameters(), lr=config.vae_learning_rate, fused=True)
        self.generator = Generator(vae, optimizer, Objective())
        self.teacher: nn.Module | None = None
        """The classifier of the last boundary."""
        self.dreamer: MoVEVAE | None = None
        """The VAE of the last boundary."""

    def _new_vae(self) -> MoVEVAE:
        config = self.config
        vae = MoVEVAE(
            self.problem.input_shape,
            latent=config.latent,
            hidden=config.hidden,
            channels=config.channels,
            likelihood=config.likelihood,
            conditions=self.conditions,
        )
        return vae.to(self.device)

    @property
    def share(self) -> float:
        """1 / t."""
        return 1 / (self.finished + 1)

    def vaes(self) -> Sequence[MoVEVAE]:
        """The VAE."""
        return [self.generator.vae]

    def remember(self) -> None:
        """Copies of both networks."""
        self.generator.end_task()
        self.teacher, self.dreamer = frozen(self.network), frozen(self.generator.vae)

    def draw(self, count: int) -> Replayed | None:
        """Fresh ones at every step."""
        if self.teacher is None or self.dreamer is None:
            return None
        return self.make_replay(count, self.teacher, [self.dreamer])

    def targets(self, logits: Tensor, condition: Tensor) -> Tensor:
        """The class that the generator was asked for, or else the labelling classifier's first choice."""
        label = condition % self.problem.outputs if self.config.conditional else logits.argmax(1)
        return F.one_hot(label, self.problem.outputs).to(logits)

    def train_generator(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The VAE's step on the same examples."""
        inputs, weights, condition = self.with_replay(x, y)
        return self.generator.learn(inputs, weights, condition, len(x), num_data=1, progress=0.0)  # plain layers pay nothing

    def state_dict(self) -> State:
        """Both networks and their copies."""
        copies = {name: None if c is None else dict(c.state_dict()) for name, c in self._copies().items()}
        return super().state_dict() | {"generator": self.generator.state_dict(), "copies": copies}

    def _copies(self) -> dict[str, nn.Module | None]:
        return {"teacher": self.teacher, "dreamer": self.dreamer}

    def load_state_dict(self, state: State) -> None:
        """Go on from `state`."""
        super().load_state_dict(state)
        try:
            self.generator.load_state_dict(state["generator"])
            self.teacher = self.dreamer = None
            if state["copies"]["teacher"] is not None:
                self.teacher, self.dreamer = frozen(self.network), frozen(self.generator.vae)
                self.teacher.load_state_dict(state["copies"]["teacher"])
                self.dreamer.load_state_dict(state["copies"]["dreamer"])
        except (KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"the saved state does not fit this learner ({reason}): was it made with other settings?") from None
