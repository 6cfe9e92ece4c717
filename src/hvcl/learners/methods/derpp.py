r"""Dark experience replay ++ (Buzzega et al., 2020).

The reservoir M keeps, with every example, the logits z that the network gave it when it came. With h the network's logits now,
and (x', z') and (x'', y'') two batches drawn from M independently, each step minimises

    CE(y, h(x)) + alpha * || h(x') - z' ||^2 + beta * CE(y'', h(x'')):

the network is held to what it once answered, and to the labels. No boundaries needed.

|| . ||^2 is the mean over examples and outputs, as in the authors' code, which the published alpha belong to. In Task-IL it is
taken over the outputs of each example's own head, since the others are not trained.

Deviates from the paper: Adam instead of SGD, no augmentation of the memory's examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.learners.gradient import Terms
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.replay import ReplayConfig, ReplayLearner
from hvcl.learners.registry import register


@dataclass(frozen=True)
class DERppConfig(ReplayConfig):
    """The two weights of the memory; the defaults are those published for split CIFAR-10 with 500 examples."""

    alpha: float = 0.2
    """Weight of the squared distance to the logits of old."""
    beta: float = 0.5
    """Weight of the cross-entropy on the memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or self.beta < 0:
            raise InputError(f"alpha and beta must be at least 0, got {self.alpha} and {self.beta}")


@register("derpp", DERppConfig)
class DERpp(ReplayLearner):
    """Dark experience replay ++: a reservoir of past examples, their labels and the logits that they once had."""

    keeps_logits = True
    config: DERppConfig

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy on the batch, and both terms of the memory."""
        logits = self.logits(x, task)
        loss = F.cross_entropy(logits, y)
        terms: Terms = {}
        if len(self.reservoir):
            distance = self.logit_distance(self.replay(y))
            past = self.replay(y)
            replay = F.cross_entropy(self.logits(past.x, past.task), past.y)
            loss = loss + self.config.alpha * distance + self.config.beta * replay
            terms = {"logit_distance": distance, "replay": replay}
        self.reservoir.add(Stored(x, y, task, logits.detach()))
        return {"loss": loss, **terms}

    def logit_distance(self, past: Stored) -> Tensor:
        """Mean square of what the logits have moved since, over the outputs of each example's head."""
        assert past.logits is not None
        head = past.logits.isfinite()
        return F.mse_loss(self.logits(past.x, past.task)[head], past.logits[head])
