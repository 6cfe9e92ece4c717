r"""Uncertainty-guided continual learning with Bayesian neural networks: UCB (Ebrahimi et al., 2020).

Bayes by backprop: the weights have a mean-field Gaussian posterior q with means mu and standard deviations sigma, and every task
minimises, per example,

    - E_q[ log p(y|x, w) ] + 1/N E_q[ log q(w) - log p(w) ] ,
    p(w) = pi N(0, s_1^2) + (1 - pi) N(0, s_2^2)  for every weight.

The prior never changes. What protects a finished task are the learning rates of the means, set at every boundary: a weight that
the posterior is sure of hardly moves any more,

    mu_i <- mu_i - learning_rate * sigma_i * dL/dmu_i ,        sigma_i that of the last boundary,

while sigma itself is learned with the plain learning rate, as is everything in the first task. SGD without momentum.

Deviates from the paper and its code: flipout, with one draw a step, for 10 Monte Carlo samples; the KL is a Monte Carlo estimate
with a draw of its own; the code's weights of the three terms (0.05 on the summed log-likelihood of 64 examples, 0.001 on the
others, which have no gradient there) are replaced by the plain bound per example, and its learning rate 0.01 accordingly by 0.03;
no early stopping and no decay of the learning rate; the heads take part in the scaling (in the code they stop learning).
Predictions are those of the means.

A task-free stream announces no boundaries: then it is Bayes by backprop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensors_like
from hvcl.layers import MoVELayer
from hvcl.learners.base import State
from hvcl.learners.gradient import Terms
from hvcl.learners.registry import register
from hvcl.learners.variational import VariationalConfig, VariationalLearner
from hvcl.posteriors import MeanFieldGaussian


@dataclass(frozen=True)
class UCBConfig(VariationalConfig):
    """Uncertainty-guided continual learning."""

    learning_rate: float = 0.03
    """Step size of SGD."""
    initial_sigma: float = 1.0
    """Posterior sigma at the start, as a fraction of the He standard deviation."""
    prior_mixture: float = 0.25
    """pi, the weight of the wide Gaussian in the prior."""
    prior_wide: float = 1.0
    """s_1, its standard deviation."""
    prior_narrow: float = math.exp(-6)
    """s_2, the standard deviation of the narrow one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior_mixture < 1:
            raise InputError(f"prior_mixture must lie between 0 and 1, got {self.prior_mixture}")
        if not (self.prior_wide > 0 and self.prior_narrow > 0):
            raise InputError(f"prior_wide and prior_narrow must be positive, got {self.prior_wide} and {self.prior_narrow}")


@register("ucb", UCBConfig)
class UCB(VariationalLearner):
    """Uncertainty-guided continual learning: a mean is learned the slower, the surer its posterior was at the last boundary."""

    config: UCBConfig

    def __init__(self, problem: Problem, config: UCBConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.rates: dict[str, Tensor] = {}
        """What the learning rate of each mean is multiplied with; empty in the first task."""

    def build(self) -> nn.Module:
        """Single-expert layers."""
        return self.assemble_variational({"estimator": self.config.estimator, "initial_sigma": self.config.initial_sigma})

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.network.parameters(), lr=self.config.learning_rate)

    def posteriors(self) -> dict[str, MeanFieldGaussian]:
        """All posteriors by name."""
        return {name: layer.posterior for name, layer in self.network.named_modules() if isinstance(layer, MoVELayer)}

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """The negative evidence lower bound per example."""
        terms = super().loss(x, y, task)
        divergence = torch.stack([self.divergence(posterior) for posterior in self.posteriors().values()]).sum()
        terms["kl"] = divergence / self.task_examples
        terms["loss"] = terms["loss"] + terms["kl"]
        return terms

    def divergence(self, posterior: MeanFieldGaussian) -> Tensor:
        """log q(w) - log p(w) at a draw w of q, summed over weights."""
        config = self.config
        noise = torch.randn_like(posterior.mean)
        weight = posterior.mean + posterior.sigma * noise
        of_posterior = -noise.square() / 2 - posterior.log_sigma
        # log (a + b) = log a + softplus(log b - log a), at half the cost of logaddexp
        wide, narrow = config.prior_mixture / config.prior_wide, (1 - config.prior_mixture) / config.prior_narrow
        squared = weight.square() / 2
        odds = math.log(narrow / wide) + squared * (config.prior_wide**-2 - config.prior_narrow**-2)
        of_prior = math.log(wide) - squared * config.prior_wide**-2 + F.softplus(odds)
        return (of_posterior - of_prior).sum()

    @torch.no_grad()
    def correct_gradient(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        """Learning rates of their own for all means."""
        for name, posterior in self.posteriors().items():
            if name in self.rates:
                assert posterior.mean.grad is not None
                posterior.mean.grad *= self.rates[name]

    def end_task(self) -> None:
        """The present sigmas set the next task's learning rates."""
        self.rates = {name: posterior.sigma.detach().clone() for name, posterior in self.posteriors().items()}
        super().end_task()

    def state_dict(self) -> State:
        """As any variational learner's, and the learning rates."""
        return super().state_dict() | {"rates": self.rates}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        sigmas = {name: posterior.sigma for name, posterior in self.posteriors().items()}
        self.rates = tensors_like(state["rates"], sigmas) if state["rates"] else {}
