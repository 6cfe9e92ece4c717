"""Small plain networks, several of one shape at once, as one node of the graph and one compiled call each way.

On networks of 64 units the bookkeeping of torch's operations costs more than their arithmetic.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops.border import address, of_rows, scratch, structure
from hvcl.ops.dense import SLOPE
from hvcl.ops.library import Library

_Structure = structure("Chain")


class _Call:
    """One batch through the networks, there and back."""

    def __init__(self, library: Library, sizes: tuple[int, ...], copies: int) -> None:
        self.library, self.copies, self.sizes = library, copies, sizes
        self.chain = _Structure(len(sizes) - 1, copies)
        self.chain.slope = SLOPE

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        rows, chain, sizes = len(x), self.chain, self.sizes
        if x.dim() == 2 and (x.stride(1) != 1 or x.stride(0) < x.shape[1]):  # rows over each other are not fine, apart they are
            x = x.contiguous()
        self.hidden = torch.empty(rows * self.copies * sum(sizes[1:-1]), dtype=torch.float32)
        answers = torch.empty(rows, self.copies * sizes[-1], dtype=torch.float32)
        of_sizes, addresses = (ctypes.c_int64 * len(sizes))(*sizes), self._addresses(parameters)
        self.kept = x, of_sizes, addresses
        chain.rows, chain.hidden = rows, address(self.hidden, len(self.hidden))
        chain.x, chain.stride = of_rows(x, rows, sizes[0])
        chain.sizes, chain.parameters = ctypes.addressof(of_sizes), ctypes.addressof(addresses)
        chain.answers = address(answers, rows, self.copies * sizes[-1])
        self.library.functions.chain_forward(ctypes.addressof(chain))
        return answers

    def backward(self, grad: Tensor, parameters: Sequence[Tensor], needs_x: bool) -> tuple[Tensor | None, list[Tensor]]:
        """Gradients of the input and of these parameters (which may be none)."""
        chain, rows, grad = self.chain, len(grad), grad.contiguous()
        gradients = [torch.empty_like(p) for p in parameters]
        g_x = torch.empty(rows, self.sizes[0], dtype=torch.float32) if needs_x else None
        addresses = self._addresses(gradients) if gradients else None
        chain.g_answers = address(grad, rows, self.copies * self.sizes[-1])
        chain.gradients = None if addresses is None else ctypes.addressof(addresses)
        chain.g_x = None if g_x is None else address(g_x, rows, self.sizes[0])
        chain.room = scratch(2 * rows * self.copies * max((0, *self.sizes[1:-1])), "chain").data_ptr()
        self.library.functions.chain_backward(ctypes.addressof(chain))
        return g_x, gradients

    def _addresses(self, tensors: Sequence[Tensor]) -> Any:
        copies, found = self.copies, []
        for layer, (before, after) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            weight, bias = tensors[2 * layer : 2 * layer + 2]
            found.append(address(weight, *((before, copies * after) if layer == 0 else (copies, before, after))))
            found.append(address(bias, *((copies * after,) if layer == 0 else (copies, 1, after))))
        return (ctypes.c_void_p * len(found))(*found)


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


def run(library: Library, x: Tensor, parameters: Sequence[Tensor], sizes: tuple[int, ...], copies: int) -> Tensor:
    """`copies` networks of layers of these sizes on the same inputs ``[B, in]`` (float32), to ``[B, copies * out]``.

    Args:
        library: the compiled code.
        x: rows may be apart from each other.
        parameters: weight and bias of each layer: ``[in, copies * out]`` and ``[copies * out]`` in the first,
            ``[copies, in, out]`` and ``[copies, 1, out]`` in the others.
        sizes: units of one copy, from the input to the output.
        copies: their number.
    """
    call = _Call(library, sizes, copies)
    if not torch.is_grad_enabled():
        return call.forward(x, parameters)
    answer: Tensor = _Chain.apply(x, call, *parameters)  # type: ignore[no-untyped-call]
    return answer
