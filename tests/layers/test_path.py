"""Layers that are told from outside which expert answers."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError
from hvcl.layers import MoVEConv2d, MoVEConvTranspose2d, MoVELinear, convert, follow, loss_terms
from hvcl.optim import VariationalAdam
from tests.ops.same_noise import SameNoise

from .agreement import TOLERANCE, assert_agrees, moved

EXPERTS = 3
ROWS = 10
PATH = torch.tensor([2, 0, 0, 1, 2, 2, 0, 1, 0, 2])
KINDS = pytest.mark.parametrize("kind", ["linear", "conv", "transpose"])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "plain"])


def build(kind="linear", dtype=torch.float32, experts=EXPERTS, **options):
    """A network all of whose layers take the path, away from its start."""
    torch.manual_seed(0)
    options = {"gate": "path", "experts": experts, "dtype": dtype, "estimator": "mean", **options}
    if kind == "linear":
        layers = [MoVELinear(6, 9, **options), nn.Tanh(), MoVELinear(9, 4, **options)]
    elif kind == "conv":
        layers = [MoVEConv2d(2, 5, 3, padding=1, **options), nn.Tanh(), nn.Flatten(), MoVELinear(80, 4, **options)]
    else:
        layers = [MoVEConvTranspose2d(2, 4, 3, stride=2, **options), nn.Tanh(), nn.Flatten(), MoVELinear(324, 4, **options)]
    return moved(nn.Sequential(*layers))


def batch(kind="linear", dtype=torch.float32, rows=ROWS):
    shape = (6,) if kind == "linear" else (2, 4, 4)
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


@KINDS
@TYPES
def test_every_row_has_the_answer_of_its_own_path(kind, dtype):
    network, x = build(kind, dtype).eval(), batch(kind, dtype)
    with follow(network, PATH):
        mixed = network(x)
    for expert in range(EXPERTS):
        rows = expert == PATH
        with follow(network, expert):
            alone = network(x[rows])
        torch.testing.assert_close(mixed[rows], alone, rtol=1e-5, atol=1e-5)
        with follow(network, (expert + 1) % EXPERTS):
            assert (network(x[rows]) - mixed[rows]).abs().max() > 0.1  # another expert answers otherwise


@TYPES
def test_a_path_is_the_layer_of_one_expert(dtype):
    """The answer has weight 1, whichever the routing."""
    for routing in ("argmax", "straight-through", "sample"):
        layer, x = build(dtype=dtype, routing=routing)[0], batch(dtype=dtype)
        for training in (True, False):
            layer.train(training)
            with follow(layer, 1):
                found = layer(x)
            torch.testing.assert_close(found, x @ layer.posterior.mean[1] + layer.bias[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("routing", ["argmax", "straight-through", "sample"])
def test_compiled_passes_agree_with_plain_ones_in_float64(kind, routing):
    network = build(kind, routing=routing)
    assert_agrees(network, batch(kind), lambda module: follow(module, PATH))


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_compiled_passes_agree_with_plain_ones_on_a_single_path(kind):
    assert_agrees(build(kind), batch(kind), lambda module: follow(module, 2))


@pytest.mark.parametrize("estimator", ["flipout", "local"])
@pytest.mark.parametrize("sigma", ["weight", "unit"])
def test_compiled_noise_is_that_of_the_rows_own_experts(estimator, sigma, monkeypatch):
    layer = build(estimator=estimator, sigma=sigma)[0]
    plain, x = copy.deepcopy(layer).double(), batch()
    noise = SameNoise(monkeypatch)
    with follow(layer, PATH):
        found = layer(x)
    noise.for_plain(plain, len(x))
    with follow(plain, PATH):
        expected = plain(x.double())
    torch.testing.assert_close(found.double(), expected, **TOLERANCE)
    with torch.no_grad():
        mean = torch.stack([row @ plain.posterior.mean[m] + plain.bias[m] for row, m in zip(x.double(), PATH, strict=True)])
    assert (expected - mean).abs().mean() > 0.1  # there was noise


@TYPES
def test_all_copies_take_the_path(dtype):
    torch.manual_seed(0)
    layer = moved(MoVELinear(6, 4, EXPERTS, copies=2, gate="path", dtype=dtype)).eval()
    x = batch(dtype=dtype)
    with follow(layer, PATH):
        found = layer(x)
    for copy_number in range(2):
        numbers = copy_number * EXPERTS + PATH
        expected = torch.einsum("bi,bio->bo", x, layer.posterior.mean[numbers]) + layer.bias[numbers]
        torch.testing.assert_close(found[copy_number], expected, rtol=1e-5, atol=1e-5)


def test_every_row_of_the_flattened_input_has_a_path():
    layer = build()[0].eval()
    x, path = batch(rows=6), torch.tensor([0, 1, 2, 2, 1, 0])
    with follow(layer, path):
        torch.testing.assert_close(layer(x.view(2, 3, 6)).flatten(0, 1), layer(x), rtol=1e-6, atol=1e-6)


def test_a_picture_without_a_batch_takes_a_path_of_one():
    layer, x = build("conv")[0].eval(), batch("conv", rows=1)
    with follow(layer, torch.tensor([2])):
        torch.testing.assert_close(layer(x[0]), layer(x)[0], rtol=1e-6, atol=1e-6)


# -- learning ---------------------------------------------------------------------------------------------------------------


@KINDS
@TYPES
@pytest.mark.parametrize("estimator", ["mean", "flipout", "local"])
def test_only_experts_on_the_path_get_gradients(kind, dtype, estimator):
    network, x = build(kind, dtype, estimator=estimator), batch(kind, dtype)
    with follow(network, torch.where(PATH == 1, 0, PATH)):
        network(x).square().sum().backward()
    for layer in (network[0], network[-1]):
        for name in ("posterior.mean", "bias", *(["posterior.rho"] if estimator != "mean" else [])):
            gradient = layer.get_parameter(name).grad
            assert gradient[0].abs().max() > 1e-3, name
            assert gradient[2].abs().max() > 1e-3, name
            assert torch.equal(gradient[1], torch.zeros_like(gradient[1])), name


@pytest.mark.parametrize("optimiser", ["variational", "torch"])
@pytest.mark.parametrize("sigma", ["weight", "unit"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_only_experts_on_the_path_are_updated(kind, sigma, optimiser):
    """Their KL has a part in the loss, too: a path's weight on other experts is exp(-80)."""
    network, x = build(kind, sigma=sigma, estimator="flipout"), batch(kind)
    start = copy.deepcopy(network)
    make = VariationalAdam if optimiser == "variational" else lambda net, lr: torch.optim.Adam(net.parameters(), lr)
    adam = make(network, lr=0.01)
    for step in range(3):
        torch.manual_seed(step)
        with follow(network, 1):
            loss = network(x).square().mean()
        loss = loss + 0.01 * sum(term.evaluate() for term in loss_terms(network) if term.name == "expert_kl")
        adam.zero_grad()
        loss.backward()
        adam.step()
    for (name, now), before in zip(network.named_parameters(), start.parameters(), strict=True):
        change = (now - before).detach().abs().flatten(1).amax(1)
        assert change[1] > 0.01, name
        assert change[[0, 2]].max() < 1e-12, name
    for (name, now), before in zip(network.named_buffers(), start.buffers(), strict=True):
        assert torch.equal(now, before), name


