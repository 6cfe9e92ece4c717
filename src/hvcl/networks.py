"""The paper's architectures, from any kind of layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from hvcl.core.errors import InputError

DenseFactory = Callable[[int, int], nn.Module]
"""(in_features, out_features) to a layer."""

ConvFactory = Callable[[int, int], nn.Module]
"""(in_channels, out_channels) to a 3x3 convolution with stride 2 and padding 1."""


def plain_conv(in_channels: int, out_channels: int) -> nn.Module:
    """The convolution of the paper's CIFAR networks, with stride 2 (stride 4 would collapse 32x32 by the third layer)."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1)


def build_network(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: tuple[int, ...] = (256, 256),
    channels: tuple[int, ...] = (),
    dropout: float = 0.0,
    dense: DenseFactory = nn.Linear,
    conv: ConvFactory = plain_conv,
) -> nn.Sequential:
    """Convolutions (if any), dense layers, and a linear head, with leaky ReLU between and dropout after dense layers.

    `channels=()` flattens the input right away (the MNIST networks); `channels=(8, 16, 32, 64, 128)` with
    `hidden=(256, 256)` is the paper's CIFAR network: 32-16-8-4-2-1.
    """
    if outputs < 1:
        raise InputError(f"sizes must be positive: outputs {outputs}")
    layers, _, width = trunk(input_shape, hidden=hidden, channels=channels, dropout=dropout, dense=dense, conv=conv)
    layers["head"] = dense(width, outputs)
    if channels:
        for layer in layers.values():
            initialise(layer)
    return nn.Sequential(layers)


def trunk(
    input_shape: tuple[int, ...],
    *,
    hidden: tuple[int, ...],
    channels: tuple[int, ...],
    dropout: float = 0.0,
    dense: DenseFactory = nn.Linear,
    conv: ConvFactory = plain_conv,
) -> tuple[OrderedDict[str, nn.Module], list[tuple[int, ...]], int]:
    """Everything before the head, by name; the shapes before each convolution and after the last; the width at the end."""
    if channels and len(input_shape) != 3:
        raise InputError(f"convolutions need inputs of shape (channels, height, width), got {input_shape}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must lie in [0, 1), got {dropout}")
    if any(size < 1 for size in (*hidden, *channels, *input_shape)):
        raise InputError(f"sizes must be positive: inputs {input_shape}, hidden {hidden}, channels {channels}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    shapes = [input_shape]
    for i, size in enumerate(channels):
        shape = shapes[-1]
        layers[f"conv{i}"] = conv(shape[0], size)
        layers[f"conv{i}_act"] = nn.LeakyReLU()
        shapes.append((size, -(-shape[1] // 2), -(-shape[2] // 2)))
    layers["flatten"] = nn.Flatten()
    width = math.prod(shapes[-1])
    for i, size in enumerate(hidden):
        layers[f"dense{i}"] = dense(width, size)
        layers[f"dense{i}_act"] = nn.LeakyReLU()
        if dropout:
            layers[f"dense{i}_drop"] = nn.Dropout(dropout)
        width = size
    return layers, shapes, width


def stages(layers: OrderedDict[str, nn.Module]) -> list[nn.Sequential]:
    """The layers of a trunk in parts that have one layer of weights each."""
    parts = [nn.Sequential()]
    for layer in layers.values():
        if isinstance(layer, nn.Linear | nn.Conv2d) and any(isinstance(part, nn.Linear | nn.Conv2d) for part in parts[-1]):
            parts.append(nn.Sequential())
        parts[-1].append(layer)
    return parts


def normalised(network: nn.Sequential) -> nn.Sequential:
    """The network with layer normalisation after every layer but the head, before its activation."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before: nn.Module | None = None
    for name, layer in network.named_children():
        if isinstance(layer, nn.LeakyReLU):
            width = getattr(before, "out_channels", None)
            size = getattr(before, "out_features", 1)
            layers[name.removesuffix("_act") + "_norm"] = nn.LayerNorm(size) if width is None else nn.GroupNorm(1, width)
        layers[name] = before = layer
    return nn.Sequential(layers)


def initialise(layer: nn.Module) -> None:
    """He et al. (2015) for plain layers, as MoVE layers have it; nothing for others.

    torch's own draws shrink the signal by a factor of about 0.6 a layer: after eight of them, hardly anything is learned in the
    first epochs. The dense networks of three layers keep torch's. A unit of a transposed convolution with stride s hears
    k^2 / s^2 places of every channel.
    """
    if isinstance(layer, nn.ConvTranspose2d):
        heard = layer.in_channels * math.prod(layer.kernel_size) / math.prod(layer.stride)
        nn.init.normal_(layer.weight, std=nn.init.calculate_gain("leaky_relu", 0.01) / math.sqrt(heard))
    elif isinstance(layer, nn.Linear | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, a=0.01, nonlinearity="leaky_relu")
    else:
        return
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
