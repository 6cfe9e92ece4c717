"""Networks of others, turned into networks of MoVE layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from hvcl.core.errors import InputError
from hvcl.layers import MoVEConv2d, MoVELayer, MoVELinear, consolidate, convert, loss_terms
from hvcl.optim import VariationalAdam


class Block(nn.Module):
    """A residual block, as torchvision has it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4, 8, 2), Block(8, 8, 1))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


NETWORKS = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)), (7, 6), 2),
    "resnet": (ResNet, (4, 3, 8, 8), 8),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (4, 6, 8), 3),
    "stack of transformers": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False),
        (4, 6, 8),
        6,
    ),
    "signals": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, dilation=2, padding=2),
            nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1, output_padding=1, groups=2),
            nn.Conv1d(6, 6, 3, groups=3, padding=1, padding_mode="circular"),
        ),
        (5, 2, 9),
        3,
    ),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.ConvTranspose3d(2, 1, 2)), (3, 1, 4, 4, 4), 2),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, (3, 1), padding="same"), nn.ConvTranspose2d(2, 1, 2, dilation=2)),
        (3, 1, 4, 4),
        2,
    ),
    "one layer": (lambda: nn.Linear(6, 3), (7, 6), 1),
}
ALL = pytest.mark.parametrize("name", NETWORKS)


def layers(network: nn.Module) -> dict[str, MoVELayer]:
    return {name: module for name, module in network.named_modules() if isinstance(module, MoVELayer)}


@ALL
@pytest.mark.parametrize(
    "options",
    [{}, {"experts": 1}, {"top_k": 2}, {"experts": 3, "top_k": 3, "routing": "argmax"}, {"routing": "sample", "sigma": "unit"}],
    ids=str,
)
def test_predictions_stay_and_the_given_network_too(name, options):
    make, shape, count = NETWORKS[name]
    torch.manual_seed(0)
    network, x = make().eval(), torch.randn(shape)
    before = copy.deepcopy(network.state_dict())
    converted = convert(network, **options)
    assert len(layers(converted)) == count
    assert not layers(network)
    assert network.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    torch.testing.assert_close(converted(x), network(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(converted(x), network(x), rtol=1e-4, atol=1e-5)


def test_weighted_by_the_gate_answers_shrink():
    """What the documentation says of routing="argmax"."""
    layer, x = nn.Linear(6, 3), torch.randn(7, 6)
    ours = convert(layer, routing="argmax").eval()
    answer = ours(x)
    p = ours.gate_log_probabilities.exp().amax(1, keepdim=True)
    torch.testing.assert_close(answer, p * layer(x), rtol=1e-4, atol=1e-5)


def test_options_reach_every_layer():
    network = convert(ResNet(), 3, estimator="local", sigma="unit", initial_sigma=0.5)
    assert {(layer.experts, layer.estimator, layer.posterior.sigma_kind) for layer in layers(network).values()} == {
        (3, "local", "unit")
    }


@pytest.mark.parametrize("name", ["dense", "resnet", "transformer"])
def test_it_learns_and_experts_part(name):
    make, shape, _ = NETWORKS[name]
    torch.manual_seed(0)
    network, x = convert(make(), 2), torch.randn(32, *shape[1:])
    assert consolidate(network) == len(layers(network))
    with torch.no_grad():
        y = torch.randn_like(network(x))
    optimizer = VariationalAdam(network, lr=0.01)
    losses = []
    for _ in range(30):
        loss = (network(x) - y).square().mean()
        kl = sum(term.evaluate() for term in loss_terms(network) if term.name == "expert_kl")
        optimizer.zero_grad()
        (loss + 1e-4 * kl).backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    for place, layer in layers(network).items():
        assert (layer.posterior.mean[0] - layer.posterior.mean[1]).abs().max() > 1e-3, place


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"skip": "fc"}, {"stem", *(f"blocks.{n}.{c}" for n in (0, 1) for c in ("conv1", "conv2", "downsample.0"))}),
        ({"skip": ["stem", "blocks"]}, {"fc"}),
        ({"only": "blocks.1"}, {"blocks.1.conv1", "blocks.1.conv2", "blocks.1.downsample.0"}),
        ({"only": lambda name, layer: isinstance(layer, nn.Linear)}, {"fc"}),
        (
            {"only": ["blocks.0", "fc"], "skip": lambda name, layer: name.endswith("downsample.0")},
            {"blocks.0.conv1", "blocks.0.conv2", "fc"},
        ),
    ],
    ids=["without one", "without two", "one block", "linear layers", "both"],
)
def test_layers_may_be_chosen(choice, expected):
    assert set(layers(convert(ResNet(), **choice))) == expected


def test_what_is_shared_stays_shared():
    layer = nn.Linear(4, 4)
    inner = nn.Sequential(layer, nn.Tanh())
    network = nn.Sequential(layer, inner, inner, nn.Linear(4, 2))
    converted = convert(network).eval()
    assert len(layers(converted)) == 2
    assert converted[0] is converted[1][0]
    assert converted[1] is converted[2]
    x = torch.randn(3, 4)
    torch.testing.assert_close(converted(x), network.eval()(x), rtol=1e-4, atol=1e-5)


def test_type_mode_and_frozen_parameters_are_kept():
    network = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(2, 2, 1)).double()
    network[0].eval()
    network[0].weight.requires_grad_(False)
    converted = convert(network)
    assert {p.dtype for p in converted.parameters()} == {torch.float64}
    assert (converted[0].training, converted[1].training) == (False, True)
    assert not converted[0].posterior.mean.requires_grad
    assert converted[0].bias.requires_grad
    assert converted[1].posterior.mean.requires_grad


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    return layer


def tied() -> nn.Module:
    network = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    network[1].weight = network[0].weight
    return network


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: OwnLinear(4, 4), "class of its own"),
        (lambda: nn.LazyLinear(4), "class of its own"),
        (lambda: parametrizations.spectral_norm(nn.Linear(4, 4)), "class of its own"),
        (hooked, "hooks"),
        (tied, "also those of 'inner.0'"),
    ],
)
def test_what_cannot_be_converted_is_named_unless_it_is_skipped(make, reason):
    network = nn.Sequential()
    network.add_module("inner", make())
    network.add_module("last", nn.Conv2d(1, 1, 1))
    with pytest.raises(InputError, match=reason) as error:
        convert(network)
    assert "'inner" in str(error.value)
    assert isinstance(convert(network, skip="inner").last, MoVEConv2d)


def test_mistakes_are_named():
    network = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(InputError, match="'head'"):
        convert(network, skip="head")
    with pytest.raises(InputError, match="no linear or convolutional layer"):
        convert(nn.Sequential(nn.ReLU()))
    with pytest.raises(InputError, match="no linear or convolutional layer"):
        convert(network, skip="0")
    with pytest.raises(InputError, match="experts"):
        convert(network, 0)
    with pytest.raises(InputError, match="dtype"):
        convert(network, dtype=torch.float64)
    assert isinstance(network[0], nn.Linear)


def test_a_layer_alone_becomes_one():
    assert isinstance(convert(nn.Linear(2, 3)), MoVELinear)
