"""What a learner is shown before the stream, if its settings ask for it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from hvcl.learners.base import Learner
from hvcl.streams.datasets import load


@runtime_checkable
class Pretrains(Protocol):
    """A learner that can be shown another data set before the stream."""

    @property
    def pretraining(self) -> str | None:
        """Which data set it is still to be shown; None: it needs none, or has seen it."""
        ...

    def pretrain(self, pictures: Tensor, labels: Tensor, scale: float) -> None:
        """Learn from pictures ``[N, ...]``, which are to be divided by `scale`, and their labels ``[N]``."""
        ...


def pretrain(learner: Learner) -> None:
    """Show a learner the training examples of the data set that it asks for, if any; missing files are fetched."""
    if isinstance(learner, Pretrains) and learner.pretraining is not None:
        data = load(learner.pretraining)
        learner.pretrain(data.train_x, data.train_y, data.scale)
