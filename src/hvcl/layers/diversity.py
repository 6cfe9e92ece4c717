"""Parameter diversity: the log determinant of the experts' Wasserstein-2 kernel matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops import MOST_EXPERTS, usable
from hvcl.ops import diversity as compiled
from hvcl.ops.border import transformed
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


def diversity(posterior: MeanFieldGaussian, widths: Tensor) -> Tensor:
    r"""Sum over copies of log det(K + jitter I) with :math:`K_{ij} = \exp(-W_2^2(q_i, q_j) / (2 h^2))` of the copy's experts.

    K is an RBF kernel on the stacked (mu, sigma), hence positive semi-definite. det itself would underflow and has no gradient at
    identical experts; its logarithm has neither trouble. A large h makes K singular, a small one saturates it. `widths` ``[C]``
    are the copies' h; one that is zero is measured now, by the median heuristic, and written there.
    """
    copies = len(widths)
    repeats = 1.0 if posterior.sigma_kind == "weight" else posterior.weights_per_unit
    plain = transformed()
    if posterior.collects and not plain:
        return _collected(posterior, repeats, widths)
    sigma = posterior.sigma_of(posterior.rho)
    values = []
    for copy, (mean, spread) in enumerate(zip(posterior.mean.chunk(copies), sigma.chunk(copies), strict=True)):
        if plain:
            values.append(_plain(mean, spread, repeats, widths, copy))
            continue
        distances = squared_distances(mean, spread, repeats)
        width = _settled(widths, copy, distances)
        values.append(_LogDeterminant.apply(mean, spread, repeats, distances, width))  # type: ignore[no-untyped-call]
    return values[0] if copies == 1 else torch.stack(values).sum()


def _settled(widths: Tensor, copy: int, distances: Tensor) -> Tensor:
    """The width of a copy's kernel; measured if it was not yet since the last task."""
    if widths[copy] == 0:
        widths[copy] = median_width(distances)
    return widths[copy]


def _plain(mean: Tensor, sigma: Tensor, repeats: float, widths: Tensor, copy: int) -> Tensor:
    """One copy's diversity in operations that torch.compile, torch.export and torch.func can follow.

    A width that is not known yet is measured here too. It is kept where torch can follow that (not within torch.func).
    """
    distances = mean.new_zeros(len(mean), len(mean))
    for part, weight in ((mean, 1.0), (sigma, repeats)):
        flat = part.flatten(1)
        distances = distances + weight * (flat.unsqueeze(1) - flat.unsqueeze(0)).square().sum(2)
    measured, known = median_width(distances.detach()), widths[copy]
    width = torch.where(known == 0, measured, known)
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        with torch.no_grad():
            widths[copy] = width
    kernel = torch.exp(-distances / (2 * width**2))
    factor: Tensor = torch.linalg.cholesky(kernel + JITTER * torch.eye(len(mean), device=mean.device, dtype=mean.dtype))
    return 2 * factor.diagonal().log().sum()


def _collected(posterior: MeanFieldGaussian, repeats: float, widths: Tensor) -> Tensor:
    """The diversity of a posterior whose gradients go to its optimiser, to which ``[C * M, C * M]`` numbers are handed over."""
    log_sigma = posterior.log_sigma
    with torch.no_grad():
        value, laplacian = _value(posterior, log_sigma.detach(), repeats, widths)
    sigma = log_sigma if posterior.sigma_kind == "unit" else None
    found: Tensor = _Collected.apply(posterior.collector.anchor, sigma, value, laplacian, posterior, repeats)  # type: ignore[no-untyped-call]
    return found


def _value(posterior: MeanFieldGaussian, log_sigma: Tensor, repeats: float, widths: Tensor) -> tuple[Tensor, Tensor]:
    """The diversity and its Laplacians; distances of experts that the optimiser has not stepped since are remembered."""
    mean, collector, copies = posterior.mean.detach(), posterior.collector, widths.shape[0]
    experts = posterior.experts // copies
    library = usable(mean, log_sigma, widths) if experts <= MOST_EXPERTS else None
    if library is None:
        factors = []
        for copy, (of_mean, sigma) in enumerate(zip(mean.chunk(copies), log_sigma.exp().chunk(copies), strict=True)):
            distances = squared_distances(of_mean, sigma, repeats)
            factors.append(_factor(distances, _settled(widths, copy, distances)))
        return torch.stack([value for value, _ in factors]).sum(), torch.block_diag(*[laplacian for _, laplacian in factors])
    known, changed = collector.recall_distances(*posterior.stepped_together)
    if known is None:
        known = torch.zeros(copies, experts, experts, dtype=torch.float64)
        changed = list(range(copies * experts))
    value, laplacian = compiled.diversity(library, mean, log_sigma, repeats, changed, JITTER, known, widths)
    collector.remember_distances(known, *posterior.stepped_together)
    return mean.new_tensor(value), laplacian


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


class _Collected(torch.autograd.Function):
    """The same without walking over the weights: -4 L is handed over. `log_sigma` is given for a sigma per unit."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        log_sigma: Tensor | None,
        value: Tensor,
        laplacian: Tensor,
        posterior: MeanFieldGaussian,
        repeats: float,
    ) -> Tensor:
        ctx.save_for_backward(log_sigma, laplacian)
        ctx.posterior, ctx.repeats = posterior, repeats
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        log_sigma, laplacian = ctx.saved_tensors
        push = laplacian * (-4 * grad)
        ctx.posterior.collector.offer_push(push)
        of_sigma = None
        if log_sigma is not None:
            sigma = log_sigma.exp()
            of_sigma = ctx.repeats * (push @ (sigma - sigma[:1])) * sigma
        return grad.new_zeros(()), of_sigma, None, None, None, None
