"""The latent variable of a VAE: where an encoder puts an input, and the mixture that generation draws from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError

Conditions = int | Sequence[int] | None
"""Restricts generation to a condition, or to any of several; None: all."""

MEMORY = 1000
"""Length in examples of the running average of a condition's experts."""


class Latent(NamedTuple):
    """q(z|x) = N(mean, exp(log_variance)) of a batch, and the expert of the mean layer that gave each mean."""

    mean: Tensor
    log_variance: Tensor
    expert: Tensor

    def draw(self) -> Tensor:
        """One reparameterised sample for each example."""
        return self.mean + (0.5 * self.log_variance).exp() * torch.randn_like(self.mean)

    def divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """KL[q(z|x) || N(mean, exp(log_variance))] in nats, ``[B]``."""
        return gaussian_divergence(self.mean, self.log_variance, mean, log_variance)

    def log_density(self, z: Tensor) -> Tensor:
        """log q(z|x) of one z for each example, ``[B]``."""
        return gaussian_log_density(z, self.mean, self.log_variance)


def gaussian_log_density(z: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z; mean, exp(log_variance)), summed over the last dimension."""
    distance = (z - mean).square() * (-log_variance).exp()
    return -0.5 * (distance + log_variance + math.log(2 * math.pi)).sum(-1)


def gaussian_divergence(mean: Tensor, log_variance: Tensor, prior_mean: Tensor, prior_log_variance: Tensor) -> Tensor:
    """KL[N(mean, exp(log_variance)) || N(prior_mean, exp(prior_log_variance))] in nats, summed over the last dimension."""
    spread = (log_variance - prior_log_variance).exp() + (mean - prior_mean).square() * (-prior_log_variance).exp()
    return 0.5 * (prior_log_variance - log_variance + spread - 1).sum(-1)


class LatentPrior(nn.Module):
    r"""p(z) = sum_k pi_k N(mu_k, sigma_k^2): one component for each pair of a condition and an expert of the mean layer.

    An example's component is known: its condition is given (its class, or nothing), and its expert is the one that the gate of
    the mean layer chose. This is the paper's mixture reading of the latent variable, whose components exclude each other, so
    that the divergence stays one of two Gaussians,

    .. math:: KL[q(z|x) \| p(z|k)] = \tfrac12 \sum_d \log \tfrac{\sigma_{kd}^2}{s_d^2}
              + \tfrac{s_d^2 + (m_d - \mu_{kd})^2}{\sigma_{kd}^2} - 1 .

    With a single component it is N(0, I), fixed, as in the paper. With several each has a mean (drawn from N(0, I) at first) and
    variances that are learned with everything else from the ELBO: its optimum is the component's share of the aggregated
    posterior, so a component generates what its expert (or class) encodes. The weights are pi_k = (share of the condition) *
    (share of the expert within it): the first are counts of the stream's examples, which only add up; the second a running
    average, since gates change as they learn.
    """

    mean: Tensor
    log_variance: Tensor
    examples: Tensor
    """Examples of each condition so far ``[conditions]``."""
    usage: Tensor
    """Which experts encode a condition's examples ``[conditions, experts]``; rows sum to 1."""

    def __init__(self, dimensions: int, conditions: int = 1, experts: int = 1) -> None:
        super().__init__()
        if dimensions < 1 or conditions < 1 or experts < 1:
            raise InputError(f"sizes must be positive: latent {dimensions}, conditions {conditions}, experts {experts}")
        self.conditions, self.experts = conditions, experts
        components = conditions * experts
        zeros = torch.zeros(components, dimensions)
        if components > 1:
            # far apart from the start: an encoder finds its way there sooner than the means could part
            self.mean, self.log_variance = nn.Parameter(torch.randn(components, dimensions)), nn.Parameter(zeros)
        else:
            self.register_buffer("mean", zeros)
            self.register_buffer("log_variance", zeros.clone())
        self.register_buffer("examples", torch.zeros(conditions, dtype=torch.float64))
        self.register_buffer("usage", torch.full((conditions, experts), 1 / experts, dtype=torch.float64))

    def component(self, condition: Tensor | None, expert: Tensor) -> Tensor:
        """The number of each example's component."""
        if condition is None:
            if self.conditions > 1:
                raise InputError("this VAE is conditional: give every example's condition")
            return expert
        if condition.shape != expert.shape or condition.is_floating_point():
            raise InputError(f"condition must be {len(expert)} integers, got {condition.dtype} of shape {tuple(condition.shape)}")
        low, high = (int(value) for value in torch.aminmax(condition))
        if low < 0 or high >= self.conditions:
            raise InputError(f"conditions must lie between 0 and {self.conditions - 1}, got values from {low} to {high}")
        return condition * self.experts + expert

    def divergence(self, latent: Latent, component: Tensor) -> Tensor:
        """KL[q(z|x) || p(z|k)] in nats, ``[B]``."""
        return latent.divergence(self.mean[component], self.log_variance[component])

    def log_densities(self, z: Tensor) -> Tensor:
        """log N(z; mu_k, sigma_k^2) of every component, ``[B, components]``."""
        return gaussian_log_density(z.unsqueeze(1), self.mean, self.log_variance)

    def log_density(self, z: Tensor, weights: Tensor) -> Tensor:
        r"""log sum_c w_c p(z|c) ``[B]``, if conditions c are known with probabilities w ``[B, conditions]`` only."""
        each = (weights.unsqueeze(2) * self.usage.to(z)).flatten(1)
        return (each.log() + self.log_densities(z)).logsumexp(1)

    def most_probable(self, z: Tensor) -> Tensor:
        """The condition that each z ``[B, D]`` most probably belongs to, in the proportions of what was learned."""
        weights = self.mass().to(z).flatten().log() + self.log_densities(z)
        return weights.view(len(z), self.conditions, self.experts).logsumexp(2).argmax(1)

    @torch.no_grad()
    def record(self, component: Tensor, new: int) -> None:
        """These examples were learned from; the first `new` of them are the stream's, the others were generated."""
        seen = torch.bincount(component, minlength=self.usage.numel()).view_as(self.usage).double()
        number = seen.sum(1, keepdim=True)
        kept = torch.where(self.examples.unsqueeze(1) > 0, (1 - 1 / MEMORY) ** number, (number == 0).double())
        self.usage.mul_(kept).add_((1 - kept) * seen / number.clamp_min(1))
        self.examples += torch.bincount(component[:new] // self.experts, minlength=self.conditions)

    def forget(self) -> None:
        """Restart the counts of examples: the next ones are of another task."""
        self.examples.zero_()

    def mass(self, condition: Conditions = None, expert: int | None = None) -> Tensor:
        """pi, not normalised, ``[conditions, experts]``; zero outside of the given conditions and expert."""
        conditions = [condition] if isinstance(condition, int) else condition
        experts = None if expert is None else [expert]
        table = self.examples.unsqueeze(1) * self.usage
        for name, given, dimension in (("condition", conditions, 0), ("expert", experts, 1)):
            if given is None:
                continue
            limit = table.shape[dimension]
            if len(given) == 0 or not all(0 <= one < limit for one in given):
                raise InputError(f"{name} must lie between 0 and {limit - 1}, got {', '.join(map(str, given)) or 'none'}")
            others = [number for number in range(limit) if number not in given]
            table = table.index_fill(dimension, torch.tensor(others, dtype=torch.long, device=table.device), 0.0)
        return table

    def choose(self, count: int, condition: Conditions = None, expert: int | None = None) -> Tensor:
        """`count` components drawn from pi, among those of some conditions, of one expert, or of all."""
        table = self.mass(condition, expert)
        if table.numel() == 1:  # N(0, I) needs no examples
            return torch.zeros(count, dtype=torch.long, device=table.device)
        if not bool(table.sum() > 0):
            raise nothing_learned(condition, expert)
        return torch.multinomial(table.flatten(), count, replacement=True)

    def draw(self, component: Tensor) -> Tensor:
        """One sample of z from each component."""
        mean, log_variance = self.mean[component], self.log_variance[component]
        return mean + (0.5 * log_variance).exp() * torch.randn_like(mean)


def nothing_learned(condition: Conditions, expert: int | None) -> InputError:
    """The error for generating from conditions and an expert that have no examples."""
    conditions = condition if condition is None or isinstance(condition, int) else " or ".join(map(str, condition))
    given = " and ".join(f"{n} {v}" for n, v in (("condition", conditions), ("expert", expert)) if v is not None)
    return InputError(f"the generator has seen no example{' of ' + given if given else ''}: it cannot make one")
