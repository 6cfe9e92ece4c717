"""What the layers of a network are told from outside: which path to take, and what their gates read beside their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.layers.base import MoVELayer
from hvcl.layers.options import require_positive


@contextmanager
def follow(module: nn.Module, path: int | Tensor) -> Iterator[None]:
    """Within this context, all layers inside `module` with ``gate="path"`` use the experts of `path`.

    Args:
        module: the network.
        path: the number of the expert for every example, or one number ``[B]`` for each of them.
    """
    layers = [layer for layer in _layers(module) if layer.gate_kind == "path"]
    with _told(module, "_path", _checked(path, min((layer.experts for layer in layers), default=0)), layers):
        yield


def _checked(path: int | Tensor, experts: int) -> int | Tensor:
    """The path as layers take it, or `InputError`."""
    if isinstance(path, Tensor):
        if path.is_floating_point() or path.is_complex() or path.dtype is torch.bool:
            raise InputError(f"a path is a whole number for each example, got a tensor of {path.dtype}")
        path = path.to(torch.int64)
        least, most = (int(path.min()), int(path.max())) if path.numel() else (0, 0)
    elif isinstance(path, bool) or not isinstance(path, int):
        raise InputError(f"a path is a whole number, or a tensor of one for each example, got {path!r}")
    else:
        least = most = path
    if experts and not 0 <= least <= most < experts:
        raise InputError(f"the paths of this network are numbers from 0 to {experts - 1}, got {most if least >= 0 else least}")
    return path


@contextmanager
def _told(module: nn.Module, name: str, value: Any, layers: list[MoVELayer]) -> Iterator[None]:
    if not layers:
        kind = 'gate="path"' if name == "_path" else "context"
        raise InputError(f"no MoVE layer of this {type(module).__name__} was built with {kind}")
    before = [layer.__dict__.get(name) for layer in layers]
    try:
        for layer in layers:
            layer.__dict__[name] = value
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            layer.__dict__[name] = old


def _layers(module: nn.Module) -> list[MoVELayer]:
    return [inner for inner in module.modules() if isinstance(inner, MoVELayer)]


class WithContext(nn.Module):
    r"""A network whose gates see more than the outputs of the layer before: p(m | h, c) with c made of the network's input.

    The authors' code lets the gates of its robots read the observation again in every layer. Layers built with ``context=K``
    expect K such numbers.

    Args:
        network: with MoVE layers built with `context`.
        reader: makes c ``[B, K]`` of a batch of inputs, e.g. a `PooledInput`.

    Example:
        >>> reader = PooledInput(2)
        >>> net = nn.Sequential(MoVEConv2d(3, 8, 3, context=12), nn.Flatten(), MoVELinear(8 * 36, 2, context=12))
        >>> WithContext(net, reader)(torch.randn(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    def __init__(self, network: nn.Module, reader: nn.Module) -> None:
        super().__init__()
        self.network, self.reader = network, reader

    def forward(self, x: Tensor) -> Tensor:
        """The network's answer, its gates told of `x`."""
        with _told(self.network, "_context", self.reader(x), [layer for layer in _layers(self.network) if layer.context]):
            answer: Tensor = self.network(x)
        return answer


class PooledInput(nn.Module):
    """Pictures ``[B, C, H, W]`` averaged over a grid of cells, flattened ``[B, C * cells^2]``; other inputs flattened as they
    are.

    Args:
        cells: across and down.
    """

    def __init__(self, cells: int = 4) -> None:
        super().__init__()
        require_positive(cells=cells)
        self.cells = cells

    def forward(self, x: Tensor) -> Tensor:
        """What the gates read."""
        return (F.adaptive_avg_pool2d(x, self.cells) if x.dim() == 4 else x).flatten(1)

    def features(self, input_shape: tuple[int, ...]) -> int:
        """How many numbers that makes of inputs of a shape."""
        return int(self(torch.zeros(1, *input_shape)).shape[1])
