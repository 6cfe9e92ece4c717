"""The MoVE layer as METHOD.md writes it: loops over examples and experts, plain autograd, no sorting, no closed forms.

Slow on purpose. Nothing here calls the code under test; `Draws` only listens to the random numbers that it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence

Operator = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(batch, weight, bias) -> batch, by the torch.nn counterpart of a layer."""


@dataclass
class Draws:
    """A log of the random numbers that a layer takes, in the order in which it takes them.

    Per-example numbers come in slot order: one slot per (example, chosen expert), sorted by expert, then by example.
    """

    normals: list[Tensor] = field(default_factory=list)
    signs: list[Tensor] = field(default_factory=list)
    exponentials: list[Tensor] = field(default_factory=list)

    @classmethod
    def record(cls, monkeypatch: pytest.MonkeyPatch) -> Draws:
        import hvcl.layers.base as base

        draws = cls()
        randn_like, random_signs, exponential_ = torch.randn_like, base.random_signs, torch.Tensor.exponential_

        def recorded_normal(*args, **kwargs):
            draws.normals.append(randn_like(*args, **kwargs))
            return draws.normals[-1]

        def recorded_signs(*args, **kwargs):
            draws.signs.append(random_signs(*args, **kwargs))
            return draws.signs[-1]

        def recorded_exponential(self, *args, **kwargs):
            draws.exponentials.append(exponential_(self, *args, **kwargs).clone())
            return self

        monkeypatch.setattr(torch, "randn_like", recorded_normal)
        monkeypatch.setattr(base, "random_signs", recorded_signs)
        monkeypatch.setattr(torch.Tensor, "exponential_", recorded_exponential)
        return draws

    def clear(self) -> None:
        for log in (self.normals, self.signs, self.exponentials):
            log.clear()


