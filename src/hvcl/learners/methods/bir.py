r"""Brain-inspired replay: BI-R (van de Ven, Siegelmann & Tolias, 2020).

Replay through feedback (`rtf`: one network classifies, and its feedback connections generate) with four additions.

*Conditional replay.* Each class c has a component of its own in the prior of the latent variable, learned with everything else,

    p(z) = sum_c w_c N(z; mu_c, sigma_c^2) ,

where w is one-hot for the stream's examples, and for replayed ones the answer of the network of the last boundary.

*Gating by context.* Each class turns a share of the units of every hidden layer of the decoder off, chosen at random once and for
all (`hvcl.generative.ContextGates`): h_l = f(W_l h_{l-1} + b_l) o sum_c w_c g_cl. A task can be the context instead of a class.

*Internal replay.* Where there are convolutions F they come first, and what is generated, and replayed, are not pictures x but
h = F(x). F is frozen: what is replayed need not go through it.

*Distillation.* Replayed examples have soft targets (temperature T = 2), as in `dgr-distill`. Per example, in all,

    L = cross-entropy(y, W e(h)) + 1/D ( - E_q[log p(h|z, w)] + KL[q(z|h) || p(z)] ) ,      D the numbers of h, e the encoder,

for the current batch with weight 1/t and for the replayed batch with weight 1 - 1/t. The KL from a mixture is estimated at the
draw of z.

F: the authors have it pretrained on CIFAR-10, as a part of a classifier, when the stream is of CIFAR-100. Here
`pretraining="cifar10"` does so, with data that other methods do not see, which stands in the memory column of every result.
Without it, F learns with everything else in the first task (features to be generated are taken as constants), and is frozen at
the first boundary. Streams of fixed features (`split-cifar100-patches`) are replayed as they are, which is internal replay too.

A class is a pair of a task and a label where boundaries are known: in Domain-IL a label means something else in every task. In
Class-IL and Task-IL that is the label itself. A soft target of a replayed example is spread over the labels of its task, and over
those of others where its task has not got them.

Deviates from the paper: leaky ReLU instead of ReLU and no batch normalisation; classes are replayed in the proportions in which
they came, not equally often; the variance of generated features is learned, not 1; the KL is exact where the class is known,
which the authors estimate as well; the pretraining has no augmentation.
Boundaries are known or found, as in `dgr`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.generative import MoVEVAE
from hvcl.learners.base import State
from hvcl.learners.generative import Replayed, at_least_one
from hvcl.learners.methods.rtf import FeedbackNetwork, RtF, RtFConfig
from hvcl.learners.registry import register
from hvcl.networks import build_network, initialise, trunk

PRETRAINING_BATCH = 256


@dataclass(frozen=True)
class BIRConfig(RtFConfig):
    """Brain-inspired replay."""

    conditional: bool = True
    """A latent Gaussian for each class, which is replayed in its proportion; without it N(0, I) for all, and no gates."""
    gated: float = 0.8
    """Share of the units of each hidden layer of the decoder that a context turns off; 0 for no gates."""
    context: Literal["class", "task"] = "class"
    """What has gates of its own: each class, or each task (as the authors have it on permuted MNIST)."""
    pretraining: str | None = None
    """Data set (such as cifar10) that the convolutions are pretrained on before the stream; none: the first task teaches them."""
    pretraining_epochs: int = 10
    """Passes over it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(pretraining_epochs=self.pretraining_epochs)
        if not 0 <= self.gated < 1:
            raise InputError(f"gated must lie in [0, 1), got {self.gated}")
        if self.gated and not self.conditional:
            raise InputError("gates belong to classes, which the generator does not know: set gated=0 with conditional=False")
        if self.pretraining is not None and not self.channels:
            raise InputError("what is pretrained are the convolutions: give channels, such as 8,16,32,64,128")


