"""The base of learners with a mean-field Gaussian over the weights: single-expert MoVE layers, with variational biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.layers import MoVEConv2d, MoVELayer, MoVELinear
from hvcl.layers.options import Estimator, MoVEOptions
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner


@dataclass(frozen=True)
class VariationalConfig(GradientConfig):
    """Network, optimiser and posterior."""

    estimator: Estimator = "flipout"
    """Weight noise: flipout, local reparameterisation, a few weight draws a batch, or mean (none)."""
    initial_sigma: float = 0.1
    """Posterior sigma at the start, as a fraction of the He standard deviation."""
    num_data: int = 10_000
    """N_t on a task-free stream, where the number of examples of a task is not known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_data < 1:
            raise InputError(f"num_data must be at least 1, got {self.num_data}")


class VariationalBias(nn.Module):
    """A layer without bias, plus a bias with a posterior of its own: a variational dense layer on the constant 1.

    Its means start at zero, its sigmas like those of the layer's weights.
    """

    def __init__(self, layer: MoVELayer, options: MoVEOptions) -> None:
        super().__init__()
        self.layer = layer
        self.bias = MoVELinear(1, layer.units, experts=1, bias=False, **options)
        with torch.no_grad():
            self.bias.posterior.mean.zero_()
            self.bias.posterior.rho.copy_(layer.posterior.rho.flatten()[0])

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output plus a sample of the bias."""
        answer: Tensor = self.layer(x)
        shift: Tensor = self.bias(x.new_ones(len(x), 1))
        return answer + shift.view(*shift.shape, *[1] * (answer.dim() - 2))


class VariationalLearner(GradientLearner):
    """A network with a Gaussian posterior over all its weights and biases."""

    config: VariationalConfig

    def __init__(self, problem: Problem, config: VariationalConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.task = 0

    def assemble_variational(self, options: MoVEOptions) -> nn.Module:
        """The configured architecture of single-expert MoVE layers with variational biases."""

        def dense(inputs: int, outputs: int) -> nn.Module:
            return VariationalBias(MoVELinear(inputs, outputs, experts=1, bias=False, **options), options)

        def conv(inputs: int, outputs: int) -> nn.Module:
            layer = MoVEConv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, experts=1, bias=False, **options)
            return VariationalBias(layer, options)

        return self.assemble(dense, conv)

    @property
    def task_examples(self) -> int:
        """N_t: the number of examples of the current task where it is known, else `num_data`."""
        return self.problem.examples_of(self.task) or self.config.num_data

    def end_task(self) -> None:
        """The next batches belong to the next task."""
        self.task += 1

    def state_dict(self) -> State:
        """Network with posteriors and priors, optimiser, random state, number of the task."""
        return super().state_dict() | {"task": self.task}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.task = int(state["task"])
