r"""Natural continual learning (Kao, Jensen, van de Ven, Bernacchia & Hennequin, 2021).

Online Laplace: after task t-1 the posterior of the weights is N(mu_{t-1}, Lambda_{t-1}^-1), and task t descends

    l_t(w) + strength / 2 (w - mu_{t-1})^T Lambda_{t-1} (w - mu_{t-1})

with l_t the mean cross-entropy, in the metric of the prior: gradients are multiplied by its inverse precision,

    w <- w - learning_rate / n * Lambda_{t-1}^-1 ( grad l_t(w) + strength * Lambda_{t-1} (w - mu_{t-1}) ) .

Directions that earlier tasks determine are left almost alone from the first step on, not only pulled back. Before the first task
mu_0 = 0 and Lambda_0 = I / n with n the number of examples that the prior is worth, so that the first task is learned by SGD with
a small weight decay. Lambda is a Kronecker product A x G for every layer (A: its inputs with a constant 1 for the bias, G: the
gradients of its outputs); at a boundary it grows by the task's Fisher information, K-FAC (A_t x G_t), as

    A <- A + A_t / p,   G <- G + p G_t,   p^2 = tr(G) tr(A_t) / (tr(G_t) tr(A)) .

The momentum of SGD is applied to the multiplied gradient, which is the same as long as Lambda is, and starts anew at a boundary.
For the inverse, a damping * I in both factors is added in the same way as A_t and G_t are. A convolution is a dense layer on
patches: A_t sums over the places of an example and G_t averages (Grosse & Martens, 2016).

Deviates from the paper: the sum of Kronecker products is the trace-matched one of the authors' code for feedforward networks, not
the one of least divergence; convolutions are not in the paper.

Never consolidates on a task-free stream: then it is SGD with momentum and a small weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensors_like
from hvcl.learners.base import State
from hvcl.learners.curvature import FisherLabels, Seen, label_gradients, watching
from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.task_data import TaskData, chunks
from hvcl.learners.registry import register


@dataclass(frozen=True)
class NCLConfig(GradientConfig):
    """Natural continual learning."""

    learning_rate: float = 0.02
    """Step size of SGD."""
    momentum: float = 0.9
    """Momentum of SGD."""
    strength: float = 1.0
    """Weight of the pull towards the weights of the last boundary; 1 is the posterior's own."""
    prior_examples: int | None = None
    """n, the inverse strength of the first prior; none: the number of the first task's examples (10,000 if not known)."""
    damping: float = 1e-6
    """Added to both Kronecker factors before they are inverted."""
    fisher: FisherLabels = "exact"
    """Labels of the Fisher: exact expectation over the model's classes, one sampled, or the true one (empirical)."""
    fisher_examples: int | None = None
    """Examples of a task that its Fisher is measured on; none: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must lie in [0, 1), got {self.momentum}")
        if not self.strength >= 0 or not self.damping >= 0:
            raise InputError(f"strength and damping must be at least 0, got {self.strength} and {self.damping}")
        if self.prior_examples is not None and self.prior_examples < 1:
            raise InputError(f"prior_examples must be at least 1, got {self.prior_examples}")


@dataclass
class Precision:
    """A Gaussian of a layer's weights ``[outputs, inputs + 1]`` with precision A x G around a mean."""

    inputs: Tensor
    """A."""
    outputs: Tensor
    """G."""
    mean: Tensor
    inverse_inputs: Tensor
    """(A with damping)^-1."""
    inverse_outputs: Tensor
    """(G with damping)^-1."""

    def times(self, weights: Tensor) -> Tensor:
        """Lambda vec(weights), as a matrix."""
        return self.outputs @ weights @ self.inputs

    def inverse_times(self, weights: Tensor) -> Tensor:
        """Lambda^-1 vec(weights), as a matrix."""
        return self.inverse_outputs @ weights @ self.inverse_inputs