def test_a_path_gate_has_nothing_to_learn_or_to_save():
    network, other, x = build().eval(), moved(build(), seed=1).eval(), batch()
    assert not list(network[0].gate.parameters())
    assert not [name for name in network.state_dict() if "gate" in name]
    other.load_state_dict(network.state_dict())
    with follow(network, PATH), follow(other, PATH):
        assert torch.equal(other(x), network(x))


# -- terms ------------------------------------------------------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_on_a_single_path_the_gates_cost_nothing(kind, dtype):
    network, x = build(kind, dtype), batch(kind, dtype)
    with follow(network, 2):
        network(x)
    for layer in (network[0], network[-1]):
        assert layer.gate_kl().item() == 0.0
        assert abs(layer.conditional_entropy().item()) < 1e-30
        assert abs(layer.marginal_entropy().item()) < 1e-30
        assert layer.expert_kl().item() == pytest.approx(layer.posterior.kl()[2].item(), rel=1e-5)


@TYPES
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_on_mixed_paths_experts_cost_their_share(kind, dtype):
    network, x = build(kind, dtype), batch(kind, dtype)
    with follow(network, PATH):
        network(x)
    shares = [0.4, 0.2, 0.4]
    for layer in (network[0], network[-1]):
        assert layer.gate_kl().item() == 0.0
        assert abs(layer.conditional_entropy().item()) < 1e-30
        assert layer.marginal_entropy().item() == pytest.approx(-sum(p * math.log(p) for p in shares), rel=1e-5)
        expected = sum(p * kl for p, kl in zip(shares, layer.posterior.kl().tolist(), strict=True))
        assert layer.expert_kl().item() == pytest.approx(expected, rel=1e-5)


