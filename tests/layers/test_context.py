"""Gates that see more than their layer's input: context from outside, and places in a picture."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError
from hvcl.layers import (
    MoVEConv1d,
    MoVEConv2d,
    MoVEConv3d,
    MoVEConvTranspose2d,
    MoVELinear,
    MoVEStack,
    PooledInput,
    WithContext,
)
from hvcl.optim import VariationalAdam

from .agreement import TOLERANCE, assert_agrees, moved

EXPERTS = 3
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "plain"])
KINDS = pytest.mark.parametrize("kind", ["linear", "conv", "transpose"])


class Given(nn.Module):
    """A reader that gives what it was given, whatever the input."""

    def __init__(self, context):
        super().__init__()
        self.context = context

    def forward(self, x):
        return self.context


def numbers(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def layer(kind="linear", dtype=torch.float32, context=2, **options):
    """One layer whose gate reads context, away from its start."""
    torch.manual_seed(0)
    options = {"experts": EXPERTS, "context": context, "dtype": dtype, "estimator": "mean", **options}
    if kind == "linear":
        return moved(MoVELinear(4, 5, **options))
    if kind == "conv":
        return moved(MoVEConv2d(2, 5, 3, padding=1, **options))
    return moved(MoVEConvTranspose2d(2, 5, 3, stride=2, **options))


def batch(kind="linear", dtype=torch.float32, rows=12):
    return numbers(rows, *((4,) if kind == "linear" else (2, 4, 4)), dtype=dtype)


def probabilities(module, x):
    module(x)
    return module.network.gate_log_probabilities.exp().detach()


# -- the context reaches the gates ------------------------------------------------------------------------------------------


@KINDS
@TYPES
def test_the_gate_depends_on_the_context(kind, dtype):
    """The same input with another context: other probabilities, those of the gate's weights on input and context."""
    inner = layer(kind, dtype).eval()
    x, contexts = batch(kind, dtype), [numbers(12, 2, seed=seed, dtype=dtype) for seed in (2, 3)]
    seen = x if kind == "linear" else torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)
    found = [probabilities(WithContext(inner, Given(context)), x) for context in contexts]
    assert (found[0] - found[1]).abs().amax(1).mean() > 0.05
    for p, context in zip(found, contexts, strict=True):
        expected = (torch.cat([seen, context], 1) @ inner.gate.weight.T + inner.gate.bias).softmax(1).detach()
        torch.testing.assert_close(p, expected, rtol=1e-4, atol=1e-5)


@TYPES
def test_the_experts_answer_to_the_input_alone(dtype):
    inner, x = layer(dtype=dtype, routing="straight-through").eval(), batch(dtype=dtype)
    module = WithContext(inner, Given(numbers(12, 2, seed=2, dtype=dtype)))
    answer = module(x)
    chosen = inner.gate_log_probabilities.argmax(1)
    assert len(set(chosen.tolist())) > 1
    expected = torch.einsum("bi,bio->bo", x, inner.posterior.mean[chosen]) + inner.bias[chosen]
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)


@TYPES
def test_the_prior_gate_reads_the_context_too(dtype):
    """After consolidation gate and prior agree on every context; a gate that has moved in a context's weight alone does not."""
    inner, x = layer(dtype=dtype).eval(), batch(dtype=dtype)
    module = WithContext(inner, Given(numbers(12, 2, seed=2, dtype=dtype)))
    inner.consolidate()
    module(x)
    assert inner.gate_kl().item() == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        inner.gate.weight[0, -1] += 3.0
    module(x)
    assert inner.gate_kl().item() > 1e-3


@TYPES
def test_all_copies_read_the_same_context(dtype):
    torch.manual_seed(0)
    inner = moved(MoVELinear(4, 5, EXPERTS, copies=2, context=2, dtype=dtype)).eval()
    x, context = numbers(2, 12, 4, dtype=dtype), numbers(12, 2, seed=2, dtype=dtype)
    found = probabilities(WithContext(inner, Given(context)), x)
    weight, bias = inner.gate.weight.view(2, EXPERTS, 6), inner.gate.bias.view(2, EXPERTS)
    for number in range(2):
        expected = (torch.cat([x[number], context], 1) @ weight[number].T + bias[number]).softmax(1).detach()
        torch.testing.assert_close(found[number], expected, rtol=1e-4, atol=1e-5)


