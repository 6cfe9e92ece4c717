r"""Experience replay with reservoir sampling (Riemer et al., 2019; Chaudhry et al., 2019).

With B a batch of the stream and B_M a random batch from the memory M, each step minimises the mean cross-entropy over both,

    1 / |B u B_M| * sum_{(x, y) in B u B_M} - log p(y|x),

and then M takes in B by reservoir sampling, so that at any time it is a uniform sample of all that was seen. No boundaries are
needed.

Deviates from the papers: Adam instead of SGD, and the memory batch is drawn without repetition. In several epochs an example is
offered to the reservoir as often as it comes (the papers take one pass).
"""

from __future__ import annotations

from torch import Tensor

from hvcl.learners.gradient import Terms
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.replay import ReplayConfig, ReplayLearner
from hvcl.learners.registry import register


@register("er", ReplayConfig)
class ER(ReplayLearner):
    """Experience replay: every step also trains on a batch from a reservoir of past examples."""

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy on the batch and a batch of the memory, all examples with the same weight."""
        batch = Stored(x, y, task)
        both = batch.followed_by(self.replay(y))
        self.reservoir.add(batch)
        return super().loss(both.x, both.y, both.task)
