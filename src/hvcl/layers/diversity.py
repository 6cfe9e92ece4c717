"""Parameter diversity: the log determinant of the experts' Wasserstein-2 kernel matrix."""

from __future__ import annotations

import torch
from torch import Tensor

JITTER = 1e-4
"""Added to the kernel matrix's diagonal: keeps log det and its gradient finite for identical experts."""


def squared_distances(mean: Tensor, sigma: Tensor, repeats: float = 1.0) -> Tensor:
    r"""Pairwise :math:`W_2^2(q_i, q_j) = \|\mu_i - \mu_j\|^2 + \|\sigma_i - \sigma_j\|^2`, ``[M, M]``.

    Experts are centred first: distances do not change, but their float32 error shrinks from the size of the
    parameters to the size of the differences. `repeats` counts how many weights share each entry of `sigma`.
    """
    gram = torch.zeros((), device=mean.device, dtype=mean.dtype)
    for part, weight in ((mean, 1.0), (sigma, repeats)):
        flat = part.flatten(1)
        centred = flat - flat.detach().mean(0)
        gram = gram + weight * (centred @ centred.T)
    norms = gram.diagonal()
    return (norms.unsqueeze(0) + norms.unsqueeze(1) - 2 * gram).clamp_min(0)


def median_width(distances: Tensor) -> Tensor:
    """Kernel width by the median heuristic, h^2 = median of W2^2 over the pairs; 1 where all experts coincide."""
    experts = len(distances)
    above = torch.triu_indices(experts, experts, offset=1, device=distances.device)
    median = distances[above[0], above[1]].median()
    return torch.where(median > 0, median.sqrt(), torch.ones_like(median))


def log_determinant(distances: Tensor, width: Tensor) -> Tensor:
    r"""log det(K + jitter I) with :math:`K_{ij} = \exp(-W_2^2(q_i, q_j) / (2 h^2))`, by Cholesky.

    K is an RBF kernel on the stacked (mu, sigma), hence positive semi-definite. det itself would underflow and has no
    gradient at identical experts; its logarithm has neither trouble. A large h makes K singular, a small one saturates it.
    """
    kernel = torch.exp(-distances / (2 * width**2))
    kernel = kernel + JITTER * torch.eye(len(kernel), device=kernel.device, dtype=kernel.dtype)
    factor: Tensor = torch.linalg.cholesky(kernel)
    return 2 * factor.diagonal().log().sum()