def test_context_comes_from_the_networks_own_input():
    """In the second layer, too: two inputs that the first layer cannot tell apart get other probabilities there."""
    torch.manual_seed(0)
    network = nn.Sequential(MoVELinear(4, 5, EXPERTS, context=4), nn.Tanh(), MoVELinear(5, 3, EXPERTS, context=4))
    network = moved(network).eval()
    with torch.no_grad():
        network[0].posterior.mean.zero_()
        network[0].bias.fill_(0.5)
        network[0].gate.weight.zero_()  # the hidden units are the same for all inputs
    answers = WithContext(network, PooledInput())
    answers(batch(rows=2))
    first, second = network[2].gate_log_probabilities.exp()
    assert (first - second).abs().max() > 0.05


# -- compiled and plain -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("routing", "top_k"), [("argmax", 1), ("straight-through", 1), ("argmax", 2), ("argmax", 3)])
def test_compiled_passes_agree_with_plain_ones_on_vectors(routing, top_k):
    torch.manual_seed(0)
    options = {"experts": EXPERTS, "context": 4, "estimator": "mean", "routing": routing, "top_k": top_k}
    network = moved(nn.Sequential(MoVELinear(4, 7, **options), nn.Tanh(), MoVELinear(7, 3, **options)))
    assert_agrees(WithContext(network, PooledInput()), batch(rows=30))


@pytest.mark.parametrize(("routing", "top_k"), [("argmax", 1), ("straight-through", 1), ("argmax", 2)])
@pytest.mark.parametrize("gate_grid", [1, 2])
def test_compiled_passes_agree_with_plain_ones_on_pictures(routing, top_k, gate_grid):
    torch.manual_seed(0)
    options = {"experts": EXPERTS, "context": 8, "estimator": "mean", "routing": routing, "top_k": top_k}
    network = nn.Sequential(
        MoVEConv2d(2, 5, 3, padding=1, gate_grid=gate_grid, **options), nn.Tanh(), nn.Flatten(), MoVELinear(80, 3, **options)
    )
    assert_agrees(WithContext(moved(network), PooledInput(2)), batch("conv", rows=20))


def test_compiled_passes_agree_with_plain_ones_on_copies():
    torch.manual_seed(0)
    network = moved(MoVELinear(4, 5, EXPERTS, copies=2, context=4, estimator="mean"))
    assert_agrees(WithContext(network, PooledInput()), batch(rows=30))


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_compiled_passes_teach_a_reader_with_parameters(kind):
    reader = nn.Sequential(nn.Flatten(), nn.Linear(4 if kind == "linear" else 32, 2), nn.Tanh())
    assert_agrees(WithContext(layer(kind), reader), batch(kind, rows=30))


@pytest.mark.parametrize(
    "kind",
    [
        "linear",
        "conv",
    ],
)
def test_a_reader_learns_before_a_frozen_layer(kind):
    inner, x = layer(kind).requires_grad_(False), batch(kind)
    found = WithContext(inner, nn.Sequential(nn.Flatten(), nn.Linear(4 if kind == "linear" else 32, 2)))
    plain = copy.deepcopy(found).double()
    found(x).square().sum().backward()
    plain(x.double()).square().sum().backward()
    assert plain.reader[1].weight.grad.abs().max() > 1e-3
    torch.testing.assert_close(found.reader[1].weight.grad.double(), plain.reader[1].weight.grad, **TOLERANCE)


