r"""Balanced continual learning (Raghavan & Balaprakash, 2021).

Dynamic programming over the tasks makes learning a game of two. With B a batch of the stream, B_P one of the memory of past
tasks, and J(x; theta) the mean cross-entropy on B u B_P, whose inputs are x, the weights theta pay

    H = beta J(x; theta)                                      the cost of running
        + J(x; theta)                                         the cost to go, and what it changes by
        + [ J(x + dx; theta) - J(x; theta) ]                  if inputs shift: a lack of generalisation
        + [ J(x; theta + dtheta) - J(x; theta) ] .            if weights move: less forgetting

Player 1 shifts each input x_i, of D numbers, to make H as large as it can, and player 2 moves the weights to make it small:

    dx_i = epsilon sqrt(D) g_i / || g_i || ,    g = grad_x J(x; theta) ,        dtheta = - alpha grad_theta J(x; theta) ,

so that the numbers of an input change by epsilon in the root mean square. With both moves made and held, theta takes a step down
H. The first task has no past and is learned by cross-entropy alone.

The memory holds the last examples of each task, in equal shares of 500 by default. (The published figures are with 16,000, by the
authors' scripts.) On a task-free stream each segment of `segment_steps` batches takes the place of a task.

The paper's text was not at hand: this follows its abstract and the authors' public code, and deviates from the latter as follows.
There, J(x; theta + dtheta) is a constant, so that player 2's move has no effect and the gradients of J cancel; here it moves with
theta, as its place in H asks. There, the running cost is that of a batch of the stream with as many stored examples mixed in, and
J that of 128 examples of the memory and the batch; here both are of B u B_P. There, slopes are divided by their norm over the
channels of a pixel, which leaves the sign in grey pictures; here by that of the whole input. There, dtheta are five steps of
0.001; here it is one of 0.005, the same to first order (in either, dx is one step). There, theta takes three steps on every batch
of MNIST; here one, like all methods, and Adam's instead of SGD's. The defaults are those for MNIST.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.learners.gradient import Terms
from hvcl.learners.memory.episodes import EpisodicConfig, EpisodicLearner
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.replay import ReplayConfig
from hvcl.learners.registry import register

Weights = dict[str, Tensor]
"""A network's parameters by name."""


@dataclass(frozen=True)
class BCLConfig(EpisodicConfig, ReplayConfig):
    """The memory, and the moves of both players."""

    running: float = 0.99
    """beta, weight of the running cost."""
    shift: float = 0.1
    """epsilon, player 1: what the numbers of an input change by, in the root mean square."""
    move: float = 0.005
    """alpha, player 2: size of the gradient step that the weights are moved by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.running >= 0 and self.shift >= 0 and self.move >= 0):
            raise InputError(f"running, shift and move must be at least 0, got {self.running}, {self.shift} and {self.move}")


@register("bcl", BCLConfig)
class BCL(EpisodicLearner):
    """Balanced continual learning: a game in which inputs shift against generalisation and weights move against forgetting."""

    config: BCLConfig

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """H after both players' moves; in the first task, cross-entropy."""
        past = self.episodes.draw(self.config.replay_batch or len(y))
        if not len(past):
            return super().loss(x, y, task)
        both = Stored(x, y, task).followed_by(past)
        cost = self.cost(both, both.x.requires_grad_())
        shifted, moved = self.moves(both, cost)
        generalisation = self.cost(both, shifted) - cost
        forgetting = self.cost(both, both.x.detach(), moved) - cost
        loss = (1 + self.config.running) * cost + generalisation + forgetting
        return {"loss": loss, "generalisation": generalisation, "forgetting": forgetting}

    def cost(self, both: Stored, x: Tensor, weights: Weights | None = None) -> Tensor:
        """J: the mean cross-entropy on examples with the inputs `x`, of the network with its weights or others."""
        outputs = self.network(x) if weights is None else functional_call(self.network, weights, (x,))
        return F.cross_entropy(self.masked(outputs, both.task), both.y)

    def moves(self, both: Stored, cost: Tensor) -> tuple[Tensor, Weights]:
        """x + dx and theta + dtheta: the moves are constants, so that the second moves with the weights."""
        weights = dict(self.network.named_parameters())
        slope, *slopes = torch.autograd.grad(cost, [both.x, *weights.values()], retain_graph=True)
        length = self.config.shift * math.sqrt(slope[0].numel())
        shifted = both.x.detach() + length * F.normalize(slope.flatten(1)).view_as(slope)
        return shifted, {name: w - self.config.move * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
