"""What the gates know: entropies, information and expert usage, measured while a learner predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hvcl.layers import MoVELayer


@dataclass(frozen=True)
class LayerInformation:
    """Of one layer, in bits: H(M), H(M|X) and I(M;X) = H(M) - H(M|X); and who serves which task."""

    marginal_entropy: float
    conditional_entropy: float
    information: float
    usage: list[list[float]]
    """Mean gate probability of each expert on each task's data."""
    routed: list[list[float]]
    """Fraction of each task's examples whose first choice each expert is."""

    def to_json(self) -> dict[str, object]:
        """As plain JSON values."""
        return dict(vars(self))


class GateMeter:
    """Collects the gate probabilities of every MoVE layer, task by task, right after each forward pass."""

    def __init__(self, network: nn.Module | None) -> None:
        self.layers = {} if network is None else {n: m for n, m in network.named_modules() if isinstance(m, MoVELayer)}
        self._sums: dict[str, list[tuple[Tensor, Tensor, float, int]]] = {name: [] for name in self.layers}

    def begin_task(self) -> None:
        """The next batches belong to a new task."""
        for name, layer in self.layers.items():
            zeros = torch.zeros(layer.experts, dtype=torch.float64)
            self._sums[name].append((zeros, zeros.clone(), 0.0, 0))

    def record(self) -> None:
        """Read what the last forward pass left in every layer."""
        for name, layer in self.layers.items():
            mass, chosen, entropy, count = self._sums[name][-1]
            log_probabilities = layer.gate_log_probabilities
            if log_probabilities is None:  # one expert: it serves everything
                self._sums[name][-1] = (torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), 0.0, 1)
                continue
            p = log_probabilities.detach().double().exp()
            mass = mass + p.sum(0)
            chosen = chosen + torch.bincount(p.argmax(1), minlength=layer.experts)
            entropy += float(torch.special.entr(p).sum())
            self._sums[name][-1] = (mass, chosen, entropy, count + len(p))

    def measure(self, seen: int) -> dict[str, LayerInformation]:
        """Entropies and information over the first `seen` tasks' data; usage for every task."""
        measured = {}
        for name, tasks in self._sums.items():
            of_seen = tasks[:seen]
            total = sum(count for *_, count in of_seen)
            marginal = sum((mass for mass, *_ in of_seen), torch.zeros(())) / total
            conditional = sum(entropy for _, _, entropy, _ in of_seen) / total / math.log(2)
            entropy = float(torch.special.entr(marginal).sum()) / math.log(2)
            measured[name] = LayerInformation(
                marginal_entropy=entropy,
                conditional_entropy=conditional,
                information=max(0.0, entropy - conditional),
                usage=[(mass / count).tolist() for mass, _, _, count in tasks],
                routed=[(chosen / count).tolist() for _, chosen, _, count in tasks],
            )
        return measured
