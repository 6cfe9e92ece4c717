"""Mean-field Gaussian posteriors, one per expert, each with its own Gaussian prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from hvcl.errors import InputError

SigmaKind = Literal["weight", "unit"]
"""One sigma per weight, or one per output unit that all weights into the unit share."""

SigmaTransform = Literal["exp", "softplus"]
"""How the free parameter rho becomes sigma: exp(rho), or log(1 + exp(rho))."""


class MeanFieldGaussian(nn.Module):
    r"""M independent Gaussians over weights of one shape, and the prior of each.

    Expert m has the posterior :math:`q_m = \prod_i N(\theta_i; \mu_{mi}, \sigma_{mi}^2)` and the prior
    :math:`p_m = \prod_i N(\theta_i; \nu_{mi}, s_{mi}^2)`, which is the posterior after the previous task. Before the first
    task it is :math:`N(0, s^2)`.

    Storage is expert-major: `mean` is ``[M, *shape]``. `rho` has the same shape for ``sigma="weight"`` and is ``[M, units]``
    for ``sigma="unit"``. The prior is kept as `prior_mean` and `prior_log_sigma`.

    Args:
        experts: M.
        shape: shape of one expert's weights.
        units: number of output units, the length of a per-unit sigma.
        expand_units: turns ``[M, units]`` into a tensor that broadcasts against ``[M, *shape]``.
        fan_in: number of inputs that feed one output unit; the means start as He draws, :math:`N(0, 2 / fan\_in)`.
        sigma: "weight" or "unit".
        initial_sigma: posterior sigma at the start, as a fraction of the He standard deviation.
        prior_sigma: s of the first prior; None takes the He standard deviation, from which the means are drawn, so that
            a newly built layer starts near its prior.
        transform: "exp" (cheaper) or "softplus".
    """

    prior_mean: Tensor
    prior_log_sigma: Tensor

    def __init__(
        self,
        experts: int,
        shape: tuple[int, ...],
        units: int,
        expand_units: Callable[[Tensor], Tensor],
        fan_in: float,
        *,
        sigma: SigmaKind = "weight",
        initial_sigma: float = 0.1,
        prior_sigma: float | None = None,
        transform: SigmaTransform = "exp",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 0 < initial_sigma < math.inf:
            raise InputError(f"initial_sigma must be positive, got {initial_sigma}")
        if prior_sigma is not None and not 0 < prior_sigma < math.inf:
            raise InputError(f"prior_sigma must be positive, got {prior_sigma}")
        self.sigma_kind: SigmaKind = sigma
        self.transform: SigmaTransform = transform
        self.expand_units = expand_units
        self.he_std = math.sqrt(2.0 / fan_in)
        self.initial_sigma = initial_sigma * self.he_std
        self.first_prior_sigma = self.he_std if prior_sigma is None else prior_sigma

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        sigma_shape = (experts, *shape) if sigma == "weight" else (experts, units)
        self.mean = nn.Parameter(torch.empty(experts, *shape, **factory))
        self.rho = nn.Parameter(torch.empty(sigma_shape, **factory))
        self.register_buffer("prior_mean", torch.empty(experts, *shape, **factory))
        self.register_buffer("prior_log_sigma", torch.empty(sigma_shape, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the means, set sigma to its start and the prior to the first prior."""
        start = self.initial_sigma
        with torch.no_grad():
            self.mean.normal_(0.0, self.he_std)
            self.rho.fill_(math.log(start) if self.transform == "exp" else math.log(math.expm1(start)))
            self.prior_mean.zero_()
            self.prior_log_sigma.fill_(math.log(self.first_prior_sigma))

    @property
    def experts(self) -> int:
        """Number of experts M."""
        return self.mean.shape[0]

    def sigma_of(self, rho: Tensor) -> Tensor:
        """Sigma from (a part of) the free parameter rho."""
        return rho.exp() if self.transform == "exp" else nn.functional.softplus(rho)

    @property
    def log_sigma(self) -> Tensor:
        """log sigma, in the shape of `rho`."""
        if self.transform == "exp":
            return self.rho
        # below -30 log softplus(rho) is rho to 14 digits, while softplus itself underflows
        return torch.where(self.rho < -30, self.rho, nn.functional.softplus(self.rho.clamp_min(-30)).log())

    @property
    def sigma(self) -> Tensor:
        """Sigma of every weight, ``[M, *shape]`` (a broadcast view for per-unit sigmas)."""
        sigma = self.sigma_of(self.rho)
        return sigma if self.sigma_kind == "weight" else self.expand_units(sigma).expand_as(self.mean)

    def kl(self) -> Tensor:
        r"""KL[q_m || p_m] in nats for every expert, ``[M]``, summed over the weights:

        .. math:: \sum_i \log\frac{s_i}{\sigma_i} + \frac{\sigma_i^2 + (\mu_i - \nu_i)^2}{2 s_i^2} - \frac12 .

        Written so that it is exactly zero where posterior and prior are the same numbers.
        """
        kl: Tensor
        if self.sigma_kind == "weight":
            kl = _GaussianKL.apply(self.mean, self.log_sigma, self.prior_mean, self.prior_log_sigma)  # type: ignore[no-untyped-call]
            return kl
        ratio = self.log_sigma - self.prior_log_sigma
        weights_per_unit = self.mean[0].numel() / ratio.shape[1]
        spread = weights_per_unit * (torch.expm1(2 * ratio) / 2 - ratio).sum(1)
        shift = (self.mean - self.prior_mean) * self.expand_units(torch.exp(-self.prior_log_sigma))
        return spread + shift.square().flatten(1).sum(1) / 2

    @torch.no_grad()
    def consolidate(self) -> None:
        """Make the posterior the prior of what comes next."""
        self.prior_mean.copy_(self.mean)
        self.prior_log_sigma.copy_(self.log_sigma)


class _GaussianKL(torch.autograd.Function):
    """KL of diagonal Gaussians per expert, with its closed-form gradient.

    d KL / d mu = (mu - nu) / s^2 and d KL / d log sigma = sigma^2 / s^2 - 1: both fall out of the value's own
    intermediates, so the backward pass costs two multiplications instead of a second walk through the graph.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, mean: Tensor, log_sigma: Tensor, prior_mean: Tensor, prior_log_sigma: Tensor) -> Tensor:
        ratio = log_sigma - prior_log_sigma
        excess = torch.expm1(2 * ratio)
        inverse = torch.exp(-prior_log_sigma)
        shift = (mean - prior_mean).mul_(inverse)
        value = (excess / 2).sub_(ratio).addcmul_(shift, shift, value=0.5).flatten(1).sum(1)
        ctx.save_for_backward(shift.mul_(inverse), excess)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        pull, excess = ctx.saved_tensors
        grad = grad.view(-1, *[1] * (pull.dim() - 1))
        return pull * grad, excess * grad, None, None
