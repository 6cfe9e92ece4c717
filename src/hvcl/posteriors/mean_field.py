"""Mean-field Gaussian posteriors, one per expert, each with its own Gaussian prior."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from hvcl.core.errors import InputError
from hvcl.ops import MOST_EXPERTS, usable
from hvcl.ops.border import observed, transformed
from hvcl.ops.diversity import repel
from hvcl.posteriors.collector import Collector

SigmaKind = Literal["weight", "unit"]
"""One sigma per weight, or one per output unit that all weights into the unit share."""

SigmaTransform = Literal["exp", "softplus"]
"""How the free parameter rho becomes sigma: exp(rho), or log(1 + exp(rho))."""

FirstPrior = Literal["zero", "start"]
"""Where the first prior has its mean: at zero, or where the posterior starts."""


class MeanFieldGaussian(nn.Module):
    r"""M independent Gaussians over weights of one shape, and the prior of each.

    Expert m has the posterior :math:`q_m = \prod_i N(\theta_i; \mu_{mi}, \sigma_{mi}^2)` and the prior
    :math:`p_m = \prod_i N(\theta_i; \nu_{mi}, s_{mi}^2)`, which is the posterior after the previous task. Before the first
    task it is :math:`N(0, s^2)` or (``first_prior="start"``) :math:`N(\mu_m, s^2)` with the means that were drawn.

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
        prior_sigma: s of the first prior; None takes the He standard deviation, from which the means are drawn, or with
            ``first_prior="start"`` the posterior's own sigma.
        retention: lambda of generalised VCL (Loo et al., 2021): how many times as firmly as Bayes' rule has it the means are held
            where earlier tasks have taught something. The KL's term of the means is
            :math:`(\mu - \nu)^2 / (2 s^2) \cdot (1 + (\lambda - 1) (1 - s^2 / s_0^2)_+)`, with :math:`s_0` of the first prior:
            lambda multiplies the precision that was gained since, and 1 is the KL itself.
        first_prior: "zero" is a prior in the sense of Bayes, known before the weights were drawn. Its KL at the start is of
            the order of :math:`\log(s / \sigma_0)` nats a weight: with sigmas of a tenth, 1.8. "start" makes it the posterior
            that training begins with: KL zero at the start, and what it costs is what was learned.
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
        first_prior: FirstPrior = "zero",
        retention: float = 1.0,
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
        if not 0 <= retention < math.inf:
            raise InputError(f"retention must be at least 0 and finite, got {retention}")
        self.sigma_kind: SigmaKind = sigma
        self.transform: SigmaTransform = transform
        self.expand_units = expand_units
        self.unit_layout = unit_layout
        self.he_std = math.sqrt(2.0 / fan_in)
        self.initial_sigma = initial_sigma * self.he_std
        self.first_prior: FirstPrior = first_prior
        otherwise = self.he_std if first_prior == "zero" else self.initial_sigma
        self.first_prior_sigma = otherwise if prior_sigma is None else prior_sigma
        self.retention = float(retention)

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        sigma_shape = (experts, *shape) if sigma == "weight" else (experts, units)
        self.mean = nn.Parameter(torch.empty(experts, *shape, **factory))
        self.rho = nn.Parameter(torch.empty(sigma_shape, **factory))
        self.register_buffer("prior_mean", torch.empty(experts, *shape, **factory))
        self.register_buffer("prior_log_sigma", torch.empty(sigma_shape, **factory))
        self.collector = Collector()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the means, set sigma to its start and the prior to the first prior."""
        start = self.initial_sigma
        with torch.no_grad():
            self.mean.normal_(0.0, self.he_std)
            self.rho.fill_(math.log(start) if self.transform == "exp" else math.log(math.expm1(start)))
        self.reset_prior()

    @torch.no_grad()
    def reset_prior(self) -> None:
        """Make the prior the first one again; one at the start is where the means are now."""
        if self.first_prior == "zero":
            self.prior_mean.zero_()
        else:
            self.prior_mean.copy_(self.mean)
        if self.first_prior == "start" and self.first_prior_sigma == self.initial_sigma:
            self.prior_log_sigma.copy_(self.log_sigma)  # the same numbers: a KL of exactly zero
        else:
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
        if observed():
            return log_softplus(self.rho)
        found: Tensor = _LogSoftplus.apply(self.rho)  # type: ignore[no-untyped-call]
        return found

    @property
    def sigma(self) -> Tensor:
        """Sigma of every weight, ``[M, *shape]`` (a broadcast view for per-unit sigmas)."""
        sigma = self.sigma_of(self.rho)
        return sigma if self.sigma_kind == "weight" else self.expand_units(sigma).expand_as(self.mean)

    # -- gradients that bypass autograd ---------------------------------------------------------------------------------

    @property
    def collects(self) -> bool:
        """Whether gradients go to an optimiser directly instead of to `.grad`: while a `hvcl.optim.VariationalAdam` lives.

        Those of a posterior that is frozen, also in part, go to nobody, or as autograd has it.
        """
        return self.collector.owner is not None and torch.is_grad_enabled() and self.learns

    @property
    def learns(self) -> bool:
        """Whether means and sigmas both require a gradient. Looked up where they are: torch's own lookup is slow."""
        own = self._parameters
        return own["mean"].requires_grad and own["rho"].requires_grad  # type: ignore[union-attr]

    @property
    def stepped_together(self) -> tuple[Tensor, ...]:
        """The parameters of which an optimiser that collects gradients steps one expert at a time."""
        return (self.mean, self.rho) if self.sigma_kind == "weight" else (self.mean,)

    @torch.no_grad()
    def pushed(self, experts: list[int]) -> tuple[Tensor, Tensor | None] | None:
        """The diversity's gradient of some experts' means and, for a sigma per weight, rho ``[M, ...]``; None without one.

        Rows of other experts may be anything, and the next call overwrites them all.
        """
        push = self.collector.push
        if push is None or not experts:
            return None
        return self._along(push, self.mean, False, experts), (
            self._along(push, self.rho, True, experts) if self.sigma_kind == "weight" else None
        )

    def _along(self, push: Tensor, values: Tensor, exponentials: bool, experts: list[int]) -> Tensor:
        library = usable(values, push)
        if library is not None and len(values) <= MOST_EXPERTS:
            out = self.collector.room_like(values)
            repel(library, push, values, exponentials, experts, out)
            return out
        flat = (values.exp() if exponentials else values).flatten(1)
        # only differences matter; float32 would see a common shift: identical experts must have no gradient at all
        moved = push @ (flat - flat[:1])
        return (moved * flat if exponentials else moved).view_as(values)

    # -- distance from the prior ------------------------------------------------------------------------------------------

    def kl(self) -> Tensor:
        r"""KL[q_m || p_m] in nats for every expert, ``[M]``, summed over the weights:

        .. math:: \sum_i \log\frac{s_i}{\sigma_i} + \frac{\sigma_i^2 + (\mu_i - \nu_i)^2}{2 s_i^2} - \frac12 ,

        the term of the means as `retention` has it. Written so that it is exactly zero where posterior and prior are the same
        numbers.
        """
        return self._kl_per_weight() if self.sigma_kind == "weight" else self._spread_kl() + self._shift_kl()

    @property
    def first_precision(self) -> float:
        """1 / s^2 of the first prior, and a little more: what float32 rounds is no precision that was gained."""
        return math.exp(-2 * math.log(self.first_prior_sigma)) * (1 + 1e-5)

    def pull(self) -> Tensor:
        """What (mu - nu)^2 / 2 is multiplied with in the KL, shaped as `rho`: the prior's precision, as `retention` has it."""
        precision = torch.exp(-2 * self.prior_log_sigma)
        if self.retention == 1:
            return precision
        return precision + (self.retention - 1) * (precision - self.first_precision).clamp_min(0)

    def weighted_kl(self, weights: Tensor | None) -> Tensor:
        """The experts' KLs, each times its weight ``[M]`` (None: 1), summed.

        Where gradients go to an optimiser directly, the KL's own gradient is not computed: its weight is handed over.
        """
        if not self.collects or transformed():
            kl = self.kl()
            return kl.sum() if weights is None else (weights * kl).sum()
        known, log_sigma = self.known_kl().clone(), None if self.sigma_kind == "weight" else self.log_sigma
        value: Tensor = _CollectedKL.apply(self.collector.anchor, weights, log_sigma, known, self)  # type: ignore[no-untyped-call]
        return value

    def known_kl(self) -> Tensor:
        """The experts' KLs ``[M]`` without a gradient (with a sigma per unit, the means' part), remembered between steps."""
        collector, versions = self.collector, self.kl_versions
        if collector.kl is None or collector.kl_versions != versions:
            with torch.no_grad():
                collector.kl = self._kl_per_weight() if self.sigma_kind == "weight" else self._shift_kl()
            collector.kl_versions = versions
        return collector.kl

    @property
    def kl_versions(self) -> tuple[int, ...]:
        """The versions of what the known KL is computed from. Looked up where they are: torch's own lookup is slow."""
        own, buffers = self._parameters, self._buffers
        tensors = [own["mean"], buffers["prior_mean"], buffers["prior_log_sigma"]]
        if self.sigma_kind == "weight":
            tensors.append(own["rho"])
        return tuple([tensor._version for tensor in tensors])  # type: ignore[union-attr]

    def remember_kl(self, kl: Tensor) -> None:
        """`kl` is the known KL of the weights as they are now."""
        self.collector.kl, self.collector.kl_versions = kl, self.kl_versions

    @torch.no_grad()
    def kl_gradient(self, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient of sum_m w_m KL_m with respect to the means and, for a sigma per weight, rho."""
        pull = self.pull()
        weights = weights.view(-1, *[1] * (self.mean.dim() - 1))
        if self.sigma_kind == "unit":
            return (self.mean - self.prior_mean) * self.expand_units(pull) * weights, None
        excess = torch.expm1(2 * (self.rho - self.prior_log_sigma))
        return (self.mean - self.prior_mean) * pull * weights, excess * weights

    def _kl_per_weight(self) -> Tensor:
        if transformed():
            ratio, shift = self.log_sigma - self.prior_log_sigma, (self.mean - self.prior_mean) * self.pull().sqrt()
            return (torch.expm1(2 * ratio) / 2 - ratio + shift.square() / 2).flatten(1).sum(1)
        kl: Tensor = _GaussianKL.apply(self.mean, self.log_sigma, self.prior_mean, self.prior_log_sigma, self.pull())  # type: ignore[no-untyped-call]
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
        shift = (self.mean - self.prior_mean) * self.expand_units(self.pull().sqrt())
        return shift.square().flatten(1).sum(1) / 2

    @torch.no_grad()
    def consolidate(self, experts: Sequence[int] | None = None) -> None:
        """Make the posterior the prior of what comes next, of all experts or of some."""
        if experts is not None and not all(0 <= expert < self.experts for expert in experts):
            raise InputError(f"there are experts from 0 to {self.experts - 1}, got {list(experts)}")
        for prior, now in ((self.prior_mean, self.mean), (self.prior_log_sigma, self.log_sigma)):
            if experts is None:
                prior.copy_(now)
            else:
                for expert in experts:
                    prior[expert].copy_(now[expert])

    @torch.no_grad()
    def grow(self, like: int | None, copies: int = 1) -> None:
        """One expert more at the end (of every copy's): as a fresh one, or with another's posterior as posterior and prior.

        Parameters and buffers are new tensors: what optimisers collected is forgotten, and they must be made anew.
        """
        fresh = MeanFieldGaussian(
            copies,
            tuple(self.mean.shape[1:]),
            self.rho.shape[1],  # of a sigma per weight it is not used
            self.expand_units,
            2.0 / self.he_std**2,
            sigma=self.sigma_kind,
            initial_sigma=self.initial_sigma / self.he_std,
            prior_sigma=self.first_prior_sigma,
            first_prior=self.first_prior,
            retention=self.retention,
            transform=self.transform,
            device=self.mean.device,
            dtype=self.mean.dtype,
        )
        if like is not None:
            for name in ("mean", "rho"):
                getattr(fresh, name).copy_(getattr(self, name).unflatten(0, (copies, -1))[:, like])
            fresh.consolidate()
        else:
            fresh.reset_prior()
        for name in ("mean", "rho", "prior_mean", "prior_log_sigma"):
            old, new = getattr(self, name), getattr(fresh, name)
            grown = torch.cat([old.unflatten(0, (copies, -1)), new.unsqueeze(1)], 1).flatten(0, 1)
            setattr(self, name, nn.Parameter(grown, requires_grad=old.requires_grad) if name in self._parameters else grown)
        self.collector = Collector()


def log_softplus(rho: Tensor) -> Tensor:
    """log log(1 + exp(rho)); below -30 that is rho to 14 digits, while softplus itself underflows."""
    return torch.where(rho < -30, rho, nn.functional.softplus(rho.clamp_min(-30)).log())


class _LogSoftplus(torch.autograd.Function):
    """`log_softplus` as one node of the graph. With s = softplus(rho), its derivative is (1 - exp(-s)) / s."""

    @staticmethod
    def forward(ctx: FunctionCtx, rho: Tensor) -> Tensor:
        value = log_softplus(rho)
        ctx.save_for_backward(value)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        sigma = value.exp()
        slope = torch.where(sigma > 0, -torch.expm1(-sigma) / sigma, 1.0)
        return grad * slope


class _GaussianKL(torch.autograd.Function):
    """KL of diagonal Gaussians per expert, with its closed-form gradient.

    d KL / d mu = (mu - nu) k with the `pull` k (1 / s^2) and d KL / d log sigma = sigma^2 / s^2 - 1: both fall out of the value's
    own intermediates, so the backward pass costs two multiplications instead of a second walk through the graph.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, mean: Tensor, log_sigma: Tensor, prior_mean: Tensor, prior_log_sigma: Tensor, pull: Tensor
    ) -> Tensor:
        ratio = log_sigma - prior_log_sigma
        excess = torch.expm1(2 * ratio)
        shift = mean - prior_mean
        pulled = shift * pull
        value = (excess / 2).sub_(ratio).addcmul_(shift, pulled, value=0.5).flatten(1).sum(1)
        ctx.save_for_backward(pulled, excess)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        pulled, excess = ctx.saved_tensors
        grad = grad.view(-1, *[1] * (pulled.dim() - 1))
        return pulled * grad, excess * grad, None, None, None


class _CollectedKL(torch.autograd.Function):
    """sum_m w_m KL_m with the KLs known (but for the few sigmas per unit): one node, its gradient kept as weights of the KLs.

    `log_sigma` is given for a sigma per unit, whose gradient is autograd's.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, weights: Tensor | None, log_sigma: Tensor | None, known: Tensor, posterior: MeanFieldGaussian
    ) -> Tensor:
        excess = None
        if log_sigma is not None:
            ratio = log_sigma - posterior.prior_log_sigma
            excess = torch.expm1(2 * ratio)
            known = known + torch.sub(excess, ratio, alpha=2).sum(1).mul_(posterior.weights_per_unit / 2)
        ctx.save_for_backward(weights, known, excess)
        ctx.posterior = posterior
        return known.sum() if weights is None else torch.dot(weights, known)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, known, excess = ctx.saved_tensors
        posterior: MeanFieldGaussian = ctx.posterior
        spread = grad.expand(len(known)) if weights is None else grad * weights
        posterior.collector.offer_kl_weights(spread)
        of_sigma = None if excess is None else excess * (posterior.weights_per_unit * spread).unsqueeze(1)
        return grad.new_zeros(()), None if weights is None else grad * known, of_sigma, None, None
