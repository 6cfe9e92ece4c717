"""The experts of a convolutional layer, with noise and mixing, as one compiled call each way; see `csrc/conv.c`."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops.border import Arrays, address, optional, random_seed, scratch, structure
from hvcl.ops.dense import FLIPOUT_UNIT, FLIPOUT_WEIGHT, LOCAL_UNIT, LOCAL_WEIGHT, PER_UNIT, PER_WEIGHT
from hvcl.ops.gradients import Sink, Stacked
from hvcl.ops.library import Library

_Conv = structure("Conv")

PATCHES = 200_000
"""Numbers in the patches of a chunk of examples: they stay in the second-level cache."""

LARGEST = 1 << 40
"""Numbers that an array may have: sizes beyond memory must fail where memory is asked for, not in arithmetic."""


class Geometry(NamedTuple):
    """What a convolution of signals or images is given by, each one number or a pair (height, width)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def places(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Height and width of the answer to images of a height and width."""
        spans = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        parts = zip(size, self.padding, spans, self.stride, strict=True)
        return tuple((n + 2 * p - span) // step + 1 for n, p, span, step in parts)


class Convolution(NamedTuple):
    """The experts of a layer; tensors are contiguous float32 on the CPU."""

    mean: Tensor
    """``[M, units, channels, *kernel]``."""
    log_sigma: Tensor
    """Like `mean`, or ``[M, units]``."""
    bias: Tensor | None
    """``[M, units]``."""
    geometry: Geometry
    noise: int


class Work(NamedTuple):
    """Which slots each expert has; as `hvcl.ops.gate.Routed` has them."""

    weights: Tensor
    rows: Tensor
    starts: Tensor
    top_k: int


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layer: Convolution,
        work: Work | None,
        sink: Sink | None,
        library: Library,
        x: Tensor,
        weights: Tensor | None,
        mean: Tensor | None,
        log_sigma: Tensor | None,
        bias: Tensor | None,
        anchor: Tensor | None,
    ) -> Tensor:
        call, memory, out = _forward(layer, work, library, x)
        ctx.call, ctx.memory, ctx.layer, ctx.work, ctx.sink, ctx.library = call, memory, layer, work, sink, library
        ctx.save_for_backward(x, weights, layer.mean, layer.log_sigma, bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_out: Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018  # asking for them makes sure that nobody has changed them
        x, weights = ctx.saved_tensors[:2]
        call, layer, noise = ctx.call, ctx.layer, ctx.layer.noise
        needs_x, _, needs_mean, needs_sigma, needs_bias, needs_anchor = ctx.needs_input_grad[4:]
        units, area, shape = call.units, call.out_height * call.out_width, tuple(layer.mean.shape)
        g_out = g_out.contiguous()
        g_x = torch.empty_like(x) if needs_x else None
        g_weights = torch.empty_like(weights) if weights is not None else None
        g_bias = torch.empty(shape[:2], dtype=torch.float32) if needs_bias else None
        of_unit = torch.empty(shape[:2], dtype=torch.float32) if needs_sigma and noise in PER_UNIT else None
        learns = needs_mean or needs_sigma or ctx.sink is not None
        g_mean = torch.empty(shape, dtype=torch.float32) if learns else None
        g_noise = torch.empty(shape, dtype=torch.float32) if learns and noise in PER_WEIGHT else None
        call.g_out, call.g_x = address(g_out, *g_out.shape), optional(g_x, *x.shape)
        call.g_weights = None if g_weights is None else address(g_weights, len(g_weights))
        call.g_bias, call.g_sigma = optional(g_bias, *shape[:2]), optional(of_unit, *shape[:2])
        call.g_mean, call.g_noise = optional(g_mean, *shape), optional(g_noise, *shape)
        brief = _room(call, layer)
        brief.add(call, "g_answers", call.chunk, units, area)
        brief.lay_out(scratch(brief.end))
        ctx.library.functions.conv_backward(ctypes.addressof(call))
        g_sigma = of_unit
        if g_mean is not None:
            starts = [0, len(x)] if ctx.work is None else ctx.work.starts.tolist()
            used = [a < b for a, b in itertools.pairwise(starts)]
            shared = ctx.memory.shared if noise == FLIPOUT_WEIGHT else None
            idle = [expert for expert, now in enumerate(used) if not now]
            for gradient in (g_mean, g_noise):
                if gradient is not None and idle:
                    gradient[idle] = 0.0
            found = Stacked(g_mean, g_noise, shared, noise == LOCAL_WEIGHT, layer.log_sigma, used)
            if ctx.sink is not None:
                ctx.sink.offer([(ctx.sink, found)])
                g_mean = None
            else:
                g_mean, of_weight = found.multiplied()
                g_sigma = of_weight if noise in PER_WEIGHT and needs_sigma else of_unit
        g_anchor = g_out.new_zeros(()) if needs_anchor else None
        return None, None, None, None, g_x, g_weights, g_mean if needs_mean else None, g_sigma, g_bias, g_anchor


class _Memory(NamedTuple):
    """What a pass leaves for the way back."""

    kept: Tensor
    shared: Tensor | None
    starts: Tensor


def _forward(layer: Convolution, work: Work | None, library: Library, x: Tensor) -> tuple[Any, _Memory, Tensor]:
    """One way; the call's structure, its memory, and the answer."""
    geometry, noise, shape = layer.geometry, layer.noise, tuple(layer.mean.shape)
    rows, size, (experts, units, channels, *_) = len(x), tuple(x.shape[2:]), shape
    places = geometry.places(size)
    inputs, area = math.prod(shape[2:]), math.prod(places)
    top_k = 1 if work is None else work.top_k
    slots = rows * top_k
    call = _Conv()
    call.rows, call.channels, call.units, call.experts, call.top_k = rows, channels, units, experts, top_k
    call.height, call.width = (1, *size)[-2:]
    call.out_height, call.out_width = (1, *places)[-2:]
    call.kernel_height, call.kernel_width = (1, *geometry.kernel)[-2:]
    call.stride_height, call.stride_width = (1, *geometry.stride)[-2:]
    call.padding_height, call.padding_width = (0, *geometry.padding)[-2:]
    call.dilation_height, call.dilation_width = (1, *geometry.dilation)[-2:]
    call.noise, call.chunk = noise, max(1, min(slots, PATCHES // max(1, inputs * area)))
    call.seed = random_seed() if noise else 0
    if max(call.chunk * inputs * area, slots * units * area) > LARGEST:
        raise MemoryError(f"a convolution of {tuple(x.shape)} would need patches of {call.chunk * inputs * area} numbers")
    out = torch.empty(rows, units, *places, dtype=torch.float32)
    starts = torch.tensor([0] + [rows] * experts) if work is None else work.starts
    call.x, call.out = address(x, rows, channels, *size), address(out, *out.shape)
    call.mean, call.bias = address(layer.mean, *shape), optional(layer.bias, experts, units)
    if noise:
        call.log_sigma = address(layer.log_sigma, *(shape if noise in PER_WEIGHT else (experts, units)))
    call.starts = address(starts, experts + 1, dtype=torch.int64)
    if work is not None:
        call.weights, call.rows_of = address(work.weights, slots), address(work.rows, slots, dtype=torch.int64)
    kept = Arrays()
    kept.add(call, "answers", slots, units, area)
    if noise not in (0, FLIPOUT_WEIGHT):
        kept.add(call, "z", slots, units, area)
    if noise in PER_UNIT:
        kept.add(call, "sigma", experts, units)
    if noise == LOCAL_UNIT:
        kept.add(call, "norm", slots, area)
    if noise in PER_WEIGHT:
        kept.add(call, "scaled", *shape)
    if noise in (FLIPOUT_WEIGHT, FLIPOUT_UNIT):
        kept.add(call, "signs_in", slots, channels)
        kept.add(call, "signs_out", slots, units)
    memory = torch.empty(kept.end, dtype=torch.float32)
    kept.lay_out(memory)
    shared = torch.empty(shape[1:], dtype=torch.float32) if noise in (FLIPOUT_WEIGHT, FLIPOUT_UNIT) else None
    call.shared = optional(shared, *shape[1:])
    brief = _room(call, layer)
    brief.lay_out(scratch(brief.end))
    library.functions.conv_forward(ctypes.addressof(call))
    return call, _Memory(memory, shared, starts), out


def _room(call: Any, layer: Convolution) -> Arrays:
    """Memory that a call needs for a chunk."""
    inputs, area = math.prod(layer.mean.shape[2:]), call.out_height * call.out_width
    brief = Arrays()
    brief.add(call, "images", call.chunk, call.channels, call.height, call.width)
    brief.add(call, "patches", call.chunk, inputs, area)
    if layer.noise not in (0, LOCAL_UNIT):
        brief.add(call, "more", call.chunk, inputs, area)
    brief.add(call, "room", call.chunk, call.units + 1, area)
    return brief


def run(library: Library, layer: Convolution, work: Work | None, x: Tensor, sink: Sink | None = None) -> Tensor:
    """A batch of signals or images (not empty) through the experts that `work` names (None: through the only one), mixed.

    Args:
        library: the compiled code.
        layer: the experts.
        work: whose slots are whose.
        x: ``[B, channels, *size]``.
        sink: who takes the experts' gradients; None: autograd.
    """
    weights = None if work is None else work.weights
    if not torch.is_grad_enabled():
        return _forward(layer, work, library, x)[2]
    parameters: tuple[Tensor | None, ...]
    if sink is None:
        parameters = (layer.mean, layer.log_sigma if layer.noise else None, layer.bias, None)
    else:  # whose gradients are not autograd's
        parameters = (None, layer.log_sigma if layer.noise in PER_UNIT else None, layer.bias, sink.anchor)
    out: Tensor = _Run.apply(layer, work, sink, library, x, weights, *parameters)  # type: ignore[no-untyped-call]
    return out
