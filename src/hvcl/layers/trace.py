"""What the last forward pass of a layer left behind for the terms of the objective."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.gates import PathGate, SoftmaxGate
from hvcl.ops.dense import TERMS


class Trace:
    """The gates' answers to one batch: mean masses and entropies, computed when they are asked for.

    Compiled passes bring the terms with them; plain ones bring the features, and the terms follow from those. Copies and pickles
    of a layer start without one.
    """

    __slots__ = ("_features", "_gate", "_terms", "_usage", "complete", "log_p")

    def __init__(
        self,
        log_p: Tensor | None = None,
        usage: Tensor | None = None,
        terms: Tensor | None = None,
        complete: bool = False,
        *,
        gate: SoftmaxGate | PathGate | None = None,
        features: Tensor | None = None,
    ) -> None:
        self.log_p = log_p
        """log p(m|x) ``[C, B, M]``; None before the first pass, and without a gate."""
        self.complete = complete
        """Whether the experts' KL is among the terms that a compiled pass brought."""
        self._usage, self._terms, self._gate, self._features = usage, terms, gate, features

    def __deepcopy__(self, memo: dict[int, Any]) -> Trace:
        return Trace()

    def __reduce__(self) -> tuple[type[Trace], tuple[()]]:
        return Trace, ()

    @property
    def log_probabilities(self) -> Tensor:
        """log p(m|x), checked."""
        if self.log_p is None:
            raise InputError("this MoVE layer has not seen a batch yet: run a forward pass before asking for its terms")
        if self.log_p.shape[1] == 0:
            raise InputError("the last batch of this MoVE layer was empty: its terms are means over no examples")
        return self.log_p

    def known(self, name: str) -> Tensor | None:
        """A term that a compiled pass has brought."""
        if self._terms is None or (name == "expert_kl" and not self.complete):
            return None
        return self._terms[TERMS.index(name)]

    def vector(self, gate: bool) -> tuple[tuple[str | None, ...], Tensor] | None:
        """All terms that a compiled pass has brought, as one tensor, with their names (None: not a term of this layer)."""
        if self._terms is None or not self.complete:
            return None
        return (TERMS if gate else (None, None, None, "expert_kl")), self._terms

    @property
    def usage(self) -> Tensor:
        """Mean gate mass on each expert ``[C * M]``."""
        log_p = self.log_probabilities
        return log_p.exp().mean(1).flatten() if self._usage is None else self._usage

    @property
    def gate_kl(self) -> Tensor:
        """Mean over the batch of KL[p(m|x) || prior p(m|x)], summed over copies."""
        log_p, known = self.log_probabilities, self.known("gate_kl")
        if known is not None:
            return known
        assert self._gate is not None
        assert self._features is not None
        return (log_p.exp() * (log_p - self._gate.prior(self._features))).sum((0, 2)).mean()

    @property
    def conditional_entropy(self) -> Tensor:
        """H(M|X) of the batch in nats, summed over copies."""
        log_p, known = self.log_probabilities, self.known("conditional_entropy")
        return -(log_p.exp() * log_p).sum((0, 2)).mean() if known is None else known

    @property
    def marginal_entropy(self) -> Tensor:
        """H(M) of the batch in nats, summed over copies."""
        log_p, known = self.log_probabilities, self.known("marginal_entropy")
        if known is not None:
            return known
        # at a mass of exactly zero the derivative is infinite, and 0 * inf not a number
        contributions: Tensor = torch.special.entr(log_p.exp().mean(1).clamp_min(torch.finfo(log_p.dtype).tiny))
        return contributions.sum()
