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

from hvcl.kernels import Kernels, load_kernels
from hvcl.rl.dense import readable

LOG_SIGMA = (-20.0, 2.0)
"""Range of the policy's log sigma."""

_LOG_ROOT = 0.5 * math.log(2 * math.pi)


def split(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """mu and log sigma ``[B, A]`` from a network's outputs ``[B, 2 A]``."""
    mean, log_sigma = outputs.chunk(2, 1)
    return mean, log_sigma.clamp(*LOG_SIGMA)


def sample(outputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[B, A]`` and their log-probabilities ``[B]``, differentiable with respect to the outputs (reparameterised)."""
    fits = readable(mask, outputs.shape[1] // 2) and mask.stride(1) == 1 and outputs.shape == (len(mask), 2 * mask.shape[1])
    kernels = load_kernels(outputs) if fits else None
    drawn: tuple[Tensor, Tensor]
    if kernels is None:
        drawn = _Sample.apply(outputs, mask)  # type: ignore[no-untyped-call]
    elif torch.is_grad_enabled():
        drawn = _CompiledSample.apply(outputs, mask, kernels)  # type: ignore[no-untyped-call]
    else:
        drawn = _squash(outputs, mask, kernels)[:2]
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


def _squash(outputs: Tensor, mask: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
    """Actions, log-probabilities, and what the way back needs."""
    rows, actions = mask.shape
    noise, action = torch.randn(rows, actions, dtype=torch.float32), torch.empty(rows, actions, dtype=torch.float32)
    density, kept = torch.empty(rows, dtype=torch.float32), torch.empty(2, rows, actions, dtype=torch.float32)
    given = (outputs.data_ptr(), noise.data_ptr(), mask.data_ptr(), mask.stride(0))
    kernels.squash_forward(rows, actions, *LOG_SIGMA, *given, action.data_ptr(), density.data_ptr(), kept.data_ptr())
    return action, density, kept


class _CompiledSample(torch.autograd.Function):
    """The same with one compiled call each way."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, mask: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        action, density, kept = _squash(outputs, mask, kernels)
        ctx.save_for_backward(outputs, mask)
        ctx.kernels, ctx.kept = kernels, kept
        return action, density

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_action: Tensor, of_density: Tensor) -> tuple[Tensor, None, None]:
        outputs, mask = ctx.saved_tensors
        if of_action.stride(1) != 1:
            of_action = of_action.contiguous()
        of_density, found = of_density.contiguous(), torch.empty_like(outputs)
        saved = (outputs.data_ptr(), mask.data_ptr(), mask.stride(0), ctx.kept.data_ptr())
        gradients = (of_action.data_ptr(), of_action.stride(0), of_density.data_ptr(), found.data_ptr())
        ctx.kernels.squash_backward(*mask.shape, *LOG_SIGMA, *saved, *gradients)
        return found, None, None


def log_probability(outputs: Tensor, action: Tensor, mask: Tensor) -> Tensor:
    """log pi ``[B]`` of actions strictly between -1 and 1."""
    mean, log_sigma = split(outputs)
    before = torch.atanh(action)
    density = -0.5 * ((before - mean) / log_sigma.exp()).square() - log_sigma - _LOG_ROOT
    jacobian = 2 * (math.log(2) - before - F.softplus(-2 * before))
    return ((density - jacobian) * mask).sum(1)


def mode(outputs: Tensor) -> Tensor:
    """tanh(mu): what is done when nothing is to be tried out."""
    return outputs.chunk(2, 1)[0].tanh()