@pytest.mark.parametrize(
    "kind",
    [
        "linear",
        "conv",
    ],
)
def test_a_pass_whose_context_needs_no_gradient_writes_none(kind):
    """The gradient that the pass before has given away is not its own any more: nobody may write there."""
    inner, x, kept = layer(kind), batch(kind), []
    context = numbers(12, 2, seed=2).requires_grad_()
    handle = context.register_hook(kept.append)
    WithContext(inner, Given(context))(x).square().sum().backward()
    handle.remove()
    (gradient,) = kept
    before = gradient.clone()
    WithContext(inner, Given(numbers(12, 2, seed=3)))(x).square().sum().backward()
    assert before.any()
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_gates_learn_to_read_the_context(kind):
    """Two tasks that only the context tells apart: the gate learns to prefer another expert for each."""
    torch.manual_seed(0)
    if kind == "linear":
        inner, x = MoVELinear(4, 1, 2, context=1, top_k=2, estimator="mean"), batch(rows=64)
    else:
        inner, x = MoVEConv2d(2, 1, 1, experts=2, context=1, top_k=2, estimator="mean"), batch("conv", rows=64)
    context = torch.tensor([1.0, -1.0]).repeat(32).view(-1, 1)
    network = WithContext(inner, Given(context))
    wanted = x.flatten(1)[:, 0] * context[:, 0]
    adam = VariationalAdam(network, lr=0.03)
    for _ in range(400):
        answer = network(x)
        loss = (answer.flatten(1)[:, 0] - wanted).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss.item() < 0.05  # blind to the context, no gate could get below the variance of x, 1
    chosen = inner.gate_log_probabilities.argmax(1)
    assert len(set(chosen[::2].tolist())) == 1
    assert set(chosen[::2].tolist()) != set(chosen[1::2].tolist())


# -- errors -----------------------------------------------------------------------------------------------------------------


@KINDS
@TYPES
def test_without_context_it_says_how_to_give_it(kind, dtype):
    with pytest.raises(InputError, match=r"hvcl\.layers\.WithContext"):
        layer(kind, dtype)(batch(kind, dtype))


@KINDS
@TYPES
@pytest.mark.parametrize("shape", [(12, 3), (12, 1), (11, 2), (1, 2), (12,)], ids=str)
def test_context_of_another_shape_is_refused(kind, dtype, shape):
    network = WithContext(layer(kind, dtype), Given(numbers(*shape, dtype=dtype)))
    with pytest.raises(InputError, match=r"and shape \(12, 2\)"):
        network(batch(kind, dtype))


def test_context_is_gone_after_a_pass_even_after_one_that_failed():
    inner = layer()
    WithContext(inner, Given(numbers(12, 2)))(batch())
    with pytest.raises(InputError, match="WithContext"):
        inner(batch())
    with pytest.raises(InputError, match="expects"):
        WithContext(inner, Given(numbers(12, 2)))(numbers(12, 9))
    with pytest.raises(InputError, match="WithContext"):
        inner(batch())


@pytest.mark.parametrize("network", [nn.Linear(4, 2), MoVELinear(4, 2)], ids=["no MoVE layer", "no context"])
def test_a_network_that_reads_no_context_is_refused(network):
    with pytest.raises(InputError, match="built with context"):
        WithContext(network, PooledInput())(batch())


@pytest.mark.parametrize("context", [-1, 1.5, True, "2"])
def test_a_bad_number_is_named(context):
    with pytest.raises(InputError, match="context must be a whole number"):
        MoVELinear(4, 5, context=context)


@pytest.mark.parametrize(
    "kind",
    [
        "linear",
        "conv",
        "transpose",
    ],
)
def test_an_empty_batch_has_an_empty_answer(kind):
    inner = layer(kind).eval()
    shape = WithContext(inner, Given(numbers(12, 2)))(batch(kind)).shape
    assert WithContext(inner, Given(numbers(0, 2)))(batch(kind, rows=0)).shape == (0, *shape[1:])


@pytest.mark.parametrize("options", [{"gate": "path"}, {"context": 3}], ids=str)
def test_a_stack_has_gates_that_read_their_own_inputs(options):
    with pytest.raises(InputError, match="leave gate and context"):
        MoVEStack((4, 5, 2), 2, **options)


# -- readers ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 28, 28), (2, 5, 7), (1, 2, 2), (9,), (4, 6)], ids=str)
def test_it_says_how_many_numbers_it_reads(shape, cells):
    reader = PooledInput(cells)
    expected = {(9,): 9, (4, 6): 24}.get(shape, shape[0] * cells**2)
    assert reader.features(shape) == expected
    assert reader(numbers(5, *shape)).shape == (5, expected)


