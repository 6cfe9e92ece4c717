"""Dense MoVE layers on top of each other, several networks of one shape at once: actor and critics of an agent, for example."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.layers.compiled import Compiled
from hvcl.layers.linear import MoVELinear
from hvcl.layers.module import VariationalModule
from hvcl.layers.options import MoVEOptions
from hvcl.layers.trace import Trace
from hvcl.ops.dense import SLOPE


class MoVEStack(VariationalModule):
    r"""C networks of dense MoVE layers with leaky ReLU between, ``(B, in)`` or ``(C, B, in)`` to ``(C, B, out)``.

    The same as the layers one after another, and just that in plain operations. Compiled, a whole pass is one call: on layers of
    64 units an operation's bookkeeping costs more than its arithmetic. Terms are summed over layers and copies.

    Args:
        sizes: units from the input to the output, e.g. ``(28, 64, 64, 16)``.
        experts: M in every layer of every copy.
        copies: C.
        side_by_side: give the answers of the copies side by side, ``(B, C * out)``.
        options: as `MoVEOptions`, for all layers.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        experts: int = 2,
        *,
        copies: int = 1,
        side_by_side: bool = False,
        **options: Unpack[MoVEOptions],
    ) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise InputError(f"a stack needs the sizes of its input and its output at least, got {tuple(sizes)}")
        if options.get("gate", "softmax") != "softmax" or options.get("context"):
            raise InputError("the layers of a stack have gates that read their own inputs: leave gate and context")
        pairs = itertools.pairwise(sizes)
        self.layers = nn.ModuleList([MoVELinear(a, b, experts, copies=copies, **options) for a, b in pairs])
        self.sizes, self.copies, self.side_by_side = tuple(sizes), copies, side_by_side
        self._compiled = Compiled()
        self._trace: Trace | None = None

    @property
    def _list(self) -> list[MoVELinear]:
        """The layers. Looked up where they are: torch's own lookup is slow."""
        return cast(list[MoVELinear], list(self._modules["layers"]._modules.values()))  # type: ignore[union-attr]

    @property
    def experts(self) -> int:
        """M in every layer of every copy."""
        return self._list[0].experts

    def add_expert(self, like: int | None = None) -> int:
        """One expert more in every layer, as `MoVELayer.add_expert`; returns its number. Optimisers must be made anew."""
        return [layer.add_expert(like) for layer in self][-1]

    def __iter__(self) -> Iterator[MoVELinear]:
        return iter(self._list)

    def forward(self, x: Tensor) -> Tensor:
        """The answers of all copies, each to its own inputs or all to the same."""
        shapes = ((self.sizes[0],), (self.copies, self.sizes[0]))
        if x.dim() not in (2, 3) or (*x.shape[:-2], x.shape[-1]) not in shapes:
            wanted = f"(B, {self.sizes[0]}) or ({self.copies}, B, {self.sizes[0]})"
            raise InputError(f"a stack expects {wanted}, got a tensor of shape {tuple(x.shape)}")
        layers = self._list
        layers[0]._check_type(x)
        mean = layers[0]._modules["posterior"]._parameters["mean"]  # type: ignore[union-attr]
        learns = torch.is_grad_enabled() and mean.requires_grad  # type: ignore[union-attr]
        self.__dict__["_trace"] = None  # and with it the memory of the last pass, if nobody else needs it
        answer = self._compiled.run(layers, x if x.is_contiguous() else x.contiguous(), learns, self.side_by_side)
        if answer is None:
            answers = self.plain(x)
            return answers.transpose(0, 1).flatten(1) if self.side_by_side else answers
        out, every, usage, terms, complete = answer
        # where they are: torch's own way to set an attribute is slow
        self.__dict__["_trace"] = Trace(every[0] if every else None, usage, terms, complete)
        for layer, log_p in zip(layers, every, strict=False):
            layer.__dict__["_trace"] = Trace(log_p)
        return out

    def plain(self, x: Tensor) -> Tensor:
        """``(C, B, out)`` in plain operations."""
        h = x.expand(self.copies, *x.shape) if x.dim() == 2 else x
        for number, layer in enumerate(self):
            layer._check_type(h)
            h = F.leaky_relu(h, SLOPE) if number else h
            h = layer._plain(h.flatten(0, 1)).view(self.copies, x.shape[-2], layer.out_features)
        self._trace = None
        return h

    # -- the objective's terms ----------------------------------------------------------------------------------------

    def rest_of_terms(self) -> dict[str, Callable[[], Tensor]]:
        """All terms or, if a compiled pass brought the others, the diversity."""
        if self._trace is None or not self._trace.complete:
            return self.terms()
        return {"diversity": self.diversity} if self.experts > 1 else {}

    def terms(self) -> dict[str, Callable[[], Tensor]]:
        """As a layer's, each summed over the layers."""
        names = next(iter(self)).terms()
        return {name: getattr(self, name) for name in names}

    def expert_kl(self) -> Tensor:
        """The experts' KLs to their priors, each weighted by the gate's mass on it."""
        known = None if self._trace is None else self._trace.known("expert_kl")
        if known is not None:
            return known
        if self._trace is None or self._trace.log_p is None:
            return self._sum("expert_kl")
        parts = self._trace.usage.split(self.copies * self.experts)
        weights = [None if layer.usage == "uniform" else part for layer, part in zip(self, parts, strict=True)]
        values = [layer.posterior.weighted_kl(weight) for layer, weight in zip(self, weights, strict=True)]
        return torch.stack(values).sum()

    def term_vector(self) -> tuple[tuple[str | None, ...], Tensor] | None:
        """All terms but the diversity as one tensor, if a compiled pass brought them so."""
        return None if self._trace is None else self._trace.vector(self.experts > 1)

    def gate_kl(self) -> Tensor:
        """The gates' KLs to their priors."""
        return self._sum("gate_kl") if self._trace is None else self._trace.gate_kl

    def conditional_entropy(self) -> Tensor:
        """H(M|X)."""
        return self._sum("conditional_entropy") if self._trace is None else self._trace.conditional_entropy

    def marginal_entropy(self) -> Tensor:
        """H(M)."""
        return self._sum("marginal_entropy") if self._trace is None else self._trace.marginal_entropy

    def diversity(self) -> Tensor:
        """log det(K + jitter I) of the experts' kernels."""
        return self._sum("diversity")

    def _sum(self, name: str) -> Tensor:
        return torch.stack([getattr(layer, name)() for layer in self]).sum()

    def consolidate(self) -> None:
        """Posteriors and gates become the priors, in every layer."""
        for layer in self:
            layer.consolidate()

    def extra_repr(self) -> str:
        """Shown by print."""
        return f"{'-'.join(map(str, self.sizes))}, experts={self.experts}, copies={self.copies}"