@register("ncl", NCLConfig)
class NCL(GradientLearner):
    """Natural continual learning: gradients are preconditioned by the precision of what was learned before."""

    config: NCLConfig

    def __init__(self, problem: Problem, config: NCLConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.data = TaskData(problem, config.fisher_examples)
        self.prior_examples = config.prior_examples or problem.examples_of(0) or 10_000
        self.precisions: dict[str, Precision] = {}
        for name, layer in self.layers().items():
            weights = together(layer.weight, layer.bias).detach()
            scale = self.prior_examples**-0.5
            factors = [scale * torch.eye(size, device=self.device) for size in reversed(weights.shape)]
            self.precisions[name] = invert(factors[0], factors[1], torch.zeros_like(weights), config.damping)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.network.parameters(), lr=self.config.learning_rate, momentum=self.config.momentum)

    def layers(self) -> dict[str, nn.Linear | nn.Conv2d]:
        """The dense and convolutional layers by name."""
        return {name: layer for name, layer in self.network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; the first pass over a task is remembered until the task is over."""
        terms = super().learn(x, y, task)
        self.data.add(x, y, task)
        return terms

    @torch.no_grad()
    def correct_gradient(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        """Add the pull of the prior, and multiply by its inverse precision."""
        for name, layer in self.layers().items():
            precision = self.precisions[name]
            assert layer.weight.grad is not None
            gradient = together(layer.weight.grad, None if layer.bias is None else layer.bias.grad)
            pull = precision.times(together(layer.weight, layer.bias) - precision.mean)
            natural = precision.inverse_times(gradient + self.config.strength * pull) / self.prior_examples
            layer.weight.grad.copy_(natural[:, : layer.weight[0].numel()].view_as(layer.weight))
            if layer.bias is not None:
                assert layer.bias.grad is not None
                layer.bias.grad.copy_(natural[:, -1])

    def end_task(self) -> None:
        """Measure the task's Fisher information, add it to the precision, and drop the examples."""
        examples = self.data.finish()
        if examples is None:
            return
        with self.random.active():
            factors = self.kronecker_factors(examples)
        for name, layer in self.layers().items():
            old = self.precisions[name]
            inputs, outputs = add_products((old.inputs, old.outputs), factors[name])
            self.precisions[name] = invert(inputs, outputs, together(layer.weight, layer.bias).detach(), self.config.damping)
        self.optimizer.state.clear()

    def kronecker_factors(self, examples: Stored) -> dict[str, tuple[Tensor, Tensor]]:
        """A_t and G_t of every layer, means over examples."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for part in chunks(examples):
            with watching(self.network) as seen:
                logits = self.logits(part.x.to(self.device), part.task)
                for layer in seen:
                    of_inputs = layer_inputs(layer)
                    new = of_inputs.T @ of_inputs / len(examples)
                    old = found.get(layer.name)
                    outputs = layer.outputs.new_zeros(len(layer.layer.weight), len(layer.layer.weight))
                    found[layer.name] = (new, outputs) if old is None else (old[0] + new, old[1])
                for gradients, weights in label_gradients(logits, part.y.to(self.device), self.config.fisher, seen):
                    for layer, gradient in zip(seen, gradients, strict=True):
                        places = layer.places(gradient)
                        weighted = places if weights is None else weights.view(-1, 1, 1) * places
                        found[layer.name][1].add_(
                            weighted.flatten(0, 1).T @ places.flatten(0, 1), alpha=1 / (len(examples) * places.shape[1])
                        )
        return found

    def state_dict(self) -> State:
        """As any network's, the precisions and the current task's examples."""
        precisions = {name: vars(precision) for name, precision in self.precisions.items()}
        return super().state_dict() | {"data": self.data.state_dict(), "precisions": precisions}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.data.load_state_dict(state["data"])
        saved = state["precisions"]
        self.precisions = {name: Precision(**tensors_like(saved[name], vars(own))) for name, own in self.precisions.items()}


def together(weight: Tensor, bias: Tensor | None) -> Tensor:
    """A layer's weights as ``[outputs, inputs]``, with the bias as a last column."""
    flat = weight.flatten(1)
    return flat if bias is None else torch.cat([flat, bias.unsqueeze(1)], 1)


def layer_inputs(seen: Seen) -> Tensor:
    """The inputs of a layer at all places of all examples, row by row, with a constant 1 for the bias."""
    rows = seen.patches().flatten(0, 1)
    return rows if seen.layer.bias is None else torch.cat([rows, rows.new_ones(len(rows), 1)], 1)


def add_products(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A Kronecker product (A, G) near the sum of two, with the traces of both matched; a product that is zero changes nothing."""
    (inputs, outputs), (more_inputs, more_outputs) = first, second
    traces = [float(factor.trace()) for factor in (inputs, outputs, more_inputs, more_outputs)]
    if min(traces[2:]) <= 0:
        return inputs, outputs
    balance = (traces[1] * traces[2] / (traces[3] * traces[0])) ** 0.5
    return inputs + more_inputs / balance, outputs + more_outputs * balance


def invert(inputs: Tensor, outputs: Tensor, mean: Tensor, damping: float) -> Precision:
    """A precision with its inverses, which are found in double precision."""
    dampings = [damping * torch.eye(len(factor), device=factor.device, dtype=factor.dtype) for factor in (inputs, outputs)]
    damped = add_products((inputs, outputs), (dampings[0], dampings[1]))
    # row by row, as a checkpoint has them: products of matrices that are stored by columns may differ in their last digits
    inverses = [torch.cholesky_inverse(torch.linalg.cholesky(factor.double())).to(factor.dtype).contiguous() for factor in damped]
    return Precision(inputs, outputs, mean, inverses[0], inverses[1])
