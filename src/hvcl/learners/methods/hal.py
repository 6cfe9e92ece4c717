r"""Hindsight anchor learning (Chaudhry et al., 2021).

Experience replay that also keeps the answers at a few learned points, the anchors e, one for each class of each past task. With B
a batch of the stream, B_M one of the memory of past tasks, l the mean cross-entropy and f the logits, each step looks ahead,

    theta~ = theta - alpha grad l(theta; B u B_M),

and minimises what it would cost together with what it would change at the anchors,

    l(theta; B u B_M) + lambda * mean_e || f_theta(e) - f_theta~(e) ||^2,

differentiated through theta~ as well. When a task is over, its anchors are learned: points of its classes that would be forgotten
most. In hindsight, forgetting is what happens when the network theta is tuned to the memory of the tasks before, giving theta_M.
For a class y, starting from the mean of its stored examples, e climbs

    l(theta_M; e, y) - l(theta; e, y) - gamma || phi(e) - phi_y ||^2 ,

with phi the activations before the head and phi_y <- beta phi_y + (1 - beta) mean_{x in B of class y} phi(x) their running mean
over the task. The first task has no tasks before it: one stored example of each class is its anchor.

This follows the paper's objectives, and the authors' code where the paper leaves things open: the running mean is one for each
class, tuning takes fifty steps on batches of ten, anchors climb by a hundred steps of Adam, the first task's are examples.
In Task-IL changes at an anchor are those in the head of its task. On a task-free stream each segment of `segment_steps` batches
takes the place of a task.

Deviates from the paper: Adam instead of SGD for the network (the look-ahead and the tuning are plain gradient steps of their own
size alpha); the memory holds the last examples of each task in equal shares instead of a ring for each class; dropout rests where
answers are compared. From the authors' code: || . ||^2 of the embedding as in the paper's text, where the code takes the cosine,
and anchors are not rescaled to [0, 1], since inputs need not lie there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like
from hvcl.learners.base import State
from hvcl.learners.gradient import Terms
from hvcl.learners.memory.episodes import EpisodicConfig, EpisodicLearner
from hvcl.learners.memory.examples import Stored, from_state, room_for
from hvcl.learners.memory.replay import ReplayConfig
from hvcl.learners.registry import register

Weights = dict[str, Tensor]
"""A network's parameters by name."""


