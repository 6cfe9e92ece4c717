r"""A generative gate on observations: p(m|s) by Bayes' rule from densities whose statistics only add up.

With s_d the numbers of an observation, z_d = sign(s_d) log(1 + |s_d|) (large numbers stay small), and every expert m,

    p(s|m) = prod_d  pi_md^[s_d != 0] (1 - pi_md)^[s_d = 0]  *  prod_{d: s_d != 0} ( (1 - eps) t_md(z_d) + eps t_0(z_d) ).

pi_md is the predictive of a Beta(1/2, 1/2): it distinguishes places that a task pads with zeros, places that it uses, and places
that are zero now and then (a foot in the air). t_md is the Student-t predictive of a normal-inverse-gamma prior, t_0 that of the
prior alone: each number has, with probability eps, nothing to do with the expert, so that a few numbers which it has never shown
before do not outweigh all the others. A new expert is assumed to be like a known one but in some places,

    p(s|new) = sum_m p(m) prod_d ( (1 - delta) p_d(s_d|m) + delta p_0(s_d) ),        p_0 with pi = 1/2 and t_0.

Counts, sums and squares are all that is kept, in float64: what was learned is not forgotten, and order does not matter.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.rl.environments import Array

MEAN_COUNT, SHAPE, SPREAD = 1.0, 1.0, 0.1
"""kappa, a and b of the normal-inverse-gamma prior: mu | v ~ N(0, v / kappa), v ~ IG(a, b)."""
DIFFERENCE = 0.1
"""delta: share of the places in which a new expert differs from the known one that it is most like."""


class ObservationGate:
    """Conjugate densities of the observations of each expert."""

    def __init__(self, observations: int, contamination: float = 0.0) -> None:
        if observations < 1 or not 0 <= contamination < 1:
            raise InputError(
                "an observation must have at least one number, and contamination be in [0, 1), "
                f"got {observations} and {contamination}"
            )
        self.observations, self.contamination = observations, contamination
        self.counts = torch.zeros(0, dtype=torch.double)
        """Observations of each expert ``[experts]``."""
        self.used, self.sums, self.squares = (torch.zeros(0, observations, dtype=torch.double) for _ in range(3))
        """Of each expert and place ``[experts, D]``: how often it was not zero, and sum and sum of squares of z there."""

    @property
    def num_parameters(self) -> int:
        """Number of statistics."""
        return self.counts.numel() + 3 * self.used.numel()

    def open(self) -> None:
        """Add an expert without observations."""
        self.counts = torch.cat([self.counts, self.counts.new_zeros(1)])
        row = self.used.new_zeros(1, self.observations)
        self.used, self.sums, self.squares = (torch.cat([part, row]) for part in (self.used, self.sums, self.squares))

    def learn(self, observations: Array, expert: int) -> None:
        """Add observations ``[n, D]`` to the statistics of an expert."""
        z = _logarithmic(observations)
        self.counts[expert] += len(z)
        self.used[expert] += (z != 0).sum(0)
        self.sums[expert] += z.sum(0)
        self.squares[expert] += z.square().sum(0)

    def log_likelihood(self, observations: Array) -> Tensor:
        """log p(s|m) of every expert and, last, of a new one, ``[n, experts + 1]``."""
        own, anything = self._places(observations)
        akin = torch.logaddexp(math.log1p(-DIFFERENCE) + own, math.log(DIFFERENCE) + anything).sum(2)
        new = (akin + self.counts.clamp_min(1.0).log().log_softmax(0)).logsumexp(1, keepdim=True)
        return torch.cat([own.sum(2), new], 1)

    def _places(self, observations: Array) -> tuple[Tensor, Tensor]:
        """For each place, log p_d(s_d|m) of every expert ``[n, experts, D]`` and log p_0(s_d) ``[n, 1, D]``."""
        z = _logarithmic(observations).unsqueeze(1)
        used = z != 0
        share = (self.used + 0.5) / (self.counts.unsqueeze(1) + 1)
        prior = _student(z, *_predictive(*torch.zeros(3, 1, 1, dtype=z.dtype)))
        number = _student(z, *_predictive(self.used, self.sums, self.squares))
        if self.contamination:
            number = torch.logaddexp(math.log1p(-self.contamination) + number, math.log(self.contamination) + prior)
        own = torch.where(used, share.log() + number, (1 - share).log())
        return own, math.log(0.5) + torch.where(used, prior, 0.0)

    def log_probabilities(self, observations: Array) -> Tensor:
        """log p(m|s) of the experts there are, with p(m) in proportion to their observations, ``[n, experts]``."""
        return (self._places(observations)[0].sum(2) + self.counts.clamp_min(1.0).log()).log_softmax(1)

    def state_dict(self) -> dict[str, Any]:
        """Counts, sums and sums of squares of all experts."""
        return {"counts": self.counts, "used": self.used, "sums": self.sums, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.counts, self.used = state["counts"].clone(), state["used"].clone()
        self.sums, self.squares = state["sums"].clone(), state["squares"].clone()


def _logarithmic(observations: Array) -> Tensor:
    """z = sign(s) log(1 + |s|) in float64; zero exactly where s is."""
    s = torch.from_numpy(observations).double()
    return s.sign() * s.abs().log1p()


def _predictive(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Degrees of freedom, mean and scale of the predictive Student-t after `count` numbers."""
    kappa, shape = MEAN_COUNT + count, SHAPE + count / 2
    mean = total / kappa
    spread = SPREAD + ((squares - total * mean) / 2).clamp_min(0.0)
    return 2 * shape, mean, (spread * (kappa + 1) / (shape * kappa)).sqrt()


def _student(z: Tensor, freedom: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Log density of the Student-t distribution."""
    constant = torch.lgamma((freedom + 1) / 2) - torch.lgamma(freedom / 2) - (freedom * math.pi).log() / 2 - scale.log()
    return constant - (freedom + 1) / 2 * ((z - mean) / scale).square().div(freedom).log1p()
