"""The mixture-of-variational-experts (MoVE) layer, for any linear operator."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor, nn

from hvcl.errors import InputError
from hvcl.gates import SoftmaxGate
from hvcl.gates.fused import fused_gate
from hvcl.kernels import load_kernels
from hvcl.layers.dispatch import Plan, Routing, Segment, route, sorted_plan
from hvcl.layers.diversity import deferred_log_determinant, known_distances, log_determinant, median_width, squared_distances
from hvcl.layers.fused import local_unit_noise
from hvcl.layers.module import VariationalModule
from hvcl.layers.noise import random_signs, standard_normal
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.mean_field import SigmaKind, SigmaTransform

Estimator = Literal["flipout", "local", "draws", "mean"]
Usage = Literal["gate", "uniform"]

CHUNKS = 2
"""Weight draws of each expert per batch for the estimator "draws"."""

TINY = 1e-20
"""Under the square root of a variance: an all-zero input has no noise, and its gradient must be 0, not 0 * inf."""


class MoVEOptions(TypedDict, total=False):
    """The keyword options that every MoVE layer takes beside `experts` and the arguments of its torch.nn counterpart.

    `experts` is M, the number of experts (default 2). With one expert there is no gate: a plain variational layer.
    """

    top_k: int
    """Experts evaluated per example (default 1)."""
    estimator: Estimator
    """How weight noise is drawn: "flipout" (default), "local" reparameterisation, a few "draws" a batch, "mean" (no noise)."""
    sigma: SigmaKind
    """One sigma per "weight" (default) or per output "unit"."""
    routing: Routing
    """The most probable experts ("argmax", default), or experts drawn from the gate in training ("sample")."""
    usage: Usage
    """Weight of an expert's KL: the batch's mean "gate" mass on it (default), or 1 for every expert ("uniform")."""
    initial_sigma: float
    """Posterior sigma at the start, as a fraction of the He standard deviation (default 0.1)."""
    prior_sigma: float | None
    """Standard deviation of the first prior N(0, s^2); None (default): the He standard deviation."""
    sigma_transform: SigmaTransform
    """sigma = "exp"(rho) (default) or "softplus"(rho)."""
    kernel_width: float | None
    """Width h of the diversity kernel; None (default): median heuristic, frozen until the next `consolidate`."""
    device: torch.device | str | None
    dtype: torch.dtype | None


class _Trace:
    """What the last forward pass left behind for the loss terms. Copies and pickles of a layer start without one."""

    log_probabilities: Tensor | None = None
    features: Tensor | None = None
    usage: Tensor | None = None
    statistics: tuple[Tensor, Tensor, Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Trace:
        return _Trace()

    def __reduce__(self) -> tuple[type[_Trace], tuple[()]]:
        return _Trace, ()


class MoVELayer(VariationalModule):
    r"""M experts of one shape, each with a Gaussian posterior over its weights, and a gate on the layer's own input.

    .. math::
        y = \sum_{m \in \text{top-}k(x)} w_m(x) \, \big(A(x; \theta_m) + b_m\big), \qquad
        \theta_m \sim q_m = N(\mu_m, \sigma_m^2)

    with A the layer's linear operator (a matrix product, a convolution, a transposed convolution), deterministic biases b,
    and mixture weights w from the gate p(m|x) (see `hvcl.layers.dispatch.route`). Training draws one posterior sample per
    forward pass; evaluation uses the posterior means, or samples within `hvcl.layers.sampling(module)`.

    Weight noise, with E the same standard normal draw for all experts (each expert's marginal is exact):

    - ``flipout``: :math:`A(x; \mu_m) + A(x \circ s; \sigma_m \circ E) \circ r` with random signs s, r per example, which
      decorrelate the examples (Wen et al., 2018);
    - ``local``: :math:`A(x; \mu_m) + \sqrt{A(x^2; \sigma_m^2)} \circ \epsilon`, noise on the outputs (Kingma et al., 2015).
      Output marginals are exact; in convolutions the outputs at different places are drawn independently;
    - ``draws``: :math:`A(x; \mu_m + \sigma_m \circ E_c)`, each expert's examples in two chunks with a draw of their own.
      One operator call where flipout needs two, which pays in convolutions; examples of a chunk share their noise;
    - ``mean``: no noise.

    After a forward pass `terms()` gives, each a scalar:

    - ``expert_kl``: :math:`\sum_m u_m KL[q_m \| p_m]` in nats, u the gate's mean mass on m in the batch (not detached) or 1;
    - ``gate_kl``: mean over the batch of :math:`KL[p(m|x) \| p_{prior}(m|x)]`, the prior gate on the same input;
    - ``conditional_entropy`` H(M|X) and ``marginal_entropy`` H(M) of the batch, in nats;
    - ``diversity``: log det(K + jitter I) of the experts' Wasserstein-2 kernel matrix.
    """

    kernel_width: Tensor

    def __init__(
        self,
        *,
        weight_shape: tuple[int, ...],
        units: int,
        expand_units: Callable[[Tensor], Tensor],
        unit_layout: tuple[int, int, int] | None,
        fan_in: float,
        gate_features: int,
        bias: bool,
        experts: int = 2,
        top_k: int = 1,
        estimator: Estimator = "flipout",
        sigma: SigmaKind = "weight",
        routing: Routing = "argmax",
        usage: Usage = "gate",
        initial_sigma: float = 0.1,
        prior_sigma: float | None = None,
        sigma_transform: SigmaTransform = "exp",
        kernel_width: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _require_positive(experts=experts)
        if not 1 <= top_k <= experts:
            raise InputError(f"top_k must lie between 1 and the number of experts ({experts}), got {top_k}")
        _require_choice("estimator", estimator, Estimator)
        _require_choice("sigma", sigma, SigmaKind)
        _require_choice("routing", routing, Routing)
        _require_choice("usage", usage, Usage)
        _require_choice("sigma_transform", sigma_transform, SigmaTransform)
        if kernel_width is not None and not kernel_width > 0:
            raise InputError(f"kernel_width must be positive or None (median heuristic), got {kernel_width}")
        self.experts = experts
        self.top_k = top_k
        self.estimator: Estimator = estimator
        self.routing: Routing = routing
        self.usage: Usage = usage
        self.units = units
        self.fixed_width = kernel_width
        self.posterior = MeanFieldGaussian(
            experts,
            weight_shape,
            units,
            expand_units,
            fan_in,
            sigma=sigma,
            initial_sigma=initial_sigma,
            prior_sigma=prior_sigma,
            transform=sigma_transform,
            unit_layout=unit_layout,
            device=device,
            dtype=dtype,
        )
        self.bias = nn.Parameter(torch.zeros(experts, units, device=device, dtype=dtype)) if bias else None
        self.gate = SoftmaxGate(gate_features, experts, device, dtype) if experts > 1 else None
        self.register_buffer("kernel_width", torch.tensor(kernel_width or 0.0, device=device, dtype=dtype))
        self._trace = _Trace()

    # -- what a kind of layer has to say ------------------------------------------------------------------------------

    @abstractmethod
    def _operator(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A(x; weight) + bias for one expert."""

    @abstractmethod
    def _norm(self, x: Tensor) -> Tensor:
        """Square root of A(x^2; 1): what a shared unit sigma is multiplied with; broadcasts against the output."""

    @property
    def _one_norm(self) -> bool:
        """Whether `_norm` is the same for all output channels."""
        return True

    @abstractmethod
    def _gate_input(self, x: Tensor) -> Tensor:
        """What the gate reads, ``[B, gate_features]``."""

    @abstractmethod
    def _per_channel(self, values: Tensor, like: Tensor) -> Tensor:
        """View ``[B or 1, channels]`` so that it broadcasts against a batch of inputs or outputs like `like`."""

    # -- forward ------------------------------------------------------------------------------------------------------

    def _check_type(self, x: Tensor) -> None:
        """Raise `InputError` for numbers of a type that the layer cannot compute with."""
        own = self.posterior.mean.dtype
        if own == torch.float16 and self.training and torch.is_grad_enabled():
            raise InputError(
                "variances and KLs underflow in float16: train in float32 (within torch.autocast, if you like), "
                "and use .half() for predictions alone"
            )
        if x.dtype != own and not torch.is_autocast_enabled(x.device.type):
            raise InputError(f"the layer's weights are {own} and its input is {x.dtype}: convert the input with x.to({own})")

    def _mixture(self, x: Tensor) -> Tensor:
        """The layer's answer to a batch ``[B, ...]``."""
        if self.gate is None:
            self._trace = _Trace()
            return self._experts(x, [Segment(0, 0, len(x))])
        plan = self._arrange(self._route(self.gate, self._gate_input(x)), len(x))
        if not plan.segments:  # an empty batch: any expert gives the right empty shape
            return self._experts(x, [Segment(0, 0, 0)])
        return plan.combine(self._experts(plan.gather(x), plan.segments))

    def _route(self, gate: SoftmaxGate, features: Tensor) -> Plan:
        """Ask the gate, remember its answer for the terms, and lay out the experts' work."""
        trace = self._trace = _Trace()
        usual = self.top_k == 1 and self.routing == "argmax" and len(features) > 0
        kernels = load_kernels(features) if usual and gate.weight.dtype == features.dtype else None
        if kernels is None:
            trace.features, trace.log_probabilities = features, gate(features)
            return route(trace.log_probabilities, self.top_k, self.routing, self.training)
        batch = fused_gate(gate, features, kernels)
        trace.log_probabilities, trace.usage, trace.statistics = batch.log_probabilities, batch.usage, batch.statistics
        return sorted_plan(batch.counts, batch.weights, batch.rows, batch.slots)

    def _arrange(self, plan: Plan, batch: int) -> Plan:
        """What a kind of layer makes of a plan before it gets to work."""
        return plan

    def _experts(self, x: Tensor, segments: list[Segment]) -> Tensor:
        """Every segment's rows through its expert, in order."""
        if self.estimator == "draws" and self.is_sampling:
            return self._draws(x, segments)
        experts = [segment.expert for segment in segments]
        biases = self.bias.unbind(0) if self.bias is not None else (None,) * self.experts
        parts = zip(segments, self.posterior.means_of(experts), strict=True)
        answer = _join([self._operator(x[a:b], mean, biases[m]) for (m, a, b), mean in parts])
        if self.estimator == "mean" or not self.is_sampling:
            return answer
        if self.estimator == "local" and self.posterior.sigma_kind == "unit" and self._one_norm and len(x):
            kernels = load_kernels(answer)
            if kernels is not None:
                sigma = self.posterior.sigma_of(self.posterior.rho)
                return local_unit_noise(answer, self._norm(x), sigma, segments, kernels)
        noise = self._flipout_noise if self.estimator == "flipout" else self._local_noise
        return answer + noise(x, segments, answer)

    def _draws(self, x: Tensor, segments: list[Segment]) -> Tensor:
        """Every segment's rows in a few chunks, each through a draw of the expert's weights."""
        biases = self.bias.unbind(0) if self.bias is not None else (None,) * self.experts
        chunks = [Segment(m, *ends) for m, a, b in segments for ends in _chunks(a, b)]
        weights = self.posterior.draws_of([chunk.expert for chunk in chunks])
        parts = zip(chunks, weights, strict=True)
        return _join([self._operator(x[a:b], weight, biases[m]) for (m, a, b), weight in parts])

    def _flipout_noise(self, x: Tensor, segments: list[Segment], answer: Tensor) -> Tensor:
        posterior = self.posterior
        shared = standard_normal(posterior.mean[0])
        signs_in = random_signs(len(x), x.shape[1], x)
        signs_out = self._per_channel(random_signs(len(x), self.units, x), answer)
        flipped = x * self._per_channel(signs_in, x)
        if posterior.sigma_kind == "weight":
            noise = posterior.noise_of([segment.expert for segment in segments], shared)
            return self._each(flipped, segments, noise) * signs_out
        # one draw for all experts and sigma on the output: a single operator call for the whole batch
        return self._operator(flipped, shared, None) * self._unit_sigma(segments, answer) * signs_out

    def _local_noise(self, x: Tensor, segments: list[Segment], answer: Tensor) -> Tensor:
        posterior = self.posterior
        if posterior.sigma_kind == "unit":
            return standard_normal(answer) * self._norm(x) * self._unit_sigma(segments, answer)
        variances = posterior.variances_of([segment.expert for segment in segments])
        return standard_normal(answer) * (self._each(x.square(), segments, variances) + TINY).sqrt()

    def _each(self, x: Tensor, segments: list[Segment], weights: list[Tensor]) -> Tensor:
        """Every segment's rows through its weights, without bias."""
        parts = zip(segments, weights, strict=True)
        return _join([self._operator(x[a:b], weight, None) for (_, a, b), weight in parts])

    def _unit_sigma(self, segments: list[Segment], answer: Tensor) -> Tensor:
        """Per-unit sigma of every row's expert, broadcasting against the answer."""
        sigma = self.posterior.sigma_of(self.posterior.rho).unbind(0)
        rows = [sigma[m].unsqueeze(0).expand(b - a, -1) for m, a, b in segments]
        return self._per_channel(sigma[segments[0].expert].unsqueeze(0) if len(segments) == 1 else _join(rows), answer)

    # -- the objective's terms ----------------------------------------------------------------------------------------

    def terms(self) -> dict[str, Callable[[], Tensor]]:
        """See the class: expert_kl, gate_kl, conditional_entropy, marginal_entropy, diversity; of a single expert the first."""
        if self.gate is None:  # nothing to choose, nothing to tell apart
            return {"expert_kl": self.expert_kl}
        return {
            "expert_kl": self.expert_kl,
            "gate_kl": self.gate_kl,
            "conditional_entropy": self.conditional_entropy,
            "marginal_entropy": self.marginal_entropy,
            "diversity": self.diversity,
        }

    @property
    def gate_log_probabilities(self) -> Tensor | None:
        """log p(m|x) of the last forward pass, ``[B, M]``, to look at; None for a layer with one expert, which has no gate.

        Where the gate runs compiled it carries no gradient: what is to be learned from goes through `terms()`.
        """
        if self.gate is None:
            return None
        log_probabilities = self._trace.log_probabilities
        if log_probabilities is None:
            raise InputError("this MoVE layer has not seen a batch yet: run a forward pass before asking for its terms")
        if len(log_probabilities) == 0:
            raise InputError("the last batch of this MoVE layer was empty: its terms are means over no examples")
        return log_probabilities

    def expert_kl(self) -> Tensor:
        r""":math:`\sum_m u_m KL[q_m \| p_m]` in nats, summed over weights."""
        if self.usage == "uniform" or self.gate is None:
            return self.posterior.weighted_kl(None)
        log_probabilities = self.gate_log_probabilities
        assert log_probabilities is not None
        usage = self._trace.usage
        return self.posterior.weighted_kl(log_probabilities.exp().mean(0) if usage is None else usage)

    def gate_kl(self) -> Tensor:
        """Mean over the batch of KL[p(m|x) || prior p(m|x)] in nats."""
        log_probabilities = self.gate_log_probabilities
        if log_probabilities is None or self.gate is None:
            return self._zero()
        if self._trace.statistics is not None:
            return self._trace.statistics[0]
        assert self._trace.features is not None
        prior = self.gate.prior(self._trace.features)
        return (log_probabilities.exp() * (log_probabilities - prior)).sum(1).mean()

    def conditional_entropy(self) -> Tensor:
        """H(M|X) of the batch in nats: low when every input is sure of its expert."""
        log_probabilities = self.gate_log_probabilities
        if log_probabilities is None:
            return self._zero()
        if self._trace.statistics is not None:
            return self._trace.statistics[1]
        return -(log_probabilities.exp() * log_probabilities).sum(1).mean()

    def marginal_entropy(self) -> Tensor:
        """H(M) of the batch in nats: low when few experts are used."""
        log_probabilities = self.gate_log_probabilities
        if log_probabilities is None:
            return self._zero()
        if self._trace.statistics is not None:
            return self._trace.statistics[2]
        # at a mass of exactly zero the derivative is infinite, and 0 * inf not a number
        mass = log_probabilities.exp().mean(0).clamp_min(torch.finfo(log_probabilities.dtype).tiny)
        contributions: Tensor = torch.special.entr(mass)
        return contributions.sum()

    def diversity(self) -> Tensor:
        """log det(K + jitter I) of the experts' Wasserstein-2 kernel; 0 for a single expert."""
        if self.experts == 1:
            return self._zero()
        posterior = self.posterior
        repeats = 1.0 if posterior.sigma_kind == "weight" else posterior.mean[0].numel() / self.units
        distances = known_distances(posterior, repeats) if posterior.collects else None
        sigma = None if distances is not None else posterior.sigma_of(posterior.rho)
        if distances is None:
            assert sigma is not None
            distances = squared_distances(posterior.mean, sigma, repeats)
        if self.kernel_width == 0:  # not yet frozen for this task
            self.kernel_width.copy_(median_width(distances))
        if sigma is None:
            return deferred_log_determinant(posterior, repeats, distances, self.kernel_width)
        return log_determinant(posterior.mean, sigma, repeats, distances, self.kernel_width)

    def consolidate(self) -> None:
        """Posterior and gate become the priors; the diversity kernel's width is measured anew."""
        self.posterior.consolidate()
        if self.gate is not None:
            self.gate.consolidate()
        self.kernel_width.fill_(self.fixed_width or 0.0)

    def reset_parameters(self) -> None:
        """Start anew: fresh posteriors, first priors, a fresh gate."""
        self.posterior.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.gate is not None:
            self.gate.reset_parameters()
        self.kernel_width.fill_(self.fixed_width or 0.0)
        self._trace = _Trace()

    def _zero(self) -> Tensor:
        return self.posterior.mean.new_zeros(())

    def _options_repr(self) -> str:
        return (
            f"experts={self.experts}, top_k={self.top_k}, estimator={self.estimator!r}, "
            f"sigma={self.posterior.sigma_kind!r}, routing={self.routing!r}"
        )


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    """`start` to `stop` in up to `CHUNKS` nearly equal parts; an empty range is one empty part."""
    count = max(1, min(CHUNKS, stop - start))
    ends = [start + (stop - start) * i // count for i in range(count + 1)]
    return list(itertools.pairwise(ends))


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or value < 1:
            raise InputError(f"{name} must be a whole number, at least 1, got {value}")


def _require_choice(name: str, value: str, kind: Any) -> None:
    choices = get_args(kind)
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
