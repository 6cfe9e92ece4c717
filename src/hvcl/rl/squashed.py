r"""The squashed Gaussian over masked actions.

    a = tanh(u),  u ~ N(mu, sigma^2),        log pi(a) = sum_i m_i [ log N(u_i; mu_i, sigma_i^2) - log(1 - tanh(u_i)^2) ]

with m the mask of the actions that a task reads: the others are exactly 0 and have no part in the density.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hvcl.ops import squash, usable

LOG_SIGMA = (-20.0, 2.0)
"""Range of the policy's log sigma."""

_LOG_ROOT = 0.5 * math.log(2 * math.pi)


def split(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """mu and log sigma ``[B, A]`` from a network's outputs ``[B, 2 A]``."""
    mean, log_sigma = outputs.chunk(2, 1)
    return mean, log_sigma.clamp(*LOG_SIGMA)


def sample(outputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[B, A]`` and their log-probabilities ``[B]``, differentiable with respect to the outputs (reparameterised)."""
    fits = mask.shape == (len(outputs), outputs.shape[1] // 2) and mask.stride(1) == 1 and outputs.shape[1] % 2 == 0
    library = usable(outputs) if fits and mask.dtype is torch.float32 and mask.is_cpu else None
    if library is not None:
        return squash.sample(library, outputs, mask, LOG_SIGMA)
    drawn: tuple[Tensor, Tensor] = _Sample.apply(outputs, mask)  # type: ignore[no-untyped-call]
    return drawn


class _Sample(torch.autograd.Function):
    """The draw as one node of the graph.

    With u = mu + sigma eps the density of a draw is -log sigma - eps^2 / 2 - log(1 - tanh(u)^2) + constant, whose last term is
    2 (log 2 - u - softplus(-2u)) in a form that holds its digits for any u. Its derivative with respect to u is 2 tanh(u).
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = outputs.chunk(2, 1)
        log_sigma = raw.clamp(*LOG_SIGMA)
        noise = torch.randn_like(mean)
        scaled = log_sigma.exp().mul_(noise)
        before = mean + scaled
        density = F.softplus(-2 * before).add_(before).mul_(2).sub_(log_sigma).addcmul_(noise, noise, value=-0.5)
        action = before.tanh()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(action, scaled, mask, raw == log_sigma)
        return action * mask, torch.linalg.vecdot(density.sub_(_LOG_ROOT + 2 * math.log(2)), mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_action: Tensor, of_density: Tensor) -> tuple[Tensor, None]:
        action, scaled, mask, free = ctx.saved_tensors
        of_density = of_density.unsqueeze(1)
        of_mean = torch.addcmul(of_action, of_action, action.square(), value=-1).addcmul_(of_density, action, value=2).mul_(mask)
        of_log_sigma = of_mean.mul(scaled).sub_(of_density * mask).mul_(free)
        return torch.cat([of_mean, of_log_sigma], 1), None


def mode(outputs: Tensor) -> Tensor:
    """tanh(mu): what is done when nothing is to be tried out."""
    return outputs.chunk(2, 1)[0].tanh()
