r"""Memory-aware synapses (Aljundi et al., 2018).

A weight is important if the network's outputs f(x) (the logits) are sensitive to it. After a task, on its examples and without
their labels,

    Omega_i += 1/N sum_n | d ||f(x_n)||_2^2 / d w_i | ,

and from then on every loss pays strength * sum_i Omega_i (w_i - w~_i)^2 with w~ the weights at the last boundary. In Task-IL f is
the head of the example's task.

This is the paper's global variant, from the function that was learned, with its strength. Deviates from the paper: Adam, for SGD.

Never consolidates on a task-free stream: then it is naive training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.core.problem import Problem
from hvcl.learners.curvature import add_to, watching
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.task_data import chunks
from hvcl.learners.quadratic import MeasuredLearner, QuadraticConfig
from hvcl.learners.registry import register


@dataclass(frozen=True)
class MASConfig(QuadraticConfig):
    """Memory-aware synapses."""

    importance_examples: int | None = None
    """Examples of a task that the importances are measured on; none: all."""


@register("mas", MASConfig)
class MAS(MeasuredLearner):
    """Memory-aware synapses: weights that the outputs are sensitive to are held in place."""

    config: MASConfig

    def __init__(self, problem: Problem, config: MASConfig, seed: int) -> None:
        super().__init__(problem, config, seed, config.importance_examples)

    def importance(self, examples: Stored) -> dict[str, Tensor]:
        """Mean magnitude of the gradient of the squared norm of the outputs."""
        sensitivity: dict[str, Tensor] = {}
        for part in chunks(examples):
            with watching(self.network) as seen:
                logits = self.logits(part.x.to(self.device), part.task)
                outputs = logits.masked_fill(logits.isneginf(), 0.0)  # outside the head of the task
                gradients = torch.autograd.grad(outputs.square().sum(), [layer.outputs for layer in seen])
            for layer, gradient in zip(seen, gradients, strict=True):
                add_to(sensitivity, layer.powers(gradient, 1, None))
        return {name: total / len(examples) for name, total in sensitivity.items()}
