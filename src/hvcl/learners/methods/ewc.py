r"""Elastic weight consolidation (Kirkpatrick et al., 2017).

After task t the diagonal of the Fisher information is measured at the weights w_t on the task's examples,

    F_ti = 1/N_t sum_n E_{y ~ p(y|x_n, w_t)} [ (d log p(y|x_n, w_t) / d w_i)^2 ] ,

and from then on every loss pays

    strength / 2 * sum_t sum_i F_ti (w_i - w_ti)^2 .

One penalty per task, as in the paper; they are stored as the one quadratic that they add up to, which has the same value and
gradient. `online=True` is the variant of Schwarz et al. (2018): one running Fisher F <- decay * F + F_t around the latest
weights.

The expectation over labels is exact (every class, weighted by its probability), or taken with one label drawn from the model for
each example, or replaced by the true label ("empirical" Fisher, which is not the Fisher information).

Deviates from the papers: Schwarz et al. decay the Fisher also within the penalty; with the strength at hand that is a matter of
units, and here the running Fisher enters as it is. The papers' strengths belong to their own networks: tune it.

Never consolidates on a task-free stream: then it is naive training.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners.curvature import FisherLabels, add_to, label_gradients, watching
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.task_data import chunks
from hvcl.learners.quadratic import MeasuredLearner, QuadraticConfig
from hvcl.learners.registry import register


@dataclass(frozen=True)
class EWCConfig(QuadraticConfig):
    """Elastic weight consolidation."""

    strength: float = 5_000.0
    """Weight of the penalty: too small forgets, too large cannot learn."""
    online: bool = False
    """One running Fisher around the latest weights instead of one penalty per task."""
    decay: float = 1.0
    """Online: what the old Fisher is multiplied with at a boundary."""
    fisher: FisherLabels = "exact"
    """Labels of the Fisher: exact expectation over the model's classes, one sampled, or the true one (empirical)."""
    fisher_examples: int | None = None
    """Examples of a task that its Fisher is measured on; none: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay <= 1:
            raise InputError(f"decay must lie between 0 and 1, got {self.decay}")


@register("ewc", EWCConfig)
class EWC(MeasuredLearner):
    """Elastic weight consolidation: weights that the Fisher information calls important are held in place."""

    config: EWCConfig
    factor = 0.5

    def __init__(self, problem: Problem, config: EWCConfig, seed: int) -> None:
        super().__init__(problem, config, seed, config.fisher_examples)

    def importance(self, examples: Stored) -> dict[str, Tensor]:
        """The diagonal of the Fisher information, a mean over examples."""
        fisher: dict[str, Tensor] = {}
        for part in chunks(examples):
            with watching(self.network) as seen:
                logits = self.logits(part.x.to(self.device), part.task)
                for gradients, weights in label_gradients(logits, part.y.to(self.device), self.config.fisher, seen):
                    for layer, gradient in zip(seen, gradients, strict=True):
                        add_to(fisher, layer.powers(gradient, 2, weights))
        return {name: total / len(examples) for name, total in fisher.items()}

    def anchor(self, importance: dict[str, Tensor]) -> None:
        """A penalty more, or one that moves."""
        if self.config.online:
            self.penalty.move(importance, self.network, self.config.decay)
        else:
            self.penalty.add(importance, self.network)