@dataclass
class Reference:
    """One layer: its parameters and prior as plain tensors, its operator, and its options."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    operator: Operator
    unit_of_weight: Tensor
    """Index of the output unit that each weight of an expert feeds, in the shape of the expert's weights."""
    experts: int
    top_k: int = 1
    estimator: str = "flipout"
    sigma: str = "weight"
    routing: str = "argmax"
    usage: str = "gate"
    transform: str = "exp"

    def sigmas(self, rho: Tensor) -> Tensor:
        """Sigma of every weight, [M, *shape]."""
        sigma = torch.exp(rho) if self.transform == "exp" else torch.log(1 + torch.exp(rho))
        return sigma if self.sigma == "weight" else sigma[:, self.unit_of_weight]

    @staticmethod
    def features(x: Tensor) -> Tensor:
        """What the gate reads: the input itself, or mean and maximum of every channel."""
        if x.dim() == 2:
            return x
        places = list(range(2, x.dim()))
        return torch.cat([x.mean(places), x.amax(places)], 1)

    def gate(self, x: Tensor) -> Tensor:
        logits = self.features(x) @ self.parameters["gate.weight"].T + self.parameters["gate.bias"]
        return torch.softmax(logits, 1)

    def prior_gate(self, x: Tensor) -> Tensor:
        logits = self.features(x) @ self.buffers["gate.prior_weight"].T + self.buffers["gate.prior_bias"]
        return torch.softmax(logits, 1)

    def choices(self, probabilities: Tensor, exponentials: Tensor | None = None) -> list[list[int]]:
        """The k most probable experts of every example; with exponentials, the first k to arrive in a race at rates p."""
        scores = probabilities if exponentials is None else probabilities / exponentials
        return [sorted(range(self.experts), key=lambda m: -row[m])[: self.top_k] for row in scores.tolist()]

    def weights(self, p: Tensor, chosen: list[int]) -> dict[int, Tensor]:
        """Mixture weights of one example's chosen experts."""
        if self.top_k > 1:
            total = sum(p[m] for m in chosen)
            return {m: p[m] / total for m in chosen}
        (m,) = chosen
        return {m: p[m] if self.routing == "argmax" else p[m] / p[m].detach()}

    def forward(self, x: Tensor, draws: Draws | None = None) -> Tensor:
        """The layer's output: with the noise of `draws` in training, with the posterior means without."""
        if self.experts == 1:
            mixture = [{0: torch.ones((), dtype=x.dtype)} for _ in x]
        else:
            p = self.gate(x)
            race = draws.exponentials[0][0] if draws is not None and self.routing == "sample" else None
            mixture = [self.weights(p[b], chosen) for b, chosen in enumerate(self.choices(p, race))]
        slots = [(m, b) for m in range(self.experts) for b in range(len(x)) if m in mixture[b]]
        means, sigmas = self.parameters["posterior.mean"], self.sigmas(self.parameters["posterior.rho"])
        biases = self.parameters.get("bias")

        answers: list[Tensor | int] = [0] * len(x)
        for slot, (m, b) in enumerate(slots):
            row = x[b : b + 1]
            answer = self.operator(row, means[m], None if biases is None else biases[m])
            if draws is not None and self.estimator == "flipout":
                signs_in, signs_out = (
                    signs[slot].reshape(1, -1, *[1] * (x.dim() - 2)) for signs in (draws.signs[0], draws.signs[1])
                )
                answer = answer + self.operator(row * signs_in, sigmas[m] * draws.normals[0], None) * signs_out
            elif draws is not None and self.estimator == "local":
                variance = self.operator(row.square(), sigmas[m].square(), None)
                reached = variance > 0
                deviation = torch.where(reached, variance, 1.0).sqrt() * reached
                answer = answer + deviation * draws.normals[0][slot]
            answers[b] = answers[b] + mixture[b][m] * answer
        return torch.cat(answers)

    def kls(self) -> list[Tensor]:
        """KL of every expert's posterior to its prior, by torch.distributions."""
        prior_sigma = self.buffers["posterior.prior_log_sigma"].exp()
        if self.sigma == "unit":
            prior_sigma = prior_sigma[:, self.unit_of_weight]
        means, sigmas = self.parameters["posterior.mean"], self.sigmas(self.parameters["posterior.rho"])
        return [
            kl_divergence(Normal(means[m], sigmas[m]), Normal(self.buffers["posterior.prior_mean"][m], prior_sigma[m])).sum()
            for m in range(self.experts)
        ]

    def terms(self, x: Tensor) -> dict[str, Tensor]:
        """The objective's terms for one batch, all but the diversity (METHOD.md, section 2)."""
        kls = self.kls()
        zero = torch.zeros((), dtype=x.dtype)
        if self.experts == 1:
            return {"expert_kl": kls[0], "gate_kl": zero, "conditional_entropy": zero, "marginal_entropy": zero}
        p = self.gate(x)
        usage = [p[:, m].mean() if self.usage == "gate" else 1.0 for m in range(self.experts)]
        return {
            "expert_kl": sum(u * kl for u, kl in zip(usage, kls, strict=True)),
            "gate_kl": kl_divergence(Categorical(p), Categorical(self.prior_gate(x))).mean(),
            "conditional_entropy": Categorical(p).entropy().mean(),
            "marginal_entropy": Categorical(p.mean(0)).entropy(),
        }

    def squared_distances(self) -> list[list[Tensor]]:
        """W2^2 of every pair of experts: ||mu - mu'||^2 + ||sigma - sigma'||^2 over all weights."""
        means, sigmas = self.parameters["posterior.mean"], self.sigmas(self.parameters["posterior.rho"])
        return [
            [((means[i] - means[j]) ** 2).sum() + ((sigmas[i] - sigmas[j]) ** 2).sum() for j in range(self.experts)]
            for i in range(self.experts)
        ]

    def diversity(self, width: float, jitter: float) -> Tensor:
        distances = torch.stack([torch.stack(row) for row in self.squared_distances()])
        kernel = torch.exp(-distances / (2 * width**2))
        sign, value = torch.linalg.slogdet(kernel + jitter * torch.eye(self.experts, dtype=kernel.dtype))
        assert sign == 1
        return value
