"""The latent variable of a VAE: where an encoder puts an input, and the mixture that generation draws from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hvcl.errors import InputError

MEMORY = 1000
"""Examples of a condition that the running average of its experts looks back on."""


class Latent(NamedTuple):
    """q(z|x) = N(mean, exp(log_variance)) of a batch, and the expert of the mean layer that gave each mean."""

    mean: Tensor
    log_variance: Tensor
    expert: Tensor

    def draw(self) -> Tensor:
        """One reparameterised sample for each example."""
        return self.mean + (0.5 * self.log_variance).exp() * torch.randn_like(self.mean)


class LatentPrior(nn.Module):
    r"""p(z) = sum_k pi_k N(mu_k, sigma_k^2): one component for each pair of a condition and an expert of the mean layer.

    An example's component is known: its condition is told (its class, or nothing), and its expert is the one that the gate of
    the mean layer chose. This is the paper's mixture reading of the latent variable, whose components exclude each other, so
    that the divergence stays one of two Gaussians,

    .. math:: KL[q(z|x) \| p(z|k)] = \tfrac12 \sum_d \log \tfrac{\sigma_{kd}^2}{s_d^2}
              + \tfrac{s_d^2 + (m_d - \mu_{kd})^2}{\sigma_{kd}^2} - 1 .

    With a single component it is N(0, I), fixed, as in the paper. With several each has a mean (drawn from N(0, I) at first) and
    variances that are learned with everything else from the ELBO: its optimum is the component's share of the aggregated
    posterior, so a component generates what its expert (or class) encodes. The weights are pi_k = (share of the condition) *
    (share of the expert within it): the first are counts of the stream's examples, which only add up; the second a running
    average, for gates learn and change their minds.
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
        return condition * self.experts + expert

    def divergence(self, latent: Latent, component: Tensor) -> Tensor:
        """KL[q(z|x) || p(z|k)] in nats, ``[B]``."""
        mean, log_variance = self.mean[component], self.log_variance[component]
        spread = (latent.log_variance - log_variance).exp() + (latent.mean - mean).square() * (-log_variance).exp()
        return 0.5 * (log_variance - latent.log_variance + spread - 1).sum(1)

    @torch.no_grad()
    def record(self, component: Tensor, new: int) -> None:
        """These examples were learned from; the first `new` of them are the stream's, the others were generated."""
        seen = torch.bincount(component, minlength=self.usage.numel()).view_as(self.usage).double()
        number = seen.sum(1, keepdim=True)
        kept = torch.where(self.examples.unsqueeze(1) > 0, (1 - 1 / MEMORY) ** number, (number == 0).double())
        self.usage.mul_(kept).add_((1 - kept) * seen / number.clamp_min(1))
        self.examples += torch.bincount(component[:new] // self.experts, minlength=self.conditions)

    def forget(self) -> None:
        """Count anew: what comes next is told apart from what came before."""
        self.examples.zero_()

    def choose(self, count: int, condition: int | None = None, expert: int | None = None) -> Tensor:
        """`count` components drawn from pi, among those of one condition, of one expert, or of all."""
        for name, asked, limit in (("condition", condition, self.conditions), ("expert", expert, self.experts)):
            if asked is not None and not 0 <= asked < limit:
                raise InputError(f"{name} must lie between 0 and {limit - 1}, got {asked}")
        table = self.examples.unsqueeze(1) * self.usage
        rows = slice(None) if condition is None else slice(condition, condition + 1)
        columns = slice(None) if expert is None else slice(expert, expert + 1)
        wanted = torch.zeros_like(table)
        wanted[rows, columns] = table[rows, columns]
        if table.numel() > 1 and not bool(wanted.sum() > 0):
            asked_for = " and ".join(f"{n} {v}" for n, v in (("condition", condition), ("expert", expert)) if v is not None)
            raise InputError(f"the generator has seen no example{' of ' + asked_for if asked_for else ''}: it cannot make one")
        if table.numel() == 1:  # N(0, I) needs no examples
            return torch.zeros(count, dtype=torch.long, device=table.device)
        return torch.multinomial(wanted.flatten(), count, replacement=True)

    def draw(self, component: Tensor) -> Tensor:
        """One z from each component."""
        mean, log_variance = self.mean[component], self.log_variance[component]
        return mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
