"""Dense MoVE layer."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from hvcl.errors import InputError
from hvcl.kernels import Kernels, load_kernels
from hvcl.layers.base import TINY, MoVELayer, MoVEOptions, _require_positive, _Trace
from hvcl.layers.dispatch import Segment
from hvcl.layers.fused import dense_flipout, dense_layer, dense_local_unit


class MoVELinear(MoVELayer):
    r"""A mixture of M variational dense layers: the operator is :math:`A(x; W) = x W` with W of shape ``[in, out]``.

    Takes ``(*, in_features)`` like `torch.nn.Linear`; every row of the flattened input chooses its own experts.
    See `MoVELayer` for the mathematics and `MoVEOptions` for the options.

    Example:
        >>> layer = MoVELinear(784, 256, experts=4)
        >>> layer(torch.randn(32, 784)).shape
        torch.Size([32, 256])
    """

    def __init__(
        self, in_features: int, out_features: int, experts: int = 2, *, bias: bool = True, **options: Unpack[MoVEOptions]
    ) -> None:
        _require_positive(in_features=in_features, out_features=out_features)
        super().__init__(
            weight_shape=(in_features, out_features),
            units=out_features,
            expand_units=partial(torch.unsqueeze, dim=1),
            unit_layout=(in_features, out_features, 1),
            fan_in=in_features,
            gate_features=in_features,
            bias=bias,
            experts=experts,
            **options,
        )
        self.in_features = in_features
        self.out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        """``(*, in_features)`` to ``(*, out_features)``."""
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise InputError(f"MoVELinear expects (*, {self.in_features}), got a tensor of shape {tuple(x.shape)}")
        self._check_type(x)
        if x.dim() == 2:
            return self._mixture(x)
        flat = x.reshape(-1, self.in_features)
        return self._mixture(flat).view(*x.shape[:-1], self.out_features)

    def _mixture(self, x: Tensor) -> Tensor:
        kernels = self._compiled_layer(x)
        if kernels is None:
            return super()._mixture(x)
        self._trace = trace = _Trace()
        batch = dense_layer(x, self.bias, self.posterior, self.gate, kernels)
        if batch.kl is not None and batch.conditional is not None and batch.marginal is not None:
            trace.log_probabilities, trace.usage = batch.log_probabilities, batch.usage
            trace.statistics = (batch.kl, batch.conditional, batch.marginal)
        return batch.answer

    def _compiled_layer(self, x: Tensor) -> Kernels | None:
        """What computes the whole layer in one call, in the cases that it knows: those that training is mostly made of."""
        posterior = self.posterior
        if not (posterior.collects and self.is_sampling and len(x) and self.top_k == 1 and self.routing == "argmax"):
            return None
        if (self.estimator, posterior.sigma_kind) not in (("flipout", "weight"), ("local", "unit")):
            return None
        kernels = load_kernels(x)
        return kernels if kernels is not None and kernels.has_gemm and load_kernels(posterior.mean) is not None else None

    def _experts(self, x: Tensor, segments: list[Segment]) -> Tensor:
        posterior = self.posterior
        if posterior.collects and self.is_sampling:
            match self.estimator, posterior.sigma_kind:
                case "flipout", "weight":
                    return dense_flipout(x, self.bias, posterior, segments)
                case "local", "unit":
                    return dense_local_unit(x, self.bias, posterior, segments)
        return super()._experts(x, segments)

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
