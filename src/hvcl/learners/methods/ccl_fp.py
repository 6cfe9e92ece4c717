r"""Contrastive continual learning with feature propagation, CCL-FP and CCL-FP+ (Han & Guo, 2021).

Each step takes the batch of the stream and a random one of the memory, examples x_1 ... x_n together. With f(x) the activations
before the head and f*(x) those of the network as it was at the last boundary, features of old are propagated to where the present
ones are near them, and the head learns from both:

    f~_i = (1 - w) f(x_i) + w sum_j A_ij f*(x_j) ,        A_ij = softmax_j( - eta || f(x_i) - f*(x_j) || ) ,

    mean_i CE(head(f~_i), y_i)
      + alpha * mean_i - log softmax_j( - tau || f(x_i) - f*(x_j) || ) at j = i                  (alignment)
      + beta * mean_i mean_{j != i, y_j = y_i} - log softmax_{k != i}( - tau || f(x_i) - f(x_k) || ) at k = j      (contrast).

The alignment holds each feature nearer to its own of old than to the others'; the contrast draws examples of a class together.
With beta = 0 this is CCL-FP, else CCL-FP+. Without a network of old, in the first task, f~ = f and there is no alignment. Answers
are those of head(f(x)): neither memory nor the network of old is needed for them.

The memory is a reservoir of 500 examples by default. On a task-free stream there is never a network of old: then it is experience
replay with the contrast.

The paper's text was not at hand: this follows its abstract and the authors' public code. There, the mean over the examples of a
class counts the example itself as one whose term is 0. The code has no defaults for w, eta, tau, alpha and beta: those here
were chosen on held-out examples of the 8x8 digits, in Domain- and Class-IL. Adam instead of SGD; no augmentation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.generative.generator import frozen, frozen_from, frozen_state
from hvcl.learners.base import State
from hvcl.learners.gradient import Terms
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.replay import ReplayConfig, ReplayLearner
from hvcl.learners.registry import register


@dataclass(frozen=True)
class CCLFPConfig(ReplayConfig):
    """The memory, how features are propagated, and the contrastive losses."""

    propagation: float = 0.1
    """w, share of the features of old in those that the head learns from."""
    attention: float = 1.0
    """eta: the larger, the more are only the nearest features of old propagated."""
    sharpness: float = 3.0
    """tau, what distances are multiplied with in the contrastive losses."""
    alignment: float = 0.1
    """alpha, weight of the loss that holds each example's feature near to its own of old."""
    contrast: float = 0.1
    """beta, weight of the loss that draws examples of a class together; 0 for CCL-FP without it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.propagation <= 1:
            raise InputError(f"propagation must lie in [0, 1], got {self.propagation}")
        if not (self.attention >= 0 and self.sharpness >= 0):
            raise InputError(f"attention and sharpness must be at least 0, got {self.attention} and {self.sharpness}")
        if not (self.alignment >= 0 and self.contrast >= 0):
            raise InputError(f"alignment and contrast must be at least 0, got {self.alignment} and {self.contrast}")


@register("ccl-fp", CCLFPConfig)
class CCLFP(ReplayLearner):
    """Contrastive continual learning with feature propagation: replay whose features stay aligned with those of old."""

    config: CCLFPConfig
    network: nn.Sequential

    def __init__(self, problem: Problem, config: CCLFPConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.previous: nn.Sequential | None = None
        """The network as it was at the last boundary."""

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy on the batch and a batch of the memory, from propagated features, and both contrastive losses."""
        batch, past = Stored(x, y, task), self.replay(y)
        self.reservoir.add(batch)
        if not len(past):
            return super().loss(x, y, task)
        both = batch.followed_by(past)
        features = used = self.network[:-1](both.x)
        contrast = self.contrast(features, both.y)
        loss, terms = self.config.contrast * contrast, {"contrast": contrast}
        if self.previous is not None:
            with torch.no_grad():
                old = self.previous[:-1](both.x)
            distances = torch.cdist(features, old)
            used = self.propagated(features, old, distances)
            terms["alignment"] = self.alignment(distances)
            loss = loss + self.config.alignment * terms["alignment"]
        loss = loss + F.cross_entropy(self.masked(self.network[-1](used), both.task), both.y)
        return {"loss": loss, **terms}

    def propagated(self, features: Tensor, old: Tensor, distances: Tensor) -> Tensor:
        """f~: the features, and those of old that are near each."""
        near = (-self.config.attention * distances).softmax(1)
        return torch.lerp(features, near @ old, self.config.propagation)

    def alignment(self, distances: Tensor) -> Tensor:
        """How little each feature is told by its own of old, from the distances ``[n, n]`` between them."""
        return -(-self.config.sharpness * distances).log_softmax(1).diag().mean()

    def contrast(self, features: Tensor, y: Tensor) -> Tensor:
        """How little each feature is told by the others of its class; one that has no others does not count."""
        itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
        nearness = -self.config.sharpness * torch.cdist(features, features)
        told = nearness.masked_fill(itself, -torch.inf).log_softmax(1)
        others = (y[:, None] == y) & ~itself
        return -(told.masked_fill(~others, 0.0).sum(1) / others.sum(1).clamp_min(1)).mean()

    def end_task(self) -> None:
        """The features so far are those of old from now on."""
        super().end_task()
        self.previous = frozen(self.network)

    def state_dict(self) -> State:
        """As with any memory, and the network of old."""
        return super().state_dict() | {"previous": frozen_state(self.previous)}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.previous = frozen_from(self.network, state["previous"])
