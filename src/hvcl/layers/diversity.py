"""Parameter diversity: the log determinant of the experts' Wasserstein-2 kernel matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.kernels import load_kernels
from hvcl.posteriors import MeanFieldGaussian

JITTER = 1e-4
"""Added to the kernel matrix's diagonal: keeps log det and its gradient finite for identical experts."""

_CHUNK = 1 << 17
"""Numbers that are looked at together when distances are summed up: they stay in the cache from one operation to the next."""


def squared_distances(mean: Tensor, sigma: Tensor, repeats: float = 1.0) -> Tensor:
    r"""Pairwise :math:`W_2^2(q_i, q_j) = \|\mu_i - \mu_j\|^2 + \|\sigma_i - \sigma_j\|^2`, ``[M, M]``.

    Experts are centred first: distances do not change, but their float32 error shrinks from the size of the
    parameters to the size of the differences. `repeats` counts how many weights share each entry of `sigma`.
    """
    experts = len(mean)
    gram = mean.new_zeros(experts, experts)
    for part, weight in ((mean, 1.0), (sigma, repeats)):
        for piece in part.detach().flatten(1).split(max(1, _CHUNK // experts), dim=1):
            centred = piece - piece.mean(0)
            gram.addmm_(centred, centred.T, alpha=weight)
    norms = gram.diagonal()
    return (norms.unsqueeze(0) + norms.unsqueeze(1) - 2 * gram).clamp_min(0)


def median_width(distances: Tensor) -> Tensor:
    """Kernel width by the median heuristic, h^2 = median of W2^2 over the pairs; 1 where all experts coincide."""
    experts = len(distances)
    above = torch.triu_indices(experts, experts, offset=1, device=distances.device)
    median = distances[above[0], above[1]].median()
    return torch.where(median > 0, median.sqrt(), torch.ones_like(median))


def log_determinant(mean: Tensor, sigma: Tensor, repeats: float, distances: Tensor, width: Tensor) -> Tensor:
    r"""log det(K + jitter I) with :math:`K_{ij} = \exp(-W_2^2(q_i, q_j) / (2 h^2))`, by Cholesky.

    K is an RBF kernel on the stacked (mu, sigma), hence positive semi-definite. det itself would underflow and has no gradient at
    identical experts; its logarithm has neither trouble. A large h makes K singular, a small one saturates it. `distances` are
    those of `mean` and `sigma`; the gradient goes to these two, in closed form.
    """
    value: Tensor = _LogDeterminant.apply(mean, sigma, repeats, distances, width)  # type: ignore[no-untyped-call]
    return value


def deferred_log_determinant(posterior: MeanFieldGaussian, repeats: float, distances: Tensor, width: Tensor) -> Tensor:
    """`log_determinant` of a posterior whose gradients go to its optimiser, to which [M, M] numbers are handed over."""
    leaf = posterior.rho if posterior.sigma_kind == "unit" else posterior.deferral.anchor(posterior.mean)
    value: Tensor = _DeferredLogDeterminant.apply(leaf, posterior, repeats, distances, width)  # type: ignore[no-untyped-call]
    return value


def known_distances(posterior: MeanFieldGaussian, repeats: float) -> Tensor:
    """`squared_distances` of a posterior; of experts that its optimiser has not stepped since, they are remembered."""
    mean, rho, deferral = posterior.mean.detach(), posterior.rho.detach(), posterior.deferral
    kernels = load_kernels(mean)
    if kernels is None:
        return squared_distances(mean, posterior.sigma_of(rho), repeats)
    every = list(range(len(mean)))
    distances, changed = deferral.recall_distances(*posterior.stepped_together)
    if distances is None:
        distances, changed = torch.zeros(len(mean), len(mean), dtype=torch.float64), every
    elif changed:
        distances[changed] = 0.0
        distances[:, changed] = 0.0
    if changed:
        kernels.pair_distances(mean, False, 1.0, changed, distances)
        if posterior.sigma_kind == "weight":
            kernels.pair_distances(rho, True, 1.0, changed, distances)
    deferral.remember_distances(distances, *posterior.stepped_together)
    if posterior.sigma_kind == "unit":  # few, and stepped always
        distances = distances.clone()
        kernels.pair_distances(rho, True, repeats, every, distances)
    return distances.to(mean.dtype)


def _factor(distances: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    r"""log det of the kernel matrix, and the Laplacian L of :math:`S = (K + jitter I)^{-1} \circ K / (2 h^2)`."""
    kernel = torch.exp(-distances / (2 * width**2))
    factor: Tensor = torch.linalg.cholesky(kernel + JITTER * torch.eye(len(kernel), device=kernel.device, dtype=kernel.dtype))
    attraction = torch.cholesky_inverse(factor) * kernel / (2 * width**2)
    attraction.fill_diagonal_(0)
    return 2 * factor.diagonal().log().sum(), torch.diag(attraction.sum(1)) - attraction


class _LogDeterminant(torch.autograd.Function):
    r"""With L as in `_factor`,

    .. math:: d \log\det / d\mu = -4 L \mu, \qquad d \log\det / d\sigma = -4 L \sigma .
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, sigma: Tensor, repeats: float, distances: Tensor, width: Tensor) -> Tensor:
        value, laplacian = _factor(distances, width)
        ctx.save_for_backward(mean, sigma, laplacian)
        ctx.repeats = repeats
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        mean, sigma, laplacian = ctx.saved_tensors
        laplacian = laplacian * (-4 * grad)

        def along(part: Tensor) -> Tensor:
            flat = part.flatten(1)
            # a Laplacian does not see a common shift, float32 does: identical experts must have no gradient at all
            moved: Tensor = laplacian @ (flat - flat[:1])
            return moved.view_as(part)

        return along(mean), ctx.repeats * along(sigma), None, None, None


class _DeferredLogDeterminant(torch.autograd.Function):
    """The same without walking over the weights: -4 L is handed over.

    `leaf` is what asks for the backward pass: rho for a sigma per unit, of which it is the gradient, else an anchor.
    """

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, posterior: MeanFieldGaussian, repeats: float, distances: Tensor, width: Tensor) -> Tensor:
        value, laplacian = _factor(distances, width)
        ctx.save_for_backward(leaf, laplacian)
        ctx.posterior, ctx.repeats = posterior, repeats
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        leaf, laplacian = ctx.saved_tensors
        push = laplacian * (-4 * grad)
        ctx.posterior.deferral.keep_push(push)
        if leaf.dim() == 0:
            return torch.zeros_like(leaf), None, None, None, None
        sigma = ctx.posterior.sigma_of(leaf)
        return ctx.repeats * (push @ (sigma - sigma[:1])) * sigma, None, None, None, None
