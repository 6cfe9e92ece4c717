r"""Gradient episodic memory (Lopez-Paz & Ranzato, 2017).

M_k are the last examples of task k, and g_k is the gradient of the mean loss on M_k. The step may not raise the loss of any
earlier task to first order. If the gradient g on the stream's batch violates that, it is replaced by the closest one that does
not:

    g~ = argmin_z 1/2 || g - z ||^2    subject to    z . g_k >= 0  for all k < t.

In the dual there is one variable for each earlier task, not for each weight. With G the matrix whose rows are the g_k,

    g~ = g + G^T v*,    v* = argmin_{v >= 0} 1/2 v^T G G^T v + g^T G^T v = argmin_{v >= 0} || G^T v + g ||^2,

a non-negative least-squares problem. The QR decomposition of [G^T, -g] makes it one of as many rows as columns, and an active-set
method solves it exactly.

With a margin gamma, v >= gamma is required in place of v >= 0, which favours steps that help the earlier tasks. Since
G^T v + g = G^T (v - gamma) + (g + gamma sum_k g_k), this is the projection of g + gamma sum_k g_k.

The memory of fixed size is shared equally by the tasks so far, so that the shares shrink with every new task (the paper's way
where the number of tasks is unknown). On a task-free stream each segment of `segment_steps` batches takes the place of a task.

Deviates from the paper: the margin is that of the authors' code (the text adds gamma to v*, which can violate the constraints).
Adam instead of SGD: the constraints hold for the gradient that Adam is given; its step, which remembers earlier gradients and
scales each weight, may violate them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.learners.memory.episodes import EpisodicConfig, EpisodicLearner
from hvcl.learners.projection import gradient_of, held_gradient, hold_gradient
from hvcl.learners.registry import register


@dataclass(frozen=True)
class GEMConfig(EpisodicConfig):
    """The memory of each task and the margin."""

    margin: float = 0.5
    """gamma, the least weight of every earlier task's gradient where the step has to be corrected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin < 0:
            raise InputError(f"margin must be at least 0, got {self.margin}")


@register("gem", GEMConfig)
class GEM(EpisodicLearner):
    """Gradient episodic memory: no step against the gradient of any earlier task's examples."""

    config: GEMConfig

    def correct_gradient(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        """Project the gradient if it points against that of an earlier task."""
        earlier = [
            gradient_of(F.cross_entropy(self.logits(past.x, past.task), past.y), self.network) for past in self.episodes.finished
        ]
        if earlier:
            hold_gradient(self.network, project(held_gradient(self.network), torch.stack(earlier), self.config.margin))


def project(gradient: Tensor, earlier: Tensor, margin: float = 0.0) -> Tensor:
    """The vector closest to `gradient` that points against no row of `earlier`; with a margin, towards them all."""
    if bool((earlier @ gradient >= 0).all()):
        return gradient
    target, rows = (gradient + margin * earlier.sum(0)).double(), earlier.double()
    triangle = torch.linalg.qr(torch.cat([rows, -target[None]]).T, mode="r").R
    weights = _nonnegative_least_squares(triangle[:, :-1], triangle[:, -1])
    return (target + weights @ rows).to(gradient.dtype)


def _nonnegative_least_squares(matrix: Tensor, target: Tensor) -> Tensor:
    """The v >= 0 that minimises || matrix v - target ||."""
    from sklearn.linear_model import LinearRegression  # here, because importing scikit-learn takes a second

    fitted = LinearRegression(positive=True, fit_intercept=False).fit(matrix.cpu().numpy(), target.cpu().numpy())
    return torch.from_numpy(fitted.coef_).to(matrix)