@dataclass(frozen=True)
class HALConfig(EpisodicConfig, ReplayConfig):
    """Replay, anchoring, and how anchors are learned; the defaults are those published for permuted MNIST."""

    strength: float = 0.1
    """lambda, weight of the changes at the anchors."""
    lookahead_rate: float = 0.1
    """alpha, size of the gradient step that is looked ahead, and of those that tune the network to the memory."""
    embedding: float = 0.1
    """gamma, weight of an anchor's distance to its class in the embedding."""
    decay: float = 0.5
    """beta, what the running mean of the embedding keeps of itself at every step."""
    tuning_steps: int = 50
    """Gradient steps that tune the network to the memory, for hindsight."""
    tuning_batch: int = 10
    """Examples of the memory in each of them."""
    anchor_steps: int = 100
    """Steps in which anchors are learned."""
    anchor_rate: float = 0.001
    """Size of these steps (of Adam)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength < 0 or self.embedding < 0:
            raise InputError(f"strength and embedding must be at least 0, got {self.strength} and {self.embedding}")
        if not (self.lookahead_rate > 0 and self.anchor_rate > 0):
            raise InputError(f"lookahead_rate and anchor_rate must be positive, got {self.lookahead_rate} and {self.anchor_rate}")
        if not 0 <= self.decay < 1:
            raise InputError(f"decay must lie in [0, 1), got {self.decay}")
        if self.tuning_steps < 0 or self.anchor_steps < 0 or self.tuning_batch < 1:
            raise InputError("tuning_steps and anchor_steps must be at least 0, tuning_batch at least 1")


@register("hal", HALConfig)
class HAL(EpisodicLearner):
    """Hindsight anchor learning: replay that keeps its answers at learned points, those that would be forgotten most."""

    config: HALConfig

    def __init__(self, problem: Problem, config: HALConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.anchors = room_for(0, problem, self.device)
        with torch.no_grad(), self._resting_dropout():
            width = self.embed(torch.zeros(1, *problem.input_shape, device=self.device)).shape[1]
        self.class_means = torch.zeros(problem.outputs, width, device=self.device)

    # -- learning --------------------------------------------------------------------------------------------------------------

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy on the batch and a batch of the memory, and what their step would change at the anchors."""
        self._follow(x, y)
        both = Stored(x, y, task).followed_by(self.episodes.draw(self.config.replay_batch or len(y)))
        cost = F.cross_entropy(self.logits(both.x, both.task), both.y)
        if not len(self.anchors):
            return {"loss": cost}
        change = self.change_at_anchors(cost)
        return {"loss": cost + self.config.strength * change, "anchor_change": change}

    def change_at_anchors(self, cost: Tensor) -> Tensor:
        """Mean squared change of the logits at the anchors if the network took one gradient step on `cost`."""
        weights = dict(self.network.named_parameters())
        slopes = torch.autograd.grad(cost, list(weights.values()), create_graph=True)
        ahead = {name: w - self.config.lookahead_rate * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
        with self._resting_dropout():
            change: Tensor = self.network(self.anchors.x) - functional_call(self.network, ahead, (self.anchors.x,))
        return change.masked_fill(~self._head(self.anchors), 0.0).square().sum(1).mean()

    def _follow(self, x: Tensor, y: Tensor) -> None:
        """Update the running mean embedding of each class in the batch."""
        with torch.no_grad(), self._resting_dropout():
            embedded = self.embed(x)
        self.class_means = self.class_means.clone()  # the old ones stay as they are: the step may fail
        for label in y.unique().tolist():
            self.class_means[label].lerp_(embedded[y == label].mean(0), 1 - self.config.decay)

    # -- when a task is over ---------------------------------------------------------------------------------------------------

    def end_task(self) -> None:
        """Learn anchors for the task, and begin another."""
        if len(self.episodes.current) and self.config.strength:
            self.anchors = self.anchors.followed_by(self.new_anchors())
        self.class_means.zero_()
        super().end_task()

    def new_anchors(self) -> Stored:
        """An anchor for each class of the current task."""
        kept = self.episodes.current
        latest = torch.tensor([int((kept.y == label).nonzero()[-1]) for label in kept.y.unique()])
        anchors = kept.rows(latest)
        if not self.episodes.finished:
            return anchors
        for row, label in enumerate(anchors.y):
            anchors.x[row] = kept.x[kept.y == label].mean(0)
        with self._resting_dropout():
            self._climb(anchors, self.tuned())
        return anchors

    def _climb(self, anchors: Stored, tuned: Weights) -> None:
        """Move the anchors to where the objective is high."""
        points = anchors.x.requires_grad_()
        optimizer = torch.optim.Adam([points], lr=self.config.anchor_rate, maximize=True)
        for _ in range(self.config.anchor_steps):
            (points.grad,) = torch.autograd.grad(self.anchor_objective(anchors, tuned), points)
            optimizer.step()
        points.requires_grad_(False)

    def anchor_objective(self, anchors: Stored, tuned: Weights) -> Tensor:
        """How much of the anchors the tuned network would forget, less their distance to their classes, summed over anchors."""
        outside = ~self._head(anchors)
        now = self.network(anchors.x).masked_fill(outside, -torch.inf)
        later = functional_call(self.network, tuned, (anchors.x,)).masked_fill(outside, -torch.inf)
        forgetting = F.cross_entropy(later, anchors.y, reduction="sum") - F.cross_entropy(now, anchors.y, reduction="sum")
        distance = (self.embed(anchors.x) - self.class_means[anchors.y]).square().sum()
        return forgetting - self.config.embedding * distance

    def tuned(self) -> Weights:
        """The weights after tuning to the memory of earlier tasks."""
        weights = {name: w.detach().clone().requires_grad_() for name, w in self.network.named_parameters()}
        for _ in range(self.config.tuning_steps):
            past = self.episodes.draw(self.config.tuning_batch)
            logits = functional_call(self.network, weights, (past.x,)).masked_fill(~self._head(past), -torch.inf)
            slopes = torch.autograd.grad(F.cross_entropy(logits, past.y), list(weights.values()))
            with torch.no_grad():
                for w, slope in zip(weights.values(), slopes, strict=True):
                    w.sub_(self.config.lookahead_rate * slope)
        return {name: w.detach() for name, w in weights.items()}

    # -- parts -----------------------------------------------------------------------------------------------------------------

    def embed(self, x: Tensor) -> Tensor:
        """The activations before the head."""
        for layer in list(self.network.children())[:-1]:
            x = layer(x)
        return x

    def _head(self, examples: Stored) -> Tensor:
        """Which outputs belong to the head of each example's task ``[n, outputs]``: outside Task-IL, all."""
        if self._heads is None or examples.task is None:
            return torch.ones(len(examples), self.problem.outputs, dtype=torch.bool, device=self.device)
        return self._heads[examples.task]

    @contextmanager
    def _resting_dropout(self) -> Iterator[None]:
        self.network.eval()
        try:
            yield
        finally:
            self.network.train()

    @property
    def memory(self) -> str:
        """The size of the memory, and the anchors that come on top."""
        anchors = self.config.memory and self.config.strength
        return super().memory + (" and one anchor for each class of each task" if anchors else "")

    def state_dict(self) -> State:
        """As with any episodic memory, the anchors, and the running means."""
        return super().state_dict() | {"anchors": self.anchors.state(), "class_means": self.class_means}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.anchors = from_state(state["anchors"], self.anchors)
        self.class_means = tensor_like(state["class_means"], self.class_means, "class_means")
