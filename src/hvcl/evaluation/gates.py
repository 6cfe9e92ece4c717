"""Information measures of the gates: entropies, mutual information and expert usage, measured while a learner predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.layers import MoVELayer


@dataclass(frozen=True)
class LayerInformation:
    """Of one layer, in bits: H(M), H(M|X) and I(M;X) = H(M) - H(M|X); and the usage of its experts by task."""

    marginal_entropy: float
    conditional_entropy: float
    information: float
    usage: list[list[float]]
    """Mean gate probability of each expert on each task's data."""
    routed: list[list[float]]
    """Fraction of each task's examples for which each expert has the largest gate probability."""

    def to_json(self) -> dict[str, object]:
        """The fields as plain JSON values."""
        return dict(vars(self))


OWN_EXPERTS = "gate"
"""The name under which the experts of a learner itself are measured, beside the layers of its network."""


@dataclass
class _Sums:
    """Sums over a task's examples: each expert's probability mass and argmax counts, entropies in nats, number of examples."""

    mass: Tensor
    chosen: Tensor
    entropy: float = 0.0
    count: int = 0

    def add(self, p: Tensor) -> None:
        """More examples; there may be more experts than before."""
        experts = max(len(self.mass), p.shape[1])
        self.mass = _widened(self.mass, experts) + _widened(p.sum(0), experts)
        self.chosen = _widened(self.chosen, experts) + torch.bincount(p.argmax(1), minlength=experts)
        self.entropy += float(torch.special.entr(p).sum())
        self.count += len(p)


class GateMeter:
    """Collects the gate probabilities of every MoVE layer, task by task, right after each forward pass; and of the learner's own
    experts, where it has some."""

    def __init__(self, network: nn.Module | None) -> None:
        every = () if network is None else network.named_modules()
        # who is told the path has no gate of its own: that of the learner is recorded instead
        self.layers = {name: m for name, m in every if isinstance(m, MoVELayer) and m.gate_kind != "path"}
        self._sums: dict[str, list[_Sums]] = {name: [] for name in (*self.layers, OWN_EXPERTS)}

    def begin_task(self) -> None:
        """The next batches belong to a new task."""
        for tasks in self._sums.values():
            tasks.append(_Sums(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)))

    def record(self, own: Tensor | None = None) -> None:
        """Read what the last forward pass left in every layer; `own` is p(m|x) ``[B, experts]`` of the learner's own experts."""
        for name, layer in self.layers.items():
            log_probabilities = layer.gate_log_probabilities
            if log_probabilities is None:  # a single expert has no gate
                one = torch.ones(1, dtype=torch.float64)
                self._sums[name][-1] = _Sums(one, one, count=1)
            else:
                self._sums[name][-1].add(log_probabilities.detach().double().exp())
        if own is not None:
            self._sums[OWN_EXPERTS][-1].add(own.detach().double())

    def measure(self, seen: int) -> dict[str, LayerInformation]:
        """Entropies and information over the first `seen` tasks' data; usage for every task."""
        measured = {}
        for name, tasks in self._sums.items():
            if not tasks or not all(sums.count for sums in tasks):
                continue  # no experts, or none that has learned anything yet
            of_seen = tasks[:seen]
            experts = max(len(sums.mass) for sums in tasks)
            total = sum(sums.count for sums in of_seen)
            marginal = torch.stack([_widened(sums.mass, experts) for sums in of_seen]).sum(0) / total
            conditional = sum(sums.entropy for sums in of_seen) / total / math.log(2)
            entropy = float(torch.special.entr(marginal).sum()) / math.log(2)
            measured[name] = LayerInformation(
                marginal_entropy=entropy,
                conditional_entropy=conditional,
                information=max(0.0, entropy - conditional),
                usage=[(_widened(sums.mass, experts) / sums.count).tolist() for sums in tasks],
                routed=[(_widened(sums.chosen, experts) / sums.count).tolist() for sums in tasks],
            )
        return measured


def _widened(values: Tensor, experts: int) -> Tensor:
    """Values of at least `experts` experts, padded with zeros."""
    return F.pad(values, (0, max(0, experts - len(values))))
