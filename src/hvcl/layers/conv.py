"""Convolutional and transposed convolutional MoVE layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Unpack, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.gates import PathGate, SoftmaxGate
from hvcl.layers.base import TINY, MoVELayer
from hvcl.layers.dispatch import Plan, WholePlan
from hvcl.layers.options import MoVEOptions, require_positive
from hvcl.layers.trace import Trace
from hvcl.ops import MOST_EXPERTS, Library, usable
from hvcl.ops.conv import Convolution, Geometry, Work, run
from hvcl.ops.gate import gate as compiled_gate
from hvcl.ops.pool import mean_and_max

SIZES = 16
"""Different numbers of rows that an expert may get in a batch; see `Plan.padded`."""

Size = int | tuple[int, ...]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class _MoVEConvBase(MoVELayer):
    """What convolutions and transposed convolutions share: channels, geometry, the gate's input, unbatched inputs.

    The gate reads the pooled input, mean and maximum of every channel over the whole picture or (`gate_grid`) over each cell of a
    grid, through one linear map.
    """

    dimensions: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        dilation: Size,
        groups: int,
        bias: bool,
        weight_shape: tuple[int, int],
        expand_units: Callable[[Tensor], Tensor],
        outer: int | None,
        fan_in_per_group: Callable[[tuple[int, ...], tuple[int, ...]], float],
        experts: int,
        options: MoVEOptions,
    ) -> None:
        require_positive(in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise InputError(
                f"in_channels ({in_channels}) and out_channels ({out_channels}) must be divisible by groups ({groups})"
            )
        kernel, steps = self._tuple("kernel_size", kernel_size), self._tuple("stride", stride)
        super().__init__(
            weight_shape=(*weight_shape, *kernel),
            units=out_channels,
            expand_units=expand_units,
            unit_layout=None
            if outer is None
            else (outer, out_channels, math.prod(weight_shape) // outer // out_channels * math.prod(kernel)),
            fan_in=fan_in_per_group(kernel, steps),
            gate_features=2 * in_channels * options.get("gate_grid", 1) ** self.dimensions,
            bias=bias,
            experts=experts,
            **options,
        )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel
        self.stride = steps
        self.dilation = self._tuple("dilation", dilation)
        self.groups = groups

    @classmethod
    def _tuple(cls, name: str, value: Size, least: int = 1) -> tuple[int, ...]:
        values = (value,) * cls.dimensions if isinstance(value, int) else tuple(value)
        if len(values) != cls.dimensions or any(v < least for v in values):
            raise InputError(f"{name} must be an integer >= {least} or a tuple of {cls.dimensions} such, got {value}")
        return values

    def _is_unbatched(self, x: Tensor) -> bool:
        unbatched = x.dim() == self.dimensions + 1
        if (x.dim() != self.dimensions + 2 and not unbatched) or x.shape[-1 - self.dimensions] != self.in_channels:
            places = ", ".join("DHW"[3 - self.dimensions :])
            raise InputError(
                f"{type(self).__name__} expects (batch, {self.in_channels}, {places}) or ({self.in_channels}, {places}), "
                f"got a tensor of shape {tuple(x.shape)}"
            )
        if 0 in x.shape[-self.dimensions :]:
            raise InputError(f"{type(self).__name__} needs inputs of at least one place, got a tensor of shape {tuple(x.shape)}")
        self._check_type(x)
        return unbatched

    def _answer(self, x: Tensor) -> Tensor:
        return self._mixture(x.unsqueeze(0)).squeeze(0) if self._is_unbatched(x) else self._mixture(x)

    def _mixture(self, x: Tensor) -> Tensor:
        """The answer to a batch."""
        return self._plain(x)

    def _arrange(self, plan: Plan, batch: int) -> Plan:
        if (
            isinstance(plan, WholePlan) or batch < SIZES
        ):  # in this order: torch.export would take the batch's size for a condition
            return plan
        return plan.padded(batch // SIZES)

    def _norm(self, x: Tensor) -> Tensor:
        # weights of one commute with the sum over channels: a convolution of one channel per group is enough
        energy = x.square().unflatten(1, (self.groups, -1)).sum(2)
        norm = (self._sum_under_kernel(energy) + TINY).sqrt()
        return norm.repeat_interleave(self.out_channels // self.groups, 1) if self.groups > 1 else norm

    def _sum_under_kernel(self, energy: Tensor) -> Tensor:
        """The operator with weights of one, channel by channel: ``[B, groups, ...]``."""
        return self._operator(energy, energy.new_ones(self.groups, 1, *self.kernel_size), None)

    def _gate_input(self, x: Tensor) -> Tensor:
        if self.gate_grid == 1:
            return mean_and_max(x)
        size = (self.gate_grid,) * self.dimensions
        mean: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[self.dimensions - 1]
        most: Any = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[self.dimensions - 1]
        return torch.cat([mean(x, size).flatten(1), most(x, size).flatten(1)], 1)

    def _per_channel(self, values: Tensor, like: Tensor) -> Tensor:
        return values.view(*values.shape, *[1] * self.dimensions)

    def extra_repr(self) -> str:
        """Shown by print."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"groups={self.groups}, bias={self.bias is not None}, {self._options_repr()}"
        )


