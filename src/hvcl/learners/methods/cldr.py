r"""Continual learning with dual regularisations (Han & Guo, 2021).

The representation is regularised as well as the outputs, both on the batch of the stream (x, y) and on one of the memory of past
tasks (x', y'), which is as large. With f(x) the activations before the head, W its weights, h(f) its outputs, and h* those of the
network as it was at the last boundary, every loss after the first task is

    CE(x, y) + CE(x', y') + alpha ( KD(x) + KD(x') ) + beta MM + gamma FS .

Outputs. They are kept up with the temperature T = 2, on new inputs as on old,

    KD(x) = mean_x - sum_k softmax(h*/T)_k log softmax(h/T)_k .

Representation. It is learned between the tasks as well, at mixtures of the features of pairs of examples (MM), and is to rest on
features that say the same of the classes in either (FS): the others pay for the weights by which they are heard,

    MM = lambda CE(h(f~), y) + (1 - lambda) CE(h(f~), y') ,    f~ = lambda f(x) + (1 - lambda) f(x') ,    lambda ~ Beta(a, a) ,
    FS = sum_j (1 - rho_j rho'_j) | W_j |_1 .

rho_j is the correlation of softmax_k(f_j(x) W_jk), what the head would say by feature j alone, with the one-hot labels over the
examples and outputs of the batch, and rho'_j that of the memory's. FS is differentiated in the features, too.

The memory holds the last examples of each task, in equal shares of 500 by default. The method is published for Domain-IL. Here,
in Class-IL old outputs are those of all labels seen before the boundary; in Task-IL they are the old heads, each with its own
softmax, and every label is compared in the head of its task, those of a mixture in both. On a task-free stream each segment of
`segment_steps` batches takes the place of a task. The defaults are those published for split MNIST with 500 examples.

The paper's text was not at hand: this follows its abstract and the authors' public code, from which it deviates in FS. There,
softmax is over features instead of outputs (its dimension is left to a default), and rho' compares the memory's labels with the
batch's answers (a name occurs twice): both look unintended. There, too, batches of the memory hold as many examples of each task
(here on average), and examples are repeated where it has fewer than the batch (here for MM only).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.learners.gradient import Terms
from hvcl.learners.memory.episodes import EpisodicConfig, EpisodicLearner
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.replay import ReplayConfig
from hvcl.learners.registry import register
from hvcl.learners.taught import TaughtConfig, TaughtLearner

TINY = 1e-12
"""Added to a product of squares, so that a feature which says nothing is correlated with nothing."""


@dataclass(frozen=True)
class CLDRConfig(EpisodicConfig, ReplayConfig, TaughtConfig):
    """The memory and the weights of the regularisers."""

    distillation: float = 2.0
    """alpha, weight of the distance to the outputs of old."""
    mixing: float = 0.1
    """beta, weight of the cross-entropy at mixed features."""
    concentration: float = 3.0
    """a of the Beta distribution that features are mixed by: the larger, the more evenly."""
    selection: float = 0.01
    """gamma, weight of the penalty on features that say different things of the classes now and in the past."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.distillation >= 0 and self.mixing >= 0 and self.selection >= 0):
            given = f"{self.distillation}, {self.mixing} and {self.selection}"
            raise InputError(f"distillation, mixing and selection must be at least 0, got {given}")
        if not self.concentration > 0:
            raise InputError(f"concentration must be positive, got {self.concentration}")


@register("cldr", CLDRConfig)
class CLDR(EpisodicLearner, TaughtLearner):
    """Continual learning with dual regularisations: kept answers, and features that mean the same in old tasks and in new."""

    config: CLDRConfig
    network: nn.Sequential

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropies and all regularisers; in the first task, cross-entropy."""
        past = self.episodes.draw(self.config.replay_batch or len(y))
        if self.teacher is None or not len(past):
            return super().loss(x, y, task)
        new, config = Stored(x, y, task), self.config
        f_new, f_past = self.network[:-1](new.followed_by(past).x).split([len(new), len(past)])
        with torch.no_grad():
            kept_new, kept_past = self.teacher(new.x), self.teacher(past.x)
        head = self.network[-1]
        loss = self.classified(f_new, new) + self.classified(f_past, past)
        distillation = self.distillation(head(f_new), kept_new) + self.distillation(head(f_past), kept_past)
        mixing = self.mixing(f_new, new, f_past, past)
        selection = self.selection(f_new, new, f_past, past)
        loss = loss + config.distillation * distillation + config.mixing * mixing + config.selection * selection
        return {"loss": loss, "distillation": distillation, "mixing": mixing, "selection": selection}

    def classified(self, features: Tensor, labels: Stored) -> Tensor:
        """CE: mean cross-entropy at some features, each in the head of its label."""
        return F.cross_entropy(self.masked(self.network[-1](features), labels.task), labels.y)

    def mixing(self, f_new: Tensor, new: Stored, f_past: Tensor, past: Stored) -> Tensor:
        """MM: cross-entropy at features between those of the batch and those of the memory, with the labels of both."""
        concentration = torch.tensor(self.config.concentration)
        share = torch.distributions.Beta(concentration, concentration).sample().item()
        partners = torch.arange(len(new), device=f_new.device) % len(past)
        features = share * f_new + (1 - share) * f_past[partners]
        return share * self.classified(features, new) + (1 - share) * self.classified(features, past.rows(partners))

    def selection(self, f_new: Tensor, new: Stored, f_past: Tensor, past: Stored) -> Tensor:
        """FS: the head's weights of each feature, times how little what it says agrees with the labels of both."""
        agreement = self.agreement(f_new, new) * self.agreement(f_past, past)
        return ((1 - agreement) * self._weight.abs().sum(0)).sum()

    def agreement(self, features: Tensor, labels: Stored) -> Tensor:
        """rho ``[features]``: how what each feature alone would answer is correlated with the labels, in each example's head."""
        alone = features[:, None] * self._weight
        truth = F.one_hot(labels.y, self.problem.outputs).to(alone)
        heads = self.masked(torch.ones_like(truth), labels.task).isfinite()
        mean = len(labels) / heads.sum()  # of answers as of labels, since both sum to 1 over the outputs
        if not heads.all():
            alone = alone.masked_fill(~heads[:, :, None], -torch.inf)
        spread, truth = alone.softmax(1) - mean, truth - mean
        if not heads.all():
            spread, truth = spread * heads[:, :, None], truth * heads
        lengths = spread.square().sum((0, 1)) * truth.square().sum()
        return torch.einsum("nkd,nk->d", spread, truth) / (lengths + TINY).sqrt()

    @property
    def _weight(self) -> Tensor:
        """W ``[outputs, features]``: the head's weights."""
        head = self.network[-1]
        assert isinstance(head, nn.Linear)
        return head.weight