def test_consolidation_keeps_the_gate_free():
    network, x = build(), batch()
    network[0].consolidate()
    with follow(network, PATH):
        network(x)
    assert network[0].expert_kl().item() == 0.0
    assert network[0].gate_kl().item() == 0.0


# -- being told -------------------------------------------------------------------------------------------------------------


def test_the_inner_path_counts_and_the_outer_one_comes_back():
    network, x = build().eval(), batch()
    expected = []
    for expert in range(2):
        with follow(network, expert):
            expected.append(network(x))
    with follow(network, 0):
        with follow(network, 1):
            assert torch.equal(network(x), expected[1])
        assert torch.equal(network(x), expected[0])
        with follow(network[0], 1):  # a part of it
            assert not torch.equal(network(x), expected[0])
        assert torch.equal(network(x), expected[0])
    with pytest.raises(InputError, match="follow"):
        network(x)


def test_an_exception_inside_ends_the_path():
    network, x = build(), batch()
    with pytest.raises(ZeroDivisionError), follow(network, 0):
        raise ZeroDivisionError
    with pytest.raises(InputError, match="follow"):
        network(x)


def test_a_network_may_mix_layers_with_gates_of_their_own():
    torch.manual_seed(0)
    network = moved(nn.Sequential(MoVELinear(6, 9, EXPERTS), nn.Tanh(), MoVELinear(9, 4, EXPERTS, gate="path"))).eval()
    x = batch()
    with follow(network, 1):
        found = network(x)
    hidden = network[0](x).tanh()
    torch.testing.assert_close(found, hidden @ network[2].posterior.mean[1] + network[2].bias[1], rtol=1e-5, atol=1e-5)
    assert len(set(network[0].gate_log_probabilities.argmax(1).tolist())) > 1  # the path was none of its business


@KINDS
@TYPES
def test_without_a_path_it_says_whom_to_ask(kind, dtype):
    with pytest.raises(InputError, match=r"hvcl\.layers\.follow"):
        build(kind, dtype)(batch(kind, dtype))


@KINDS
@pytest.mark.parametrize(
    "path",
    [PATH[:-1], PATH.view(-1, 1), PATH.repeat(2), torch.tensor(1), PATH.float(), PATH.double()],
    ids=["short", "2-d", "long", "0-d", "float", "double"],
)
def test_paths_of_another_shape_or_type_are_refused(kind, path):
    network = build(kind)
    with pytest.raises(InputError, match="number for each"), follow(network, path):
        network(batch(kind))


@KINDS
@pytest.mark.parametrize(
    ("path", "named"),
    [(-1, "-1"), (3, "3"), (torch.where(PATH == 1, 3, PATH), "3"), (torch.where(PATH == 1, -2, PATH), "-2")],
    ids=["negative", "too large", "one too large", "one negative"],
)
def test_paths_out_of_range_are_refused(kind, path, named):
    network = build(kind)
    with pytest.raises(InputError, match=f"from 0 to 2, got {named}"), follow(network, path):
        network(batch(kind))