class _MoVEConvNd(_MoVEConvBase):
    """A mixture of M variational convolutions; arguments as in torch.nn, options as in `MoVEOptions`."""

    _function: ClassVar[Any]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | Literal["same", "valid"] = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        experts: int = 2,
        **options: Unpack[MoVEOptions],
    ) -> None:
        require_positive(groups=groups)
        channels = in_channels // groups
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            dilation,
            groups,
            bias,
            weight_shape=(out_channels, channels),
            expand_units=partial(_units_first, dimensions=self.dimensions),
            outer=1,
            fan_in_per_group=lambda kernel, _: channels * math.prod(kernel),
            experts=experts,
            options=options,
        )
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise InputError(f"padding_mode must be zeros, reflect, replicate or circular, got {padding_mode!r}")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise InputError(f"padding must be a size, 'same' or 'valid', got {padding!r}")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise InputError("padding='same' needs stride 1, as in torch.nn")
        self.padding = padding if isinstance(padding, str) else self._tuple("padding", padding, least=0)
        self.padding_mode: PaddingMode = padding_mode

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, ...)`` or ``(in_channels, ...)`` to the same with out_channels."""
        return self._answer(x)

    def _mixture(self, x: Tensor) -> Tensor:
        geometry = self._geometry()
        library = None if geometry is None or min(geometry.places(tuple(x.shape[2:]))) < 1 else self._library(x)
        if library is None or geometry is None:
            return self._plain(x)
        posterior = self.posterior
        log_sigma = posterior.log_sigma if self.noise else posterior.rho
        layer = Convolution(posterior.mean, log_sigma, self.bias, geometry, self.noise)
        work = None if self.gate is None else self._work(self.gate, x, library)
        if work is None:
            self._trace = Trace()
        return run(library, layer, work, x, posterior.collector if posterior.collects else None)

    def _library(self, x: Tensor) -> Library | None:
        """The compiled code, if it can serve this batch."""
        if self.experts > MOST_EXPERTS or not x.numel():
            return None
        gate = self.gate
        parameters = (self.posterior.mean, self.posterior.rho, self.bias)
        library = usable(x, *parameters, *(() if gate is None else (gate.weight, gate.bias)))
        return library if library is not None and library.has_gemm else None

    def _work(self, gate: SoftmaxGate | PathGate, x: Tensor, library: Library) -> Work:
        """Ask the gate, and remember its answer for the terms."""
        parts = (gate.weight, gate.bias, gate.prior_weight, gate.prior_bias)
        routed = compiled_gate(
            library,
            self._asked(x),
            *parts,
            top_k=self.top_k,
            sampled=self.routes_randomly,
            through=self.routing != "argmax",
        )
        self._trace = Trace(routed.log_p.unsqueeze(0), usage=routed.usage, terms=routed.terms)
        return Work(routed.weights, routed.rows, routed.starts, self.top_k)

    def _geometry(self) -> Geometry | None:
        """The geometry for compiled code; None for a convolution that it does not support."""
        if self.dimensions > 2 or self.groups != 1 or self.padding_mode != "zeros" or isinstance(self.padding, str):
            return None
        return Geometry(self.kernel_size, self.stride, self.padding, self.dilation)

    def _operator(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self._edges(), mode=self.padding_mode)
            padding = 0  # type: ignore[assignment]
        answer: Tensor = type(self)._function(x, weight, bias, self.stride, padding, self.dilation, self.groups)
        return answer

    def _sum_under_kernel(self, energy: Tensor) -> Tensor:
        padding = self.padding
        if isinstance(padding, str) or self.padding_mode != "zeros" or any(d != 1 for d in self.dilation):
            return super()._sum_under_kernel(energy)
        if any(2 * p > k for p, k in zip(padding, self.kernel_size, strict=True)):  # more than pooling allows
            return super()._sum_under_kernel(energy)
        pool: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[self.dimensions - 1]
        return cast(Tensor, pool(energy, self.kernel_size, self.stride, padding)) * math.prod(self.kernel_size)

    def _edges(self) -> list[int]:
        """Padding before and after each dimension, last dimension first, as F.pad takes it."""
        edges: list[int] = []
        for axis in reversed(range(self.dimensions)):
            if self.padding == "same":
                total = self.dilation[axis] * (self.kernel_size[axis] - 1)
                edges += [total // 2, total - total // 2]
            elif self.padding == "valid":
                edges += [0, 0]
            else:
                edges += [self.padding[axis]] * 2
        return edges


class _MoVEConvTransposeNd(_MoVEConvBase):
    """A mixture of M variational transposed convolutions; arguments as in torch.nn, options as in `MoVEOptions`."""

    _function: ClassVar[Any]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: Literal["zeros"] = "zeros",
        experts: int = 2,
        **options: Unpack[MoVEOptions],
    ) -> None:
        if padding_mode != "zeros":
            raise InputError(f"only padding_mode='zeros' is defined for transposed convolutions, got {padding_mode!r}")
        require_positive(groups=groups)
        channels = in_channels // groups
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            dilation,
            groups,
            bias,
            weight_shape=(in_channels, out_channels // groups),
            expand_units=partial(_units_second, dimensions=self.dimensions, groups=groups, channels=channels),
            outer=in_channels if groups == 1 else None,
            # an output place is reached by about kernel / stride inputs of every channel
            fan_in_per_group=lambda kernel, stride: max(1.0, channels * math.prod(kernel) / math.prod(stride)),
            experts=experts,
            options=options,
        )
        self.padding = self._tuple("padding", padding, least=0)
        self.output_padding = self._tuple("output_padding", output_padding, least=0)
        if any(o >= max(s, d) for o, s, d in zip(self.output_padding, self.stride, self.dilation, strict=True)):
            raise InputError(f"output_padding must be smaller than stride or dilation, got {output_padding}")

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """As torch.nn: `output_size` (its last dimensions) picks among the sizes that a stride leaves open."""
        if output_size is None:
            return self._answer(x)
        before = self.output_padding
        self.output_padding = self._output_padding_for(x, output_size)
        try:
            return self._answer(x)
        finally:
            self.output_padding = before

    def _output_padding_for(self, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        self._is_unbatched(x)
        wanted = tuple(output_size)[-self.dimensions :]
        least = [
            (x.shape[i - self.dimensions] - 1) * self.stride[i]
            - 2 * self.padding[i]
            + self.dilation[i] * (self.kernel_size[i] - 1)
            + 1
            for i in range(self.dimensions)
        ]
        extra = tuple(size - low for size, low in zip(wanted, least, strict=False))
        if len(extra) != self.dimensions or any(not 0 <= e < s for e, s in zip(extra, self.stride, strict=True)):
            most = [low + step - 1 for low, step in zip(least, self.stride, strict=True)]
            raise InputError(f"output_size {tuple(output_size)} is out of reach: between {least} and {most}")
        return extra

    def _operator(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        geometry = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        answer: Tensor = type(self)._function(x, weight, bias, *geometry)
        return answer


def _units_first(units: Tensor, dimensions: int) -> Tensor:
    """``[M, out]`` against convolution weights ``[M, out, in / groups, ...]``."""
    return units.view(*units.shape, *[1] * (dimensions + 1))


def _units_second(units: Tensor, dimensions: int, groups: int, channels: int) -> Tensor:
    """``[M, out]`` against transposed weights ``[M, in, out / groups, ...]``: a group's inputs feed its own outputs."""
    grouped = units.view(len(units), groups, 1, -1).expand(-1, -1, channels, -1)
    return grouped.reshape(len(units), groups * channels, -1, *[1] * dimensions)


