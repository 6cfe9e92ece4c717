"""Small dense networks, several of one shape at once, as one node of the graph and one compiled call each way.

On networks of 64 units the bookkeeping of torch's operations costs more than their arithmetic. So the chain of products is one
call of `hvcl.kernels`, forward and backward; `StackedDense.plain` is the same in plain operations, its reference, and what serves
where there is no compiler.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hvcl.kernels import Chain, Kernels, load_kernels, scratch

SLOPE = 0.01
"""Of the leaky ReLU below zero."""


def readable(x: Tensor, width: int) -> bool:
    """Whether compiled code may read rows of so many numbers here. Where not, plain operations know what to do or to say."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.dim() == 2 and x.shape[1] == width


class StackedDense(nn.Module):
    """`copies` networks of one shape on the same inputs, ``[B, in]`` to ``[B, copies * out]``, with leaky ReLU between layers.

    The first layer of all copies is one matrix product, the others are batched products. Weights start as those of
    `torch.nn.Linear` do.
    """

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...], copies: int = 1) -> None:
        super().__init__()
        self.copies, self.layers = copies, len(hidden) + 1
        self.sizes = (inputs, *hidden, outputs)
        for number, (before, after) in enumerate(itertools.pairwise((inputs, *hidden, outputs))):
            bound = 1 / math.sqrt(before)
            weight = torch.empty((before, copies * after) if number == 0 else (copies, before, after), dtype=torch.float32)
            bias = torch.empty(copies * after if number == 0 else (copies, 1, after), dtype=torch.float32)
            self.register_parameter(f"weight{number}", nn.Parameter(weight.uniform_(-bound, bound)))
            self.register_parameter(f"bias{number}", nn.Parameter(bias.uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """The answers of all copies side by side."""
        own = [p for p in self._parameters.values() if p is not None]
        kernels = load_kernels(own[0]) if readable(x, self.sizes[0]) else None
        if kernels is None or not kernels.has_gemm:
            return self.plain(x)
        call = _Call(kernels, self.sizes, self.copies)
        if not torch.is_grad_enabled():
            return call.forward(x, own)
        answer: Tensor = _Chain.apply(x, call, *own)  # type: ignore[no-untyped-call]
        return answer

    def plain(self, x: Tensor) -> Tensor:
        """`forward` in plain operations."""
        own = [p for p in self._parameters.values() if p is not None]
        h = torch.addmm(own[1], x, own[0]).view(len(x), self.copies, -1).transpose(0, 1)
        for weight, bias in zip(own[2::2], own[3::2], strict=True):
            h = torch.baddbmm(bias, F.leaky_relu(h, SLOPE), weight)
        return h.transpose(0, 1).reshape(len(x), -1)


class _Call:
    """The compiled pass of one batch, there and back."""

    def __init__(self, kernels: Kernels, sizes: tuple[int, ...], copies: int) -> None:
        self.kernels, self.copies, self.sizes = kernels, copies, sizes
        self.chain = Chain(len(sizes) - 1, copies)
        self.chain.slope = SLOPE

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        rows, chain, sizes = len(x), self.chain, self.sizes
        if x.stride(1) != 1 or x.stride(0) < x.shape[1]:  # rows apart from each other are fine, rows over each other are not
            x = x.contiguous()
        self.hidden = torch.empty(rows * self.copies * sum(sizes[1:-1]), dtype=torch.float32)
        answers = torch.empty(rows, self.copies * sizes[-1], dtype=torch.float32)
        of_sizes = (ctypes.c_int64 * len(sizes))(*sizes)
        addresses = _addresses(parameters)
        self.kept = x, of_sizes, addresses
        apart = x.stride(0) if rows > 1 else sizes[0]  # a single row may claim any stride, even when it is contiguous
        chain.rows, chain.stride, chain.x, chain.hidden = rows, apart, x.data_ptr(), self.hidden.data_ptr()
        chain.sizes, chain.parameters = ctypes.addressof(of_sizes), ctypes.addressof(addresses)
        chain.answers = answers.data_ptr()
        self.kernels.chain_forward(ctypes.byref(chain))
        return answers

    def backward(self, grad: Tensor, parameters: Sequence[Tensor], needs_x: bool) -> tuple[Tensor | None, list[Tensor]]:
        """Gradients of the input and of these parameters (which may be none)."""
        chain, rows = self.chain, len(grad)
        grad = grad.contiguous()
        gradients = [torch.empty_like(p) for p in parameters]
        g_x = torch.empty(rows, self.sizes[0], dtype=torch.float32) if needs_x else None
        addresses = _addresses(gradients)
        chain.g_answers, chain.gradients = grad.data_ptr(), ctypes.addressof(addresses) if gradients else None
        chain.g_x = None if g_x is None else g_x.data_ptr()
        chain.room = scratch(2 * rows * self.copies * max(self.sizes[1:-1]), "chain").data_ptr()
        self.kernels.chain_backward(ctypes.byref(chain))
        return g_x, gradients


def _addresses(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, call: _Call, *parameters: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(x, *parameters)
        return call.forward(x, parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, *parameters = ctx.saved_tensors  # asking for them makes sure that nobody has changed them
        learns = ctx.needs_input_grad[2]
        g_x, found = ctx.call.backward(grad, parameters if learns else (), ctx.needs_input_grad[0])
        return g_x, None, *(found if learns else [None] * len(parameters))