@pytest.mark.parametrize("path", [1.0, 1.5, "1"])
def test_a_path_that_is_no_whole_number_is_refused(path):
    network = build()
    with pytest.raises(InputError), follow(network, path):
        network(batch())


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int64,
        *(kind for kind in (torch.uint8, torch.int16)),
    ],
    ids=str,
)
def test_whole_numbers_of_any_type_are_a_path(dtype):
    network, x = build().eval(), batch()
    with follow(network, PATH):
        expected = network(x)
    with follow(network, PATH.to(dtype)):
        assert torch.equal(network(x), expected)


@pytest.mark.parametrize(
    "kind",
    [
        "linear",
        "conv",
        "transpose",
    ],
)
@pytest.mark.parametrize("path", [1, PATH[:0]], ids=["one", "each"])
def test_an_empty_batch_has_an_empty_answer(kind, path):
    layer = build(kind)[0].eval()
    with follow(layer, 1):
        shape = layer(batch(kind)).shape
    with follow(layer, path):
        assert layer(batch(kind, rows=0)).shape == (0, *shape[1:])


@pytest.mark.parametrize("network", [nn.Linear(6, 4), MoVELinear(6, 4)], ids=["no MoVE layer", "a gate of its own"])
def test_a_network_without_such_layers_is_refused(network):
    with pytest.raises(InputError, match='gate="path"'), follow(network, 0):
        pass


@pytest.mark.parametrize("make", [partial(MoVELinear, 6, 4), partial(MoVEConv2d, 2, 4, 3), partial(MoVEConvTranspose2d, 2, 4, 3)])
@pytest.mark.parametrize("options", [{"top_k": 2}, {"context": 3}, {"top_k": 2, "context": 3}], ids=str)
def test_a_path_goes_with_neither_several_experts_nor_context(make, options):
    with pytest.raises(InputError, match="leave top_k and context"):
        make(experts=3, gate="path", **options)


def test_an_unknown_gate_is_named():
    with pytest.raises(InputError, match="gate must be one of 'softmax', 'path'"):
        MoVELinear(6, 4, gate="paths")


# -- other ways to get such layers ------------------------------------------------------------------------------------------


def test_a_converted_network_predicts_the_same_on_every_path():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(20, 4)).eval()
    ours, x = convert(network, EXPERTS, gate="path"), batch("conv")
    for path in (0, 1, 2, PATH):
        with follow(ours, path):
            torch.testing.assert_close(ours(x), network(x), rtol=1e-5, atol=1e-5)


@TYPES
def test_a_new_expert_is_a_new_path_and_the_others_stay(dtype):
    network, x = build("conv", dtype).eval(), batch("conv", dtype)
    with follow(network, PATH):
        expected = network(x)
    with follow(network, 1):
        of_one = network(x)
    for layer in (network[0], network[-1]):
        assert layer.add_expert(like=1) == EXPERTS
    with follow(network, PATH):
        torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-5)
    with follow(network, EXPERTS):
        torch.testing.assert_close(network(x), of_one, rtol=1e-5, atol=1e-5)
    for layer in (network[0], network[-1]):
        layer.add_expert()
    with follow(network, PATH):
        torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-5)
    with follow(network, EXPERTS + 1):
        assert (network(x) - of_one).abs().max() > 0.1


@TYPES
def test_a_single_expert_needs_no_path_until_there_are_two(dtype):
    layer, x = build(dtype=dtype, experts=1)[0].eval(), batch(dtype=dtype)
    expected = layer(x)
    with follow(layer, 0):
        assert torch.equal(layer(x), expected)
    layer.add_expert(like=0)
    with pytest.raises(InputError, match="follow"):
        layer(x)
    for path in (0, 1):
        with follow(layer, path):
            torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