class MoVEConv1d(_MoVEConvNd):
    """Counterpart of `torch.nn.Conv1d`; see `MoVELayer` for the mathematics, `MoVEOptions` for the options."""

    dimensions = 1
    _function = staticmethod(F.conv1d)


class MoVEConv2d(_MoVEConvNd):
    """Counterpart of `torch.nn.Conv2d`; see `MoVELayer` for the mathematics, `MoVEOptions` for the options."""

    dimensions = 2
    _function = staticmethod(F.conv2d)


class MoVEConv3d(_MoVEConvNd):
    """Counterpart of `torch.nn.Conv3d`; see `MoVELayer` for the mathematics, `MoVEOptions` for the options."""

    dimensions = 3
    _function = staticmethod(F.conv3d)


class MoVEConvTranspose1d(_MoVEConvTransposeNd):
    """Counterpart of `torch.nn.ConvTranspose1d`; see `MoVELayer` and `MoVEOptions`."""

    dimensions = 1
    _function = staticmethod(F.conv_transpose1d)


class MoVEConvTranspose2d(_MoVEConvTransposeNd):
    """Counterpart of `torch.nn.ConvTranspose2d`; see `MoVELayer` and `MoVEOptions`."""

    dimensions = 2
    _function = staticmethod(F.conv_transpose2d)


class MoVEConvTranspose3d(_MoVEConvTransposeNd):
    """Counterpart of `torch.nn.ConvTranspose3d`; see `MoVELayer` and `MoVEOptions`."""

    dimensions = 3
    _function = staticmethod(F.conv_transpose3d)
