"""Small dense networks, several of one shape at once, as one node of the graph.

On networks of 64 units autograd's bookkeeping costs more than the arithmetic. So the chain of products is written out here,
forward and backward; `StackedDense.plain` is the same in plain operations, its reference.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

SLOPE = 0.01
"""Of the leaky ReLU below zero."""


class StackedDense(nn.Module):
    """`copies` networks of one shape on the same inputs, ``[B, in]`` to ``[B, copies * out]``, with leaky ReLU between layers.

    The first layer of all copies is one matrix product, the others are batched products. Weights start as those of
    `torch.nn.Linear` do.
    """

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...], copies: int = 1) -> None:
        super().__init__()
        self.copies, self.layers = copies, len(hidden) + 1
        for number, (before, after) in enumerate(itertools.pairwise((inputs, *hidden, outputs))):
            bound = 1 / math.sqrt(before)
            weight = torch.empty((before, copies * after) if number == 0 else (copies, before, after))
            bias = torch.empty(copies * after if number == 0 else (copies, 1, after))
            self.register_parameter(f"weight{number}", nn.Parameter(weight.uniform_(-bound, bound)))
            self.register_parameter(f"bias{number}", nn.Parameter(bias.uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """The answers of all copies side by side."""
        answer: Tensor = _Chain.apply(x, self.copies, *self._parameters.values())  # type: ignore[no-untyped-call]
        return answer

    def plain(self, x: Tensor) -> Tensor:
        """`forward` in plain operations."""
        own = [p for p in self._parameters.values() if p is not None]
        h = torch.addmm(own[1], x, own[0]).view(len(x), self.copies, -1).transpose(0, 1)
        for weight, bias in zip(own[2::2], own[3::2], strict=True):
            h = torch.baddbmm(bias, F.leaky_relu(h, SLOPE), weight)
        return h.transpose(0, 1).reshape(len(x), -1)


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: int, *parameters: Tensor) -> Tensor:
        rows, last = len(x), len(parameters) // 2 - 1
        h = torch.addmm(parameters[1], x, parameters[0])
        saved = [x]
        if last:
            h = F.leaky_relu_(h, SLOPE)
        h = h.view(rows, copies, -1).transpose(0, 1)
        for number in range(1, last + 1):
            saved.append(h)
            h = torch.baddbmm(parameters[2 * number + 1], h, parameters[2 * number])
            if number < last:
                h = F.leaky_relu_(h, SLOPE)
        ctx.save_for_backward(*saved, *parameters[::2])
        return h.transpose(0, 1).reshape(rows, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        needs_x, learns = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        rows = len(grad)
        copies = weights[1].shape[0] if layers > 1 else 1
        g = grad.view(rows, copies, -1).transpose(0, 1) if layers > 1 else grad
        found: list[Tensor | None] = []
        for number in range(layers - 1, 0, -1):
            h = inputs[number]
            found += [g.sum(1, keepdim=True), torch.bmm(h.transpose(1, 2), g)] if learns else [None, None]
            g = torch.ops.aten.leaky_relu_backward(torch.bmm(g, weights[number].transpose(1, 2)), h, SLOPE, True)
        if layers > 1:
            g = g.transpose(0, 1).reshape(rows, -1)
        found += [g.sum(0), inputs[0].T @ g] if learns else [None, None]
        return g @ weights[0].T if needs_x else None, None, *reversed(found)
