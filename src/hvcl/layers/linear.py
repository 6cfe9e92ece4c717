"""Dense MoVE layer."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.layers.base import TINY, MoVELayer
from hvcl.layers.compiled import Compiled
from hvcl.layers.options import MoVEOptions, require_positive
from hvcl.layers.trace import Trace
from hvcl.layers.weight import ExpertWeights


class MoVELinear(MoVELayer):
    r"""A mixture of M variational dense layers: the operator is :math:`A(x; W) = x W` with W of shape ``[in, out]``.

    Takes ``(*, in_features)`` like `torch.nn.Linear`; every row of the flattened input chooses its own experts.
    See `MoVELayer` for the mathematics and `MoVEOptions` for the options.

    With C > 1 `copies` it takes ``(C, B, in_features)``, each copy its own rows, or ``(B, in_features)``, all of them the same,
    and gives ``(C, B, out_features)``.

    Takes the place of an `nn.Linear` whose owner passes `.weight` and `.bias` on (torch's attention): see `ExpertWeights`.

    Example:
        >>> layer = MoVELinear(784, 256, experts=4)
        >>> layer(torch.randn(32, 784)).shape
        torch.Size([32, 256])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        experts: int = 2,
        *,
        bias: bool = True,
        copies: int = 1,
        **options: Unpack[MoVEOptions],
    ) -> None:
        require_positive(in_features=in_features, out_features=out_features)
        super().__init__(
            weight_shape=(in_features, out_features),
            units=out_features,
            expand_units=partial(torch.unsqueeze, dim=1),
            unit_layout=(in_features, out_features, 1),
            fan_in=in_features,
            gate_features=in_features,
            bias=bias,
            experts=experts,
            copies=copies,
            **options,
        )
        self.in_features = in_features
        self.out_features = out_features
        self._compiled = Compiled()

    @property
    def weight(self) -> ExpertWeights:
        """A handle for code that reads `.weight` of a linear map, as torch's attention does; see `ExpertWeights`."""
        if self.copies > 1:
            raise AttributeError(f"a MoVELinear of {self.copies} copies has no one weight")
        return ExpertWeights.of(self)

    def forward(self, x: Tensor) -> Tensor:
        """``(*, in_features)`` to ``(*, out_features)``."""
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise InputError(f"MoVELinear expects (*, {self.in_features}), got a tensor of shape {tuple(x.shape)}")
        self._check_type(x)
        if self.copies > 1:
            return self._mixture(self._for_copies(x))
        if x.dim() == 2:
            return self._mixture(x.unsqueeze(0)).squeeze(0)
        flat = x.reshape(1, -1, self.in_features)
        return self._mixture(flat).view(*x.shape[:-1], self.out_features)

    def _for_copies(self, x: Tensor) -> Tensor:
        """``[C, B, in]``."""
        if x.dim() == 2:
            x = x.expand(self.copies, *x.shape)
        if x.dim() != 3 or len(x) != self.copies:
            raise InputError(
                f"{self.copies} copies expect (B, {self.in_features}) or ({self.copies}, B, {self.in_features}), "
                f"got a tensor of shape {tuple(x.shape)}"
            )
        return x.contiguous()

    def _mixture(self, x: Tensor) -> Tensor:
        """The answer to a batch ``[C, B, in]``."""
        self.__dict__["_trace"] = Trace()  # so that the memory of the last pass is free, if nobody else needs it
        features = None
        if self.experts > 1 and (self.context or self.gate_kind == "path"):
            features = self._asked(x.flatten(0, 1)).unflatten(0, (self.copies, x.shape[1]))
        answer = self._compiled.run([self], x, features=features)
        if answer is None:
            return self._plain(x.flatten(0, 1)).view(self.copies, x.shape[1], self.out_features)
        out, every, usage, terms, complete = answer
        # where it is: torch's own way to set an attribute is slow
        self.__dict__["_trace"] = Trace(every[0] if every else None, usage, terms, complete)
        return out

    def _operator(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)

    def _norm(self, x: Tensor) -> Tensor:
        return (x.square().sum(1, keepdim=True) + TINY).sqrt()

    def _gate_input(self, x: Tensor) -> Tensor:
        return x

    def _per_channel(self, values: Tensor, like: Tensor) -> Tensor:
        return values

    def extra_repr(self) -> str:
        """Shown by print."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {self._options_repr()}"
