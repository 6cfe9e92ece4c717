"""The sums that hold nodes in uncertainty-based continual learning, of all layers in one compiled call; see `csrc/held.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops.border import address, structure
from hvcl.ops.library import Library

_Held = structure("Held")


class HeldLayer(NamedTuple):
    """One layer's nodes ``[C, in, out]``, what they were at the last boundary, and how firmly each weight and bias is held."""

    mean: Tensor
    bias: Tensor
    rho: Tensor
    """sigma = log(1 + exp(rho))."""
    old_mean: Tensor
    old_bias: Tensor
    old_log_sigma: Tensor
    holds: Tensor
    certainties: Tensor


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Library, layers: Sequence[HeldLayer], *parameters: Tensor) -> Tensor:
        every = (_Held * len(layers))(*map(_structure, layers))
        sums = torch.empty(3, dtype=torch.float64)
        library.functions.held_forward(ctypes.addressof(every), len(layers), address(sums, 3, dtype=torch.float64))
        ctx.save_for_backward(*parameters)
        ctx.library, ctx.layers = library, layers
        return sums.float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        gradients = [torch.empty_like(parameter) for parameter in ctx.saved_tensors]
        every = (_Held * len(ctx.layers))(*map(_structure, ctx.layers))
        for number, layer in enumerate(every):
            mean, bias, rho = gradients[3 * number : 3 * number + 3]
            layer.g_mean, layer.g_bias = address(mean, *mean.shape), address(bias, *bias.shape)
            layer.g_raw = address(rho, *rho.shape)
        ctx.library.functions.held_backward(ctypes.addressof(every), len(ctx.layers), address(grad, 3))
        return None, None, *gradients


def _structure(layer: HeldLayer) -> Any:
    copies, inputs, outputs = layer.mean.shape
    weights, nodes, rows = (copies, inputs, outputs), (copies, outputs), (copies, inputs + 1, outputs)
    held = _Held(copies, inputs, outputs)
    shapes = {"mean": weights, "old_mean": weights, "holds": rows, "certainties": rows}
    for name in HeldLayer._fields:
        setattr(held, "raw" if name == "rho" else name, address(getattr(layer, name), *shapes.get(name, nodes)))
    return held


def held_sums(library: Library, layers: Sequence[HeldLayer]) -> Tensor:
    r"""Three sums over all layers: :math:`\sum h (\mu - \mu')^2`, :math:`\sum c |\mu - \mu'|`, and what is paid for sigmas."""
    parameters = [value for layer in layers for value in layer[:3]]
    sums: Tensor = _Sums.apply(library, layers, *parameters)  # type: ignore[no-untyped-call]
    return sums