@register("bir", BIRConfig)
class BIR(RtF):
    """Brain-inspired replay: one network classifies and replays its own hidden representations, class by class."""

    config: BIRConfig

    def __init__(self, problem: Problem, config: BIRConfig, seed: int) -> None:
        if config.channels and config.likelihood != "gaussian":
            raise InputError(
                f"behind convolutions features are replayed, not pixels: set likelihood='gaussian', got {config.likelihood!r}"
            )
        super().__init__(problem, config, seed)
        self.fixed = False
        """Whether the convolutions are frozen."""

    # -- the network -----------------------------------------------------------------------------------------------------------

    def build(self) -> nn.Module:
        """Convolutions, if any; the VAE of what comes out of them, with gates; the softmax layer."""
        config = self.config
        front = self.new_front() if config.channels else nn.Identity()
        with torch.no_grad():
            shape = tuple(front(torch.zeros(1, *self.problem.input_shape)).shape[1:])
        vae = MoVEVAE(
            shape,
            latent=config.latent,
            hidden=config.hidden,
            likelihood=config.likelihood,
            conditions=self.conditions,
            gated=config.gated,
            context=self.problem.outputs if config.context == "task" else 1,
        )
        return FeedbackNetwork(vae, config.hidden[-1], self.problem.outputs, front)

    def new_front(self) -> nn.Sequential:
        """Convolutions, the last one without an activation: its outputs are what is replayed."""
        layers, _, _ = trunk(self.problem.input_shape, hidden=(), channels=self.config.channels)
        del layers[f"conv{len(self.config.channels) - 1}_act"]
        for layer in layers.values():
            initialise(layer)
        return nn.Sequential(layers)

    def fix_front(self) -> None:
        """Freeze the convolutions."""
        self.fixed = True
        self.network.front.requires_grad_(False)

    # -- pretraining -----------------------------------------------------------------------------------------------------------

    @property
    def pretraining(self) -> str | None:
        """The data set that `pretrain` is still to be called with; None if there is none."""
        return None if self.fixed else self.config.pretraining

    def pretrain(self, pictures: Tensor, labels: Tensor, scale: float) -> None:
        """Learn the convolutions as a part of a classifier of other pictures, and freeze them.

        Args:
            pictures: ``[N, *input_shape]``, of any type.
            labels: ``[N]``.
            scale: pictures are divided by it.
        """
        config, expected = self.config, self.problem.input_shape
        if tuple(pictures.shape[1:]) != expected or len(pictures) != len(labels) or len(labels) == 0:
            raise InputError(f"pretraining needs pictures of shape {expected} with a label each, got {tuple(pictures.shape)}")
        with self.random.active():
            front = self.network.front
            width = self.network.vae.input_shape[0]
            rest = build_network((width,), int(labels.max()) + 1, hidden=config.hidden)
            classifier = nn.Sequential(front, nn.LeakyReLU(), rest).to(self.device)
            optimizer = torch.optim.Adam(classifier.parameters(), lr=config.learning_rate, fused=True)
            for _ in range(config.pretraining_epochs):
                for rows in torch.randperm(len(labels)).split(PRETRAINING_BATCH):
                    x, y = pictures[rows].to(self.device) / scale, labels[rows].to(self.device)
                    loss = F.cross_entropy(classifier(x.float()), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        self.fix_front()

    # -- replay ----------------------------------------------------------------------------------------------------------------

    def check(self, x: Tensor) -> None:
        """Inputs are what the generator describes, unless convolutions come first; these are pretrained where they should be."""
        if not self.config.channels:
            super().check(x)
        if self.pretraining is not None:
            raise InputError(
                f"the convolutions are to be pretrained on {self.pretraining} first: hvcl run and hvcl.runs.run do it, else call "
                "pretrain(pictures, labels, scale)"
            )

    def remember(self) -> None:
        """A copy of the network, whose convolutions are frozen from now on."""
        self.fix_front()
        super().remember()

    def with_replay(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features, current ones first; their weights; the probabilities of their classes."""
        inputs, weights, condition = super().with_replay(x, y)
        if condition is None or self.replayed is None:
            return inputs, weights, condition
        current = F.one_hot(condition[: len(x)], self.conditions).to(x)
        return inputs, weights, torch.cat([current, self.classes(self.replayed)])

    def classes(self, replayed: Replayed) -> Tensor:
        """The probabilities of the classes ``[B, conditions]`` that replayed examples have by their soft targets."""
        assert self.teacher is not None
        outputs = self.problem.outputs
        seen = self.teacher.vae.prior.examples.view(self.tasks_apart, outputs)
        own = (replayed.condition // outputs).unsqueeze(1)
        task = torch.where(seen[own.squeeze(1)] > 0, own, seen.argmax(0))
        classes = task * outputs + torch.arange(outputs, device=task.device)
        return replayed.targets.new_zeros(len(task), self.conditions).scatter_(1, classes, replayed.targets)

    @torch.no_grad()
    def judge(self, x: Tensor, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of what is generated, features if there are convolutions."""
        hidden = self.network.vae.features(x.to(self.device))
        return self.masked(self.network.head(hidden), task).softmax(1).cpu(), hidden.cpu()

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """Each input as the generator gives it back; behind convolutions, its features."""
        return self.network.vae.reconstruct(self.network.front(x.to(self.device))).cpu()

    # -- state -----------------------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> str:
        """No example; what it knows before the stream."""
        found = super().memory
        return found if self.config.pretraining is None else f"{found} (pretrained on {self.config.pretraining})"

    def state_dict(self) -> State:
        """As that of replay through feedback, and whether the convolutions are frozen."""
        return super().state_dict() | {"fixed": self.fixed}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.fixed = bool(state["fixed"])
        self.network.front.requires_grad_(not self.fixed)
