"""Small dense networks, several of one shape at once."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.ops import chain, usable
from hvcl.ops.dense import SLOPE


class StackedDense(nn.Module):
    """`copies` networks of one shape on the same inputs, ``[B, in]`` to ``[B, copies * out]``, with leaky ReLU between layers.

    The first layer of all copies is one matrix product, the others are batched products. Weights start as those of
    `torch.nn.Linear` do. A pass is one compiled call each way; `plain` is the same in plain operations, and the reference.
    """

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...], copies: int = 1) -> None:
        super().__init__()
        self.copies, self.layers = copies, len(hidden) + 1
        self.sizes = (inputs, *hidden, outputs)
        for number, (before, after) in enumerate(itertools.pairwise(self.sizes)):
            bound = 1 / math.sqrt(before)
            weight = torch.empty((before, copies * after) if number == 0 else (copies, before, after), dtype=torch.float32)
            bias = torch.empty(copies * after if number == 0 else (copies, 1, after), dtype=torch.float32)
            self.register_parameter(f"weight{number}", nn.Parameter(weight.uniform_(-bound, bound)))
            self.register_parameter(f"bias{number}", nn.Parameter(bias.uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """The answers of all copies side by side."""
        own = [p for p in self._parameters.values() if p is not None]
        fits = x.dtype is torch.float32 and x.is_cpu and x.dim() == 2 and x.shape[1] == self.sizes[0]
        library = usable(*own) if fits else None
        if library is None or not library.has_gemm:
            return self.plain(x)
        return chain.run(library, x, own, self.sizes, self.copies)

    def plain(self, x: Tensor) -> Tensor:
        """`forward` in plain operations."""
        own = [p for p in self._parameters.values() if p is not None]
        h = torch.addmm(own[1], x, own[0]).view(len(x), self.copies, -1).transpose(0, 1)
        for weight, bias in zip(own[2::2], own[3::2], strict=True):
            h = torch.baddbmm(bias, F.leaky_relu(h, SLOPE), weight)
        return h.transpose(0, 1).reshape(len(x), -1)