def test_pictures_are_averaged_cell_by_cell():
    x = numbers(3, 2, 6, 4)
    expected = torch.stack([x[:, c, i : i + 3, j : j + 2].mean((1, 2)) for c in (0, 1) for i in (0, 3) for j in (0, 2)], 1)
    torch.testing.assert_close(PooledInput(2)(x), expected, rtol=1e-5, atol=1e-6)


def test_vectors_are_read_as_they_are():
    x = numbers(5, 9)
    assert torch.equal(PooledInput(2)(x), x)


@pytest.mark.parametrize("cells", [0, -1, 1.5, True])
def test_a_bad_grid_is_named(cells):
    with pytest.raises(InputError, match="cells"):
        PooledInput(cells)


# -- places -----------------------------------------------------------------------------------------------------------------


def pair(dimensions, dtype):
    """A picture with a bright corner, and the same one turned around: they differ in nothing but places."""
    picture = torch.zeros(1, 2, *[6] * dimensions, dtype=dtype)
    picture[(0, slice(None), *[slice(2)] * dimensions)] = numbers(2, *[2] * dimensions, dtype=dtype).abs()
    return torch.cat([picture, picture.flip(tuple(range(2, 2 + dimensions)))])


@TYPES
@pytest.mark.parametrize(
    ("make", "dimensions"),
    [(MoVEConv1d, 1), (MoVEConv2d, 2), (MoVEConv3d, 3), (MoVEConvTranspose2d, 2)],
    ids=["1-d", "2-d", "3-d", "transposed"],
)
def test_only_a_grid_lets_a_gate_tell_places_apart(make, dimensions, dtype):
    x = pair(dimensions, dtype)
    difference = {}
    for gate_grid in (1, 2):
        torch.manual_seed(0)
        inner = moved(make(2, 3, 3, experts=EXPERTS, gate_grid=gate_grid, dtype=dtype)).eval()
        inner(x)
        first, second = inner.gate_log_probabilities.exp().detach()
        difference[gate_grid] = (first - second).abs().max().item()
    assert difference[1] < 1e-6
    assert difference[2] > 0.05


@pytest.mark.parametrize(("size", "gate_grid"), [(6, 2), (7, 2), (6, 3), (5, 4)])
def test_a_gate_reads_mean_and_maximum_of_every_cell(size, gate_grid):
    """Cell i of n goes from floor(i size / n) to ceil((i + 1) size / n)."""
    inner = moved(MoVEConv2d(2, 3, 3, experts=EXPERTS, gate_grid=gate_grid, dtype=torch.float64)).eval()
    x = numbers(4, 2, size, size, dtype=torch.float64)
    edges = [(i * size // gate_grid, -(-(i + 1) * size // gate_grid)) for i in range(gate_grid)]
    cells = [x[:, c, a:b, d:e] for c in (0, 1) for a, b in edges for d, e in edges]
    seen = torch.stack([cell.mean((1, 2)) for cell in cells] + [cell.amax((1, 2)) for cell in cells], 1)
    inner(x)
    expected = (seen @ inner.gate.weight.T + inner.gate.bias).log_softmax(1).detach()
    torch.testing.assert_close(inner.gate_log_probabilities.detach(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("gate_grid", [1, 2, 3])
def test_compiled_passes_agree_with_plain_ones_on_a_grid(gate_grid):
    torch.manual_seed(0)
    inner = moved(MoVEConv2d(2, 5, 3, padding=1, experts=EXPERTS, gate_grid=gate_grid, estimator="mean"))
    assert_agrees(inner, batch("conv", rows=20))


@pytest.mark.parametrize("make", [partial(MoVELinear, 4, 5), partial(MoVEConv2d, 2, 5, 3)])
@pytest.mark.parametrize("gate_grid", [0, -1, 1.5])
def test_a_bad_gate_grid_is_named(make, gate_grid):
    with pytest.raises(InputError, match="gate_grid"):
        make(gate_grid=gate_grid)
