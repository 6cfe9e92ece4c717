r"""Replay through feedback (van de Ven & Tolias, 2018): generator and classifier in one network.

The encoder of a VAE is the classifier: a softmax layer on its last hidden layer h(x) answers, and the feedback connections (the
decoder) generate. Per example

    L = cross-entropy(y, W h(x)) - ELBO(x) / D,                      D the numbers of an input,

for the current batch with weight 1/t and for the replayed batch with weight 1 - 1/t, where a copy of the whole network from the
last boundary generates inputs and labels them softly (temperature T = 2, as in `dgr-distill`). One pass through the encoder
serves both tasks.

With `conditional=True` each class has a latent Gaussian of its own, one of the additions of brain-inspired replay (`bir`), which
has all of them.

The published networks on MNIST are those of `dgr`. Deviates: leaky ReLU instead of ReLU. Boundaries are known or
found, as in `dgr`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.generative import MoVEVAE
from hvcl.generative.generator import frozen, frozen_from, frozen_state
from hvcl.learners.base import State
from hvcl.learners.generative import DistillingConfig, GenerativeReplay, Replayed
from hvcl.learners.gradient import Terms
from hvcl.learners.registry import register


@dataclass(frozen=True)
class RtFConfig(DistillingConfig):
    """Replay through feedback."""

    latent: int = 100
    """Dimensions of the latent variable."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise InputError("replay through feedback classifies from the last hidden layer: give at least one, such as 400,400")
        if self.dropout:
            raise InputError(f"replay through feedback has no dropout: its encoder is that of a VAE. Got dropout {self.dropout}")


class FeedbackNetwork(nn.Module):
    """A VAE whose encoder also classifies.

    Args:
        vae: of what is replayed.
        width: of the encoder's last hidden layer.
        outputs: of the classifier.
        front: layers before what is replayed; by default none, and inputs are replayed.
    """

    def __init__(self, vae: MoVEVAE, width: int, outputs: int, front: nn.Module | None = None) -> None:
        super().__init__()
        self.front = nn.Identity() if front is None else front
        self.vae = vae
        self.head = nn.Linear(width, outputs)

    def features(self, x: Tensor) -> Tensor:
        """The last hidden layer for inputs."""
        return self.vae.features(self.front(x))

    def forward(self, x: Tensor) -> Tensor:
        """The classifier's outputs for inputs."""
        outputs: Tensor = self.head(self.features(x))
        return outputs

    def answers(self, replayed: Tensor) -> Tensor:
        """The classifier's outputs for what is replayed."""
        outputs: Tensor = self.head(self.vae.features(replayed))
        return outputs


@register("rtf", RtFConfig)
class RtF(GenerativeReplay):
    """Replay through feedback: one network classifies and generates its own replay."""

    config: RtFConfig
    network: FeedbackNetwork

    def __init__(self, problem: Problem, config: RtFConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.teacher: FeedbackNetwork | None = None
        """The network of the last boundary."""

    def build(self) -> nn.Module:
        """The VAE and the softmax layer."""
        return FeedbackNetwork(self.new_vae(), self.config.hidden[-1], self.problem.outputs)

    def vaes(self) -> Sequence[MoVEVAE]:
        """The network itself."""
        return [self.network.vae]

    def remember(self) -> None:
        """A copy of the network."""
        self.teacher = frozen(self.network)

    def draw(self, count: int) -> Replayed | None:
        """New examples at every step."""
        return None if self.teacher is None else self.make_replay(count, self.teacher, [self.teacher.vae])

    def answers(self, network: nn.Module, x: Tensor, task: Tensor | None) -> Tensor:
        """Logits of the network that labels."""
        assert isinstance(network, FeedbackNetwork)
        return network.answers(x)

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Classification and generation from one pass through the encoder."""
        vae, old = self.network.vae, self.replayed
        inputs, weights, condition = self.with_replay(self.network.front(x), y)
        features = vae.features(inputs)
        elbo = vae.elbo_of(vae.latent_of(features), inputs.detach(), condition)
        utility = (weights * elbo.value).sum()
        tasks = task if task is None or old is None or old.task is None else torch.cat([task.to(self.device), old.task])
        logits = self.masked(self.network.head(features), tasks)
        cost = F.cross_entropy(logits[: len(x)], y)
        if old is not None:
            cost = self.blend(cost, self.replay_loss(logits[len(x) :], old.targets))
        vae.prior.record(elbo.component, len(x))
        loss = cost - utility / math.prod(vae.input_shape)
        return {"loss": loss, "cross_entropy": cost, "elbo": utility, "latent_kl": (weights * elbo.divergence).sum()}

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """The last hidden layer of the encoder."""
        return self.network.features(x.to(self.device)).cpu()

    @property
    def num_parameters(self) -> int:
        """Those that classify: encoder and head."""
        network = self.network
        used = (*network.front.parameters(), *network.vae.encoder.parameters(), *network.head.parameters())
        return sum(parameter.numel() for parameter in used)

    def state_dict(self) -> State:
        """The network and its copy."""
        return super().state_dict() | {"teacher": frozen_state(self.teacher)}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.teacher = frozen_from(self.network, state["teacher"])
