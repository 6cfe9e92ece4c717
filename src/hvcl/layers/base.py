"""The mixture-of-variational-experts (MoVE) layer, for any linear operator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.gates import PathGate, SoftmaxGate
from hvcl.layers.dispatch import Plan, Routing, Segment, route
from hvcl.layers.diversity import diversity
from hvcl.layers.module import VariationalModule
from hvcl.layers.noise import random_signs
from hvcl.layers.options import Estimator, GateKind, Usage, require_choice, require_positive
from hvcl.layers.trace import Trace
from hvcl.ops import NOISES
from hvcl.ops.border import observed
from hvcl.ops.random import standard_normal
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.mean_field import FirstPrior, SigmaKind, SigmaTransform

TINY = 1e-20
"""Under the square root of a variance: an all-zero input has no noise, and its gradient must be 0, not 0 * inf."""


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
    - ``mean``: no noise.

    After a forward pass `terms()` gives, each a scalar:

    - ``expert_kl``: :math:`\sum_m u_m KL[q_m \| p_m]` in nats, u the gate's mean mass on m in the batch (not detached) or 1;
    - ``gate_kl``: mean over the batch of :math:`KL[p(m|x) \| p_{prior}(m|x)]`, the prior gate on the same input;
    - ``conditional_entropy`` H(M|X) and ``marginal_entropy`` H(M) of the batch, in nats;
    - ``diversity``: log det(K + jitter I) of the experts' Wasserstein-2 kernel matrix.

    With C > 1 `copies` there are C layers of one shape side by side, each with a gate and M experts of its own (expert m of
    copy c is number c * M + m), and terms are summed over the copies.

    Which experts there are may change (`add_expert`), and who chooses among them, too: the gate of the layer, or
    (``gate="path"``) one choice for all layers of a network, which it is told within `hvcl.layers.follow(network, path)`.

    A layer that is used several times in one forward pass pays its gate terms for the last use; one network may be trained by one
    thread at a time. There are no gradients of gradients: autograd refuses them with an error.

    Float32 on the CPU runs compiled (`hvcl.ops`), with the plain operations here as reference and for everything else.
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
        copies: int = 1,
        top_k: int = 1,
        estimator: Estimator = "flipout",
        sigma: SigmaKind = "weight",
        routing: Routing = "argmax",
        usage: Usage = "gate",
        initial_sigma: float = 0.1,
        prior_sigma: float | None = None,
        first_prior: FirstPrior = "zero",
        retention: float = 1.0,
        gate: GateKind = "softmax",
        gate_grid: int = 1,
        context: int = 0,
        sigma_transform: SigmaTransform = "exp",
        kernel_width: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive(experts=experts, copies=copies, top_k=top_k)
        if top_k > experts:
            raise InputError(f"top_k must lie between 1 and the number of experts ({experts}), got {top_k}")
        require_choice("estimator", estimator, Estimator)
        require_choice("sigma", sigma, SigmaKind)
        require_choice("routing", routing, Routing)
        require_choice("usage", usage, Usage)
        require_choice("sigma_transform", sigma_transform, SigmaTransform)
        require_choice("first_prior", first_prior, FirstPrior)
        require_choice("gate", gate, GateKind)
        require_positive(gate_grid=gate_grid)
        if isinstance(context, bool) or not isinstance(context, int) or context < 0:
            raise InputError(f"context must be a whole number, at least 0, got {context}")
        if gate == "path" and (top_k > 1 or context):
            raise InputError("a layer that is told its path uses one expert, and its gate reads nothing: leave top_k and context")
        if kernel_width is not None and not kernel_width > 0:
            raise InputError(f"kernel_width must be positive or None (median heuristic), got {kernel_width}")
        self.experts, self.copies, self.top_k, self.units = experts, copies, top_k, units
        self.estimator: Estimator = estimator
        self.routing: Routing = routing
        self.usage: Usage = usage
        self.gate_kind: GateKind = gate
        self.gate_grid, self.context = gate_grid, context
        self.fixed_width = kernel_width
        self.posterior = MeanFieldGaussian(
            copies * experts,
            weight_shape,
            units,
            expand_units,
            fan_in,
            sigma=sigma,
            initial_sigma=initial_sigma,
            prior_sigma=prior_sigma,
            first_prior=first_prior,
            retention=retention,
            transform=sigma_transform,
            unit_layout=unit_layout,
            device=device,
            dtype=dtype,
        )
        self.bias = nn.Parameter(torch.zeros(copies * experts, units, device=device, dtype=dtype)) if bias else None
        self._gate_features = gate_features + context
        self.gate = self._new_gate(experts, device, dtype)
        self.register_buffer("kernel_width", torch.full((copies,), kernel_width or 0.0, device=device, dtype=dtype))
        self._trace = Trace()

    def _new_gate(
        self, experts: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> SoftmaxGate | PathGate | None:
        if experts == 1:
            return None
        if self.gate_kind == "path":
            return PathGate(experts, self.copies, device, dtype)
        return SoftmaxGate(self._gate_features, experts, self.copies, device, dtype)

    # -- what a kind of layer has to say ------------------------------------------------------------------------------

    @abstractmethod
    def _operator(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A(x; weight) + bias for one expert."""

    @abstractmethod
    def _norm(self, x: Tensor) -> Tensor:
        """Square root of A(x^2; 1): what a shared unit sigma is multiplied with; broadcasts against the output."""

    @abstractmethod
    def _gate_input(self, x: Tensor) -> Tensor:
        """What the gate reads, ``[B, gate_features]``."""

    @abstractmethod
    def _per_channel(self, values: Tensor, like: Tensor) -> Tensor:
        """View ``[B or 1, channels]`` so that it broadcasts against a batch of inputs or outputs like `like`."""

    def _arrange(self, plan: Plan, batch: int) -> Plan:
        """What a kind of layer makes of a plan before it gets to work."""
        return plan

    # -- forward ------------------------------------------------------------------------------------------------------

    @property
    def noise(self) -> int:
        """The kind of noise of the next pass, as compiled code numbers them; 0 for none."""
        return NOISES[self.estimator, self.posterior.sigma_kind] if self.is_sampling else 0

    @property
    def routes_randomly(self) -> bool:
        """Whether experts are drawn in the next pass."""
        return self.routing == "sample" and self.training and self.experts > 1 and self.gate_kind == "softmax"

    def _asked(self, x: Tensor) -> Tensor:
        """All that the gate reads of a batch ``[C * B, ...]``: the layer's input, context, or the path; ``[C * B, n]``."""
        told = self.__dict__
        if self.gate_kind == "path":
            return self._choices(told.get("_path"), x)
        seen = self._gate_input(x)
        if not self.context:
            return seen
        context = told.get("_context")
        if context is None:
            raise InputError("the gate of this layer reads the network's input: put the network into hvcl.layers.WithContext")
        if context.shape != (len(x) // self.copies, self.context) or context.dtype != seen.dtype:
            wanted, found = (len(x) // self.copies, self.context), tuple(context.shape)
            raise InputError(f"the gate expects a context of {seen.dtype} and shape {wanted}, got {context.dtype} and {found}")
        return torch.cat([seen, context.repeat(self.copies, 1)], 1)

    def _choices(self, path: int | Tensor | None, x: Tensor) -> Tensor:
        """The path of every row, one-hot ``[C * B, M]``."""
        rows = len(x) // self.copies
        if path is None:
            raise InputError("the experts of this layer are chosen from outside: run it within hvcl.layers.follow(network, path)")
        if isinstance(path, Tensor) and path.shape != (rows,):
            raise InputError(f"a path is one number for each of the {rows} examples, got a tensor of shape {tuple(path.shape)}")
        chosen = torch.zeros(rows, self.experts, device=x.device, dtype=self.posterior.mean.dtype)
        if isinstance(path, Tensor):
            chosen.scatter_(1, path.to(x.device).view(-1, 1), 1.0)
        else:
            chosen[:, path] = 1.0
        return chosen.repeat(self.copies, 1)

    def _check_type(self, x: Tensor) -> None:
        """Raise `InputError` for numbers of a type that the layer cannot compute with."""
        own = self._modules["posterior"]._parameters["mean"].dtype  # type: ignore[union-attr]
        if own is x.dtype and own is not torch.float16:
            return
        if own is torch.float16 and self.training and torch.is_grad_enabled():
            raise InputError(
                "variances and KLs underflow in float16: train in float32 (within torch.autocast, if you like), "
                "and use .half() for predictions alone"
            )
        if x.dtype is not own and not torch.is_autocast_enabled(x.device.type):
            raise InputError(f"the layer's weights are {own} and its input is {x.dtype}: convert the input with x.to({own})")

    def _plain(self, x: Tensor) -> Tensor:
        """The layer's answer to a batch ``[C * B, ...]``, copy after copy, in plain operations."""
        if self.gate is None:
            self._trace = Trace()
            each = x.shape[0] // self.copies  # not len(x), which torch.jit.trace takes for a constant
            return self._experts(x, [Segment(copy, copy * each, (copy + 1) * each) for copy in range(self.copies)])
        plan = self._arrange(self._route(self.gate, x), x.shape[0])
        if not plan.segments:  # an empty batch: any expert gives the right empty shape
            return self._experts(x, [Segment(0, 0, 0)])
        return plan.combine(self._experts(plan.gather(x), plan.segments))

    def _route(self, gate: SoftmaxGate | PathGate, x: Tensor) -> Plan:
        """Ask the gate, remember its answer for the terms, and lay out the experts' work."""
        features = self._asked(x).unflatten(0, (self.copies, -1))
        log_p = gate(features)
        self._trace = Trace(log_p, gate=gate, features=features)
        return route(log_p, self.top_k, self.routing, self.training, whole=observed())

    def _experts(self, x: Tensor, segments: list[Segment]) -> Tensor:
        """Every segment's rows through its expert, in order."""
        means = self.posterior.mean.unbind(0)  # unlike mean[m], unbind gives one dense gradient for all of them
        biases = self.bias.unbind(0) if self.bias is not None else (None,) * len(means)
        answer = _join([self._operator(x[a:b], means[m], biases[m]) for m, a, b in segments])
        if not self.noise:
            return answer
        noise = self._flipout_noise if self.estimator == "flipout" else self._local_noise
        return answer + noise(x, segments, answer)

    def _flipout_noise(self, x: Tensor, segments: list[Segment], answer: Tensor) -> Tensor:
        posterior = self.posterior
        shared = standard_normal(posterior.mean[0])
        signs_in = random_signs(x.shape[0], x.shape[1], x)
        signs_out = self._per_channel(random_signs(x.shape[0], self.units, x), answer)
        flipped = x * self._per_channel(signs_in, x)
        if posterior.sigma_kind == "weight":
            sigmas = posterior.sigma_of(posterior.rho).unbind(0)
            return self._each(flipped, segments, [sigma * shared for sigma in sigmas]) * signs_out
        # one draw for all experts and sigma on the output: a single operator call for the whole batch
        return self._operator(flipped, shared, None) * self._unit_sigma(segments, answer) * signs_out

    def _local_noise(self, x: Tensor, segments: list[Segment], answer: Tensor) -> Tensor:
        posterior = self.posterior
        if posterior.sigma_kind == "unit":
            return standard_normal(answer) * self._norm(x) * self._unit_sigma(segments, answer)
        variances = posterior.sigma_of(posterior.rho).square().unbind(0)
        return standard_normal(answer) * (self._each(x.square(), segments, variances) + TINY).sqrt()

    def _each(self, x: Tensor, segments: list[Segment], weights: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Every segment's rows through the weights of its expert, without bias."""
        return _join([self._operator(x[a:b], weights[m], None) for m, a, b in segments])

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
        """log p(m|x) of the last forward pass, ``[B, M]`` (``[C, B, M]`` of several copies), to look at.

        None without a gate and before the first pass (torch.jit.trace reads every attribute of a module: none may raise).
        Where the layer runs compiled it carries no gradient: what is to be learned from goes through `terms()`.
        """
        log_p = self._trace.log_p
        if log_p is None:
            return None
        if not log_p.requires_grad:  # in the memory of a pass, which the next may overwrite
            log_p = log_p.clone()
        return log_p[0] if self.copies == 1 else log_p

    def expert_kl(self) -> Tensor:
        r""":math:`\sum_m u_m KL[q_m \| p_m]` in nats, summed over weights."""
        known = self._trace.known("expert_kl")
        if known is not None:
            return known
        weights = None if self.usage == "uniform" or self.gate is None else self._trace.usage
        return self.posterior.weighted_kl(weights)

    def rest_of_terms(self) -> dict[str, Callable[[], Tensor]]:
        """All terms or, if a compiled pass brought the others, the diversity."""
        if not self._trace.complete:
            return self.terms()
        return {} if self._modules.get("gate") is None else {"diversity": self.diversity}

    def term_vector(self) -> tuple[tuple[str | None, ...], Tensor] | None:
        """All terms but the diversity as one tensor, if a compiled pass brought them so."""
        return self._trace.vector(self._modules.get("gate") is not None)

    def gate_kl(self) -> Tensor:
        """Mean over the batch of KL[p(m|x) || prior p(m|x)] in nats."""
        return self._zero() if self.gate is None else self._trace.gate_kl

    def conditional_entropy(self) -> Tensor:
        """H(M|X) of the batch in nats: low when every input is sure of its expert."""
        return self._zero() if self.gate is None else self._trace.conditional_entropy

    def marginal_entropy(self) -> Tensor:
        """H(M) of the batch in nats: low when few experts are used."""
        return self._zero() if self.gate is None else self._trace.marginal_entropy

    def diversity(self) -> Tensor:
        """log det(K + jitter I) of the experts' Wasserstein-2 kernel; 0 for a single expert."""
        return self._zero() if self.experts == 1 else diversity(self.posterior, self.kernel_width)

    def consolidate(self, experts: Sequence[int] | None = None) -> None:
        """Posterior and gate become the priors; the diversity kernel's width is measured anew.

        With `experts`, the posteriors of those alone.
        """
        self.posterior.consolidate(experts)
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
        self._trace = Trace()

    def add_expert(self, like: int | None = None) -> int:
        r"""One expert more (in every copy, the last of it); returns its number.

        Like expert `like`, it has that one's posterior as its posterior and as its prior, and its bias; a softmax gate divides
        the probability of `like` between the two, and all others keep theirs, as does the prior gate. (What the layer answers may
        change with it: of the two, top-1 takes one, weighted by its half of p(m|x), or another expert that now has more.)
        Otherwise it starts afresh: a new draw, the first prior, small random gate weights.

        Parameters are new tensors: optimisers must be made anew.
        """
        if like is not None and (isinstance(like, bool) or not isinstance(like, int) or not 0 <= like < self.experts):
            raise InputError(f"a new expert may be like one from 0 to {self.experts - 1}, got {like!r}")
        self.posterior.grow(like, self.copies)
        if self.bias is not None:
            old = self.bias.detach().unflatten(0, (self.copies, -1))
            new = torch.zeros_like(old[:, :1]) if like is None else old[:, like : like + 1]
            self.bias = nn.Parameter(torch.cat([old, new], 1).flatten(0, 1), requires_grad=self.bias.requires_grad)
        if self.gate is None:
            mean = self.posterior.mean
            self.gate = self._new_gate(2, mean.device, mean.dtype)
            if isinstance(self.gate, SoftmaxGate) and like is not None:  # half and half
                nn.init.zeros_(self.gate.weight)
        else:
            self.gate = self.gate.grown(like)
        self.experts += 1
        self.kernel_width.fill_(self.fixed_width or 0.0)
        self._trace = Trace()
        return self.experts - 1

    def _zero(self) -> Tensor:
        return self.posterior.mean.new_zeros(())

    def _options_repr(self) -> str:
        copies = f"copies={self.copies}, " if self.copies > 1 else ""
        path = ", gate='path'" if self.gate_kind == "path" else ""
        collected = ", gradients=collected" if self.posterior.collector.owner is not None else ""
        return (
            f"experts={self.experts}, {copies}top_k={self.top_k}, estimator={self.estimator!r}, "
            f"sigma={self.posterior.sigma_kind!r}, routing={self.routing!r}{path}{collected}"
        )


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
