"""The paper's architectures, layer by layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.layers import MoVEConv2d, MoVELinear
from hvcl.networks import build_network, plain_conv, stages, trunk

CIFAR = {"hidden": (256, 256), "channels": (8, 16, 32, 64, 128)}


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def shapes(network: nn.Sequential, *input_shape: int) -> dict[str, tuple[int, ...]]:
    """The shape of one example after every layer."""
    x, found = torch.zeros(2, *input_shape), {}
    for name, layer in network.named_children():
        x = layer(x)
        found[name] = tuple(x.shape[1:])
    return found


def test_the_dense_network() -> None:
    network = build_network((1, 28, 28), 10)
    assert shapes(network, 1, 28, 28) == {
        "flatten": (784,),
        "dense0": (256,),
        "dense0_act": (256,),
        "dense1": (256,),
        "dense1_act": (256,),
        "head": (10,),
    }
    assert parameters(network) == (784 * 256 + 256) + (256 * 256 + 256) + (256 * 10 + 10)
    assert all(isinstance(network.get_submodule(name), nn.LeakyReLU) for name in ("dense0_act", "dense1_act"))


def test_the_convolutional_network() -> None:
    network = build_network((3, 32, 32), 2, **CIFAR)
    assert shapes(network, 3, 32, 32) == {
        "conv0": (8, 16, 16),
        "conv0_act": (8, 16, 16),
        "conv1": (16, 8, 8),
        "conv1_act": (16, 8, 8),
        "conv2": (32, 4, 4),
        "conv2_act": (32, 4, 4),
        "conv3": (64, 2, 2),
        "conv3_act": (64, 2, 2),
        "conv4": (128, 1, 1),
        "conv4_act": (128, 1, 1),
        "flatten": (128,),
        "dense0": (256,),
        "dense0_act": (256,),
        "dense1": (256,),
        "dense1_act": (256,),
        "head": (2,),
    }
    convolutions = [(3, 8), (8, 16), (16, 32), (32, 64), (64, 128)]
    assert parameters(network) == (
        sum(9 * a * b + b for a, b in convolutions) + (128 * 256 + 256) + (256 * 256 + 256) + (256 * 2 + 2)
    )
    assert all(isinstance(network.get_submodule(f"conv{i}_act"), nn.LeakyReLU) for i in range(5))


@pytest.mark.parametrize(("height", "width"), [(28, 28), (7, 5), (1, 1), (9, 32)])
def test_the_head_fits_whatever_the_image_size(height: int, width: int) -> None:
    for channels in ((4,), (4, 8, 8)):
        network = build_network((2, height, width), 3, hidden=(5,), channels=channels)
        assert network(torch.zeros(2, 2, height, width)).shape == (2, 3)


def test_the_networks_answer_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    network = build_network((2, 6, 6), 3, hidden=(7, 5), channels=(4,))
    x = torch.randn(8, 2, 6, 6)
    layer = network.get_submodule
    y = F.leaky_relu(F.conv2d(x, layer("conv0").weight, layer("conv0").bias, stride=2, padding=1))
    y = F.leaky_relu(F.linear(y.flatten(1), layer("dense0").weight, layer("dense0").bias))
    y = F.leaky_relu(F.linear(y, layer("dense1").weight, layer("dense1").bias))
    y = F.linear(y, layer("head").weight, layer("head").bias)
    torch.testing.assert_close(network(x), y)
    assert (network(x) < 0).any(), "nothing may be clipped after the head"


def test_plain_convolutions_are_three_by_three_with_stride_two() -> None:
    conv = plain_conv(3, 8)
    assert isinstance(conv, nn.Conv2d)
    assert conv.weight.shape == (8, 3, 3, 3)
    assert (conv.stride, conv.padding) == ((2, 2), (1, 1))


def test_without_hidden_layers_only_the_head_is_left() -> None:
    network = build_network((4, 5), 3, hidden=())
    assert list(dict(network.named_children())) == ["flatten", "head"]
    assert parameters(network) == 20 * 3 + 3


def test_dropout_follows_the_dense_layers_and_nothing_else() -> None:
    network = build_network((3, 8, 8), 2, hidden=(6, 5), channels=(4, 4), dropout=0.3)
    assert list(dict(network.named_children())) == [
        *("conv0", "conv0_act", "conv1", "conv1_act", "flatten"),
        *("dense0", "dense0_act", "dense0_drop", "dense1", "dense1_act", "dense1_drop", "head"),
    ]
    drops = [layer for layer in network if isinstance(layer, nn.Dropout)]
    assert [drop.p for drop in drops] == [0.3, 0.3]
    without = build_network((3, 8, 8), 2, hidden=(6, 5), channels=(4, 4))
    assert not any(isinstance(layer, nn.Dropout) for layer in without)
    without.load_state_dict(network.state_dict())  # the same names: weights can be carried over
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(network.eval()(x), without(x))


def test_factories_make_every_layer_with_the_right_sizes() -> None:
    asked: list[tuple[str, int, int]] = []

    def dense(a: int, b: int) -> nn.Module:
        asked.append(("dense", a, b))
        return nn.Linear(a, b)

    def conv(a: int, b: int) -> nn.Module:
        asked.append(("conv", a, b))
        return plain_conv(a, b)

    build_network((3, 32, 32), 10, dense=dense, conv=conv, **CIFAR)
    assert asked == [
        *(("conv", a, b) for a, b in [(3, 8), (8, 16), (16, 32), (32, 64), (64, 128)]),
        *(("dense", a, b) for a, b in [(128, 256), (256, 256), (256, 10)]),
    ]


def test_parameters_of_the_move_network() -> None:
    """M experts: means and log-sigmas of the weights, a bias each; and a gate of in + 1 numbers per expert."""
    network = build_network((784,), 2, dense=partial(MoVELinear, experts=4))
    layers = [(784, 256), (256, 256), (256, 2)]
    assert parameters(network) == sum(4 * (2 * a * b + b) + 4 * (a + 1) for a, b in layers)
    assert isinstance(network.get_submodule("head"), MoVELinear)


def test_the_convolutional_move_network_has_the_plain_ones_shapes() -> None:
    conv = partial(MoVEConv2d, kernel_size=3, stride=2, padding=1, experts=2)
    move = build_network((3, 32, 32), 2, dense=partial(MoVELinear, experts=2), conv=conv, **CIFAR)
    assert shapes(move, 3, 32, 32) == shapes(build_network((3, 32, 32), 2, **CIFAR), 3, 32, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"input_shape": (784,), "channels": (8,)},
            r"need inputs of shape \(channels, height, width\), got \(784,\)",
        ),
        ({"input_shape": (28, 28), "channels": (8,)}, r"convolutions need inputs of shape .*, got \(28, 28\)"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
        ({"dropout": float("nan")}, r"dropout must lie in \[0, 1\), got nan"),
        ({"outputs": 0}, "sizes must be positive: outputs 0"),
        ({"hidden": (256, 0)}, r"sizes must be positive: .*hidden \(256, 0\)"),
        ({"hidden": (-5,)}, "sizes must be positive"),
        ({"channels": (8, 0)}, r"sizes must be positive: .*channels \(8, 0\)"),
        ({"input_shape": (3, 0, 32)}, "sizes must be positive"),
    ],
)
def test_settings_that_make_no_network(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_network(**({"input_shape": (3, 32, 32), "outputs": 2} | arguments))


def test_the_signal_passes_through_the_deep_network() -> None:
    """He initialisation keeps the scale (torch's own would leave a hundredth of it); tolerance a factor of four, fixed seed."""
    torch.manual_seed(0)
    outputs = build_network((3, 32, 32), 10, **CIFAR)(torch.randn(256, 3, 32, 32))
    assert 0.25 < outputs.std().item() < 4


def test_a_trunk_has_a_stage_for_each_layer_of_weights() -> None:
    layers, _, _ = trunk((1, 8, 8), hidden=(5, 4), channels=(3, 2), dropout=0.1)
    found = [[type(part).__name__ for part in stage] for stage in stages(layers)]
    convolution, dense = ["Conv2d", "LeakyReLU"], ["Linear", "LeakyReLU", "Dropout"]
    assert found == [convolution, [*convolution, "Flatten"], dense, dense]
    assert [type(part).__name__ for part in stages(trunk((3,), hidden=(4,), channels=())[0])[0]] == [
        "Flatten",
        "Linear",
        "LeakyReLU",
    ]
