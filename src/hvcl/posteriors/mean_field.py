"""Mean-field Gaussian posteriors, one per expert, each with its own Gaussian prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from hvcl.errors import InputError
from hvcl.kernels import load_kernels
from hvcl.posteriors.deferral import Deferral

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
        unit_layout: (outer, units, inner) if one expert's weights, seen so, have their output unit in the middle.
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
        unit_layout: tuple[int, int, int] | None = None,
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
        self.unit_layout = unit_layout
        self.he_std = math.sqrt(2.0 / fan_in)
        self.initial_sigma = initial_sigma * self.he_std
        self.first_prior_sigma = self.he_std if prior_sigma is None else prior_sigma

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        sigma_shape = (experts, *shape) if sigma == "weight" else (experts, units)
        self.mean = nn.Parameter(torch.empty(experts, *shape, **factory))
        self.rho = nn.Parameter(torch.empty(sigma_shape, **factory))
        self.register_buffer("prior_mean", torch.empty(experts, *shape, **factory))
        self.register_buffer("prior_log_sigma", torch.empty(sigma_shape, **factory))
        self.deferral = Deferral()
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

    # -- one expert's weights, for the forward pass ---------------------------------------------------------------------

    @property
    def collects(self) -> bool:
        """Whether gradients go to an optimiser directly, expert by expert, instead of to `.grad`."""
        return self.deferral.active and torch.is_grad_enabled()

    def means_of(self, experts: list[int]) -> list[Tensor]:
        """The means of some experts."""
        if self.collects:
            stacked = self.mean.detach()
            return [self.deferral.leaf(m, "mean", stacked[m]) for m in experts]
        every = self.mean.unbind(0)  # unlike mean[m], unbind gives one dense gradient for all of them
        return [every[m] for m in experts]

    @torch.no_grad()
    def scaled_noise(self, expert: int, shared: Tensor) -> Tensor:
        """sigma * shared of one expert, without a gradient."""
        rho = self.rho[expert]
        kernels = load_kernels(rho) if self.transform == "exp" else None
        return self.sigma_of(rho) * shared if kernels is None else kernels.scale_noise(rho, shared)

    def noise_of(self, experts: list[int], shared: Tensor) -> list[Tensor]:
        """sigma * shared of some experts: their share of a standard normal draw. Only for ``sigma="weight"``."""
        if self.collects:
            return [self.deferral.leaf(m, "noise", self.scaled_noise(m, shared), shared) for m in experts]
        every = self.rho.unbind(0)
        return [self.sigma_of(every[m]) * shared for m in experts]

    def variances_of(self, experts: list[int]) -> list[Tensor]:
        """sigma^2 of some experts. Only for ``sigma="weight"``."""
        if self.collects:
            rho = self.rho.detach()
            return [self.deferral.leaf(m, "variance", self.sigma_of(rho[m]).square()) for m in experts]
        every = self.rho.unbind(0)
        return [self.sigma_of(every[m]).square() for m in experts]

    @property
    def stepped_together(self) -> tuple[Tensor, ...]:
        """The parameters of which an optimiser that collects gradients steps one expert at a time."""
        return (self.mean, self.rho) if self.sigma_kind == "weight" else (self.mean,)

    @torch.no_grad()
    def push_on(self, experts: list[int]) -> tuple[Tensor | None, Tensor | None]:
        """The diversity's gradient of some experts' means and, for a sigma per weight, rho; None where there is none."""
        push = self.deferral.push
        if push is None or not experts:
            return None, None
        kernels = load_kernels(self.mean)

        def along(values: Tensor, exponentials: bool) -> Tensor:
            if kernels is not None:
                return kernels.repel(push, values, exponentials, experts)
            flat = (values.exp() if exponentials else values).flatten(1)
            # only differences matter; float32 would see a common shift: identical experts must have no gradient at all
            moved = push[experts] @ (flat - flat[:1])
            return (moved * flat[experts] if exponentials else moved).view(-1, *values.shape[1:])

        return along(self.mean, False), along(self.rho, True) if self.sigma_kind == "weight" else None

    def draws_of(self, experts: list[int]) -> list[Tensor]:
        """An independent draw of the weights for every expert named (one may be named several times)."""
        means = self.means_of(experts)
        shared = [torch.randn_like(mean) for mean in means]
        if self.sigma_kind == "unit":
            sigma = self.expand_units(self.sigma_of(self.rho)).unbind(0)
            return [mean + sigma[m] * noise for m, mean, noise in zip(experts, means, shared, strict=True)]
        noises = [self.noise_of([m], noise)[0] for m, noise in zip(experts, shared, strict=True)]
        return [mean + noise for mean, noise in zip(means, noises, strict=True)]

    # -- distance from the prior ------------------------------------------------------------------------------------------

    def kl(self) -> Tensor:
        r"""KL[q_m || p_m] in nats for every expert, ``[M]``, summed over the weights:

        .. math:: \sum_i \log\frac{s_i}{\sigma_i} + \frac{\sigma_i^2 + (\mu_i - \nu_i)^2}{2 s_i^2} - \frac12 .

        Written so that it is exactly zero where posterior and prior are the same numbers.
        """
        return self._kl_per_weight() if self.sigma_kind == "weight" else self._spread_kl() + self._shift_kl()

    def weighted_kl(self, weights: Tensor | None) -> Tensor:
        """The experts' KLs, each times its weight ``[M]`` (None: 1), summed.

        Where gradients go to an optimiser directly, the KL's own gradient is not computed: its weight is handed over.
        """
        if not self.collects:
            kl = self.kl()
            return kl.sum() if weights is None else (weights * kl).sum()
        if self.sigma_kind == "weight":
            known, leaf = self._current_kl(self._kl_per_weight, self.rho, self.prior_log_sigma), self.deferral.anchor(self.mean)
        else:
            known, leaf = self._current_kl(self._shift_kl, self.prior_log_sigma), self.rho
        value: Tensor = _DeferredKL.apply(weights, leaf, known, self)  # type: ignore[no-untyped-call]
        return value

    def _kl_per_weight(self) -> Tensor:
        kl: Tensor = _GaussianKL.apply(self.mean, self.log_sigma, self.prior_mean, self.prior_log_sigma)  # type: ignore[no-untyped-call]
        return kl

    def _spread_kl(self) -> Tensor:
        """Per-unit sigma: the part of the KL that is about sigma."""
        ratio = self.log_sigma - self.prior_log_sigma
        return self.weights_per_unit * (torch.expm1(2 * ratio) / 2 - ratio).sum(1)

    @property
    def weights_per_unit(self) -> float:
        """How many weights share a per-unit sigma."""
        return self.mean.numel() / self.rho.numel()

    def _shift_kl(self) -> Tensor:
        """Per-unit sigma: the part of the KL that is about the means."""
        shift = (self.mean - self.prior_mean) * self.expand_units(torch.exp(-self.prior_log_sigma))
        return shift.square().flatten(1).sum(1) / 2

    @torch.no_grad()
    def _current_kl(self, compute: Callable[[], Tensor], *depends: Tensor) -> Tensor:
        """A KL without gradient; computed only when something that it depends on has changed."""
        kl = self.deferral.recall_kl(self.mean, self.prior_mean, *depends)
        if kl is None:
            kl = compute()
            self.deferral.remember_kl(kl, self.mean, self.prior_mean, *depends)
        return kl

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


class _DeferredKL(torch.autograd.Function):
    """sum_m w_m KL_m with the KLs known (but for the few sigmas per unit): one node, its gradient kept as weights of the KLs.

    `leaf` is what asks for the backward pass: rho for a sigma per unit, of which it is the gradient, else an anchor.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor | None, leaf: Tensor, known: Tensor, posterior: MeanFieldGaussian) -> Tensor:
        excess = None
        if posterior.sigma_kind == "unit":
            ratio = leaf - posterior.prior_log_sigma
            excess = torch.expm1(2 * ratio)
            known = known + torch.sub(excess, ratio, alpha=2).sum(1).mul_(posterior.weights_per_unit / 2)
        ctx.save_for_backward(weights, known, excess)
        ctx.posterior = posterior
        return known.sum() if weights is None else torch.dot(weights, known)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weights, known, excess = ctx.saved_tensors
        posterior: MeanFieldGaussian = ctx.posterior
        spread = grad.expand(len(known)) if weights is None else grad * weights
        posterior.deferral.keep_kl_weights(spread)
        of_rho = None if excess is None else excess * (posterior.weights_per_unit * spread).unsqueeze(1)
        return None if weights is None else grad * known, of_rho, None, None
