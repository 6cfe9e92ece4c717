r"""Small MoVE networks, several of one shape at once: actor and critics of an agent.

`hvcl.layers.MoVELinear` sorts a batch by expert and computes each on its slice, which pays on large layers. With 64 units and 256
rows the sorting costs more than the products that it saves. Here every layer of all copies is one batched product: with P(x) the
gate's probabilities, all but the chosen one set to zero,

    y = sum_m P_m(x) (x W_m + b_m) = [P_1(x) x, ..., P_M(x) x] [W_1; ...; W_M] + P(x) b,

the stacked weights being a view of the posterior means. The mathematics, the terms and the priors are those of
`hvcl.layers.MoVELayer` with the most probable expert, the estimator "local" and a sigma per weight or per output unit, and
`MoVELinear` is the reference in the tests. Terms are summed over the copies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from hvcl.kernels import load_kernels
from hvcl.layers.base import TINY, _Trace
from hvcl.layers.diversity import log_determinant, median_width, squared_distances
from hvcl.layers.module import VariationalModule
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.mean_field import SigmaKind, SigmaTransform
from hvcl.rl.compiled import Compiled
from hvcl.rl.dense import SLOPE, readable


class StackedMoVELinear(VariationalModule):
    """`copies` MoVE layers of one shape, ``[copies, B, in]`` to ``[copies, B, out]``; expert m of copy c is number c * M + m."""

    kernel_width: Tensor
    prior_weight: Tensor
    prior_bias: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        experts: int,
        copies: int,
        sigma: SigmaKind = "unit",
        initial_sigma: float = 0.1,
        sigma_transform: SigmaTransform = "exp",
    ) -> None:
        super().__init__()
        self.inputs, self.outputs, self.experts, self.copies = inputs, outputs, experts, copies
        total = copies * experts
        expand = partial(torch.unsqueeze, dim=1)
        self.posterior = MeanFieldGaussian(
            total,
            (inputs, outputs),
            outputs,
            expand,
            inputs,
            sigma=sigma,
            initial_sigma=initial_sigma,
            transform=sigma_transform,
        )
        self.bias = nn.Parameter(torch.zeros(total, outputs))
        if experts > 1:
            self.gate_weight = nn.Parameter(torch.empty(total, inputs).normal_(0.0, 1.0 / math.sqrt(inputs)))
            self.gate_bias = nn.Parameter(torch.zeros(total))
            self.register_buffer("prior_weight", torch.zeros(total, inputs))
            self.register_buffer("prior_bias", torch.zeros(total))
            self.register_buffer("kernel_width", torch.zeros(copies))
        self._trace = _Trace()

    def forward(self, x: Tensor) -> Tensor:
        """The answers of all copies, each to its own inputs."""
        mean, bias = self._by_copy(self.posterior.mean.flatten(0, 1)), self._by_copy(self.bias)
        if self.experts == 1:
            chosen, z = None, x
            y = torch.baddbmm(bias, x, mean)
        else:
            chosen = self._choose(x)
            z = (chosen.unsqueeze(3) * x.unsqueeze(2)).flatten(2)
            y = torch.baddbmm(torch.bmm(chosen, bias), z, mean)
        return y + self._noise(x, z, chosen) if self.is_sampling else y

    def parameters_in_order(self) -> list[Tensor]:
        """mean, rho, bias, and with several experts the gate's weight and bias."""
        own: list[Tensor] = [self.posterior.mean, self.posterior.rho, self.bias]
        return own if self.experts == 1 else [*own, self.gate_weight, self.gate_bias]

    def held(self) -> dict[str, Tensor]:
        """What a compiled pass needs to give the sums of `hvcl.rl.nodes` in place of the terms here; nothing."""
        return {}

    def _choose(self, x: Tensor) -> Tensor:
        """P(x): the gate's probability of the most probable expert, 0 for the others, ``[copies, B, M]``."""
        log_p = self._gate(x, self.gate_weight, self.gate_bias)
        p = log_p.exp()
        self._trace = trace = _Trace()
        trace.features, trace.log_probabilities, trace.usage = x, log_p, p
        best = log_p.detach().argmax(2, keepdim=True)
        return p * torch.zeros_like(p).scatter_(2, best, 1.0)

    def _gate(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = torch.baddbmm(bias.view(self.copies, 1, -1), x, self._by_copy(weight).transpose(1, 2))
        return logits.log_softmax(2)

    def _noise(self, x: Tensor, z: Tensor, chosen: Tensor | None) -> Tensor:
        sigma = self.posterior.sigma_of(self.posterior.rho)
        if self.posterior.sigma_kind == "weight":
            spread = (torch.bmm(z.square(), self._by_copy(sigma.flatten(0, 1)).square()) + TINY).sqrt()
            return spread * torch.randn_like(spread)
        sigma = self._by_copy(sigma)
        spread = sigma if chosen is None else torch.bmm(chosen, sigma)
        lengths = (x.square().sum(2, keepdim=True) + TINY).sqrt()
        return spread * (torch.randn(self.copies, x.shape[1], self.outputs) * lengths)

    def _by_copy(self, values: Tensor) -> Tensor:
        """``[copies * n, ...]`` as ``[copies, n, ...]``."""
        return values.view(self.copies, -1, *values.shape[1:])

    # -- the objective's terms ----------------------------------------------------------------------------------------------

    def terms(self) -> dict[str, Callable[[], Tensor]]:
        """expert_kl, and with several experts gate_kl, conditional_entropy, marginal_entropy and diversity."""
        if self.experts == 1:
            return {"expert_kl": self.expert_kl}
        return {
            "expert_kl": self.expert_kl,
            "gate_kl": self.gate_kl,
            "conditional_entropy": self.conditional_entropy,
            "marginal_entropy": self.marginal_entropy,
            "diversity": self.diversity,
        }

    @property
    def _gates(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, log p(m|x) and p(m|x) of the last forward pass."""
        trace = self._trace
        assert trace.features is not None
        assert trace.log_probabilities is not None
        assert trace.usage is not None
        return trace.features, trace.log_probabilities, trace.usage

    def expert_kl(self) -> Tensor:
        """The experts' KLs, weighted by the gates' mean mass on them."""
        posterior = self.posterior
        if posterior.sigma_kind == "weight":
            kl = posterior.kl()
        else:
            values = (posterior.mean, posterior.log_sigma, posterior.prior_mean, posterior.prior_log_sigma)
            kl = _UnitKL.apply(*values)  # type: ignore[no-untyped-call]
        if self.experts == 1:
            return kl.sum()
        return torch.dot(self._gates[2].mean(1).flatten(), kl)

    def gate_kl(self) -> Tensor:
        """Mean over the batch of KL[p(m|x) || prior p(m|x)]."""
        x, log_p, p = self._gates
        return (p * (log_p - self._gate(x, self.prior_weight, self.prior_bias))).sum() / x.shape[1]

    def conditional_entropy(self) -> Tensor:
        """H(M|X) of the batch."""
        x, log_p, p = self._gates
        return -(p * log_p).sum() / x.shape[1]

    def marginal_entropy(self) -> Tensor:
        """H(M) of the batch."""
        mass = self._gates[2].mean(1)
        entropy: Tensor = torch.special.entr(mass.clamp_min(torch.finfo(mass.dtype).tiny)).sum()
        return entropy

    def diversity(self) -> Tensor:
        """log det(K + jitter I) of each copy's experts."""
        posterior = self.posterior
        repeats = 1.0 if posterior.sigma_kind == "weight" else float(self.inputs)
        values = []
        parts = zip(self._by_copy(posterior.mean), self._by_copy(posterior.sigma_of(posterior.rho)), strict=True)
        for copy, (mean, sigma) in enumerate(parts):
            distances = squared_distances(mean, sigma, repeats)
            if self.kernel_width[copy] == 0:
                self.kernel_width[copy] = median_width(distances)
            values.append(log_determinant(mean, sigma, repeats, distances, self.kernel_width[copy]))
        return torch.stack(values).sum()

    @torch.no_grad()
    def consolidate(self) -> None:
        """Posteriors and gates become the priors; the diversity kernels' widths are measured anew."""
        self.posterior.consolidate()
        if self.experts > 1:
            self.prior_weight.copy_(self.gate_weight)
            self.prior_bias.copy_(self.gate_bias)
            self.kernel_width.zero_()

    def shares(self) -> list[list[float]]:
        """For each copy, the share of the last batch that went to each expert."""
        chosen = self._gates[1].argmax(2)
        return [(torch.bincount(row, minlength=self.experts) / len(row)).tolist() for row in chosen]


class StackedMoVE(nn.Module):
    """`copies` networks of MoVE layers on the same inputs, ``[B, in]`` to ``[B, copies * out]``, with leaky ReLU between."""

    layer: type[StackedMoVELinear] = StackedMoVELinear

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: tuple[int, ...],
        experts: int,
        copies: int,
        sigma: SigmaKind,
        initial_sigma: float,
        sigma_transform: SigmaTransform = "exp",
    ) -> None:
        super().__init__()
        sizes = itertools.pairwise((inputs, *hidden, outputs))
        self.layers = nn.ModuleList([self.layer(*size, experts, copies, sigma, initial_sigma, sigma_transform) for size in sizes])
        self.copies, self.experts = copies, experts
        self.unit = sigma == "unit"
        self.compiled = Compiled()

    def forward(self, x: Tensor) -> Tensor:
        """The answers of all copies side by side."""
        first = self.layers[0]
        assert isinstance(first, StackedMoVELinear)
        kernels = load_kernels(first.bias) if self.unit and len(x) and readable(x, first.inputs) else None
        if kernels is None:
            self.compiled.terms = None
            return self.plain(x)
        return self.compiled.run(self.layers, x, first.is_sampling, kernels)

    def plain(self, x: Tensor) -> Tensor:
        """`forward` in plain operations; after it, the layers themselves have the terms."""
        h = x.unsqueeze(0).expand(self.copies, -1, -1)
        for number, layer in enumerate(self.layers):
            h = layer(F.leaky_relu(h, SLOPE) if number else h)
        return h.transpose(0, 1).reshape(len(x), -1)


class _UnitKL(torch.autograd.Function):
    """KL per expert with a sigma per unit (rho is log sigma), and its closed-form gradient; see `MeanFieldGaussian.kl`."""

    @staticmethod
    def forward(ctx: FunctionCtx, mean: Tensor, rho: Tensor, prior_mean: Tensor, prior_log_sigma: Tensor) -> Tensor:
        weights = mean.shape[1]
        ratio = rho - prior_log_sigma
        excess = torch.expm1(2 * ratio)
        inverse = torch.exp(-2 * prior_log_sigma).unsqueeze(1)
        shift = mean - prior_mean
        pull = shift * inverse
        ctx.save_for_backward(pull, excess.mul(weights))
        return torch.sub(excess, ratio, alpha=2).sum(1).mul_(weights / 2).add_((shift * pull).flatten(1).sum(1), alpha=0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        pull, excess = ctx.saved_tensors  # type: ignore[attr-defined]
        return pull * grad.view(-1, 1, 1), excess * grad.view(-1, 1), None, None
