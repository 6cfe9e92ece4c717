"""The border between Python and C under random sizes, strides, types and states.

Whatever is drawn, compiled code gives what plain operations give, or the same kind of error. `make sanitize` runs this too:
there, every read or write out of bounds is an error.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.layers import MoVEConv1d, MoVEConv2d, MoVELayer, MoVELinear, MoVEStack, loss_terms
from hvcl.ops import chain, diversity, load, squash, tree
from hvcl.ops.border import address, of_rows
from hvcl.ops.gate import gate
from hvcl.ops.held import HeldLayer, held_sums
from hvcl.ops.patches import check_cells, patches_of, threshold_and_pool
from hvcl.ops.pool import mean_and_max
from hvcl.optim import SmallAdam, VariationalAdam, load_optimizer_state

pytestmark = pytest.mark.skipif(load() is None, reason="no compiled library: there is no C compiler, or HVCL_NO_KERNELS is set")

DOCUMENTED = (InputError, IndexError)
"""What the ops raise for arguments that do not fit."""
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def fuzz(examples: int) -> Callable[[Any], Any]:
    """The same examples every time: a failure is a failure of this code, not of this day."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    phases = [Phase.explicit, Phase.generate]
    return settings(
        max_examples=examples, phases=phases, derandomize=True, deadline=None, database=None, suppress_health_check=checks
    )


# -- tensors ------------------------------------------------------------------------------------------------------------------

LAYOUTS = ("contiguous", "transposed", "apart", "expanded", "offset")


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same numbers (of the first row, if expanded) in another layout."""
    match layout:
        case "transposed" if values.dim() > 1:
            return values.transpose(0, -1).contiguous().transpose(0, -1)
        case "apart" if values.dim():
            wide = torch.zeros(*values.shape[:-1], 2 * values.shape[-1] + 1, dtype=values.dtype)
            wide[..., : 2 * values.shape[-1] : 2] = values
            return wide[..., : 2 * values.shape[-1] : 2]
        case "expanded" if values.dim() > 1 and len(values):
            return values[:1].expand_as(values)
        case "offset":
            longer = torch.cat([torch.zeros(3, dtype=values.dtype), values.flatten()])
            return longer[3:].view(values.shape)
    return values


layouts = st.sampled_from(LAYOUTS)
types = st.sampled_from([torch.float32] * 6 + [torch.float64, torch.float16, torch.bfloat16, torch.int64])


def spoiled(draw: Callable[..., Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], str | None]:
    """The tensors, one of them perhaps with another size, type or layout; and which."""
    name = draw(st.sampled_from([None, None, *tensors]))
    if name is None:
        return tensors, None
    value = tensors[name]
    dimension = draw(st.integers(0, max(0, value.dim() - 1)))
    kind = draw(st.sampled_from(["shorter", "longer", "type", "layout", "flat", "deeper"]))
    match kind:
        case "shorter" if value.dim():
            value = value.narrow(dimension, 0, max(0, value.shape[dimension] - 1)).clone()
        case "longer" if value.dim():
            value = torch.cat([value, value.narrow(dimension, 0, min(1, value.shape[dimension]))], dimension)
        case "type":
            value = value.to(draw(st.sampled_from([torch.float64, torch.float16, torch.int32, torch.bool])))
        case "layout":
            value = laid_out(value, "apart")
        case "flat":
            value = value.flatten()
        case "deeper":
            value = value.unsqueeze(0)
    before = tensors[name]
    same = value.shape == before.shape and value.dtype == before.dtype and value.is_contiguous()
    return tensors | {name: value}, None if same else name


# -- layers -------------------------------------------------------------------------------------------------------------------


@st.composite
def options(draw: Callable[..., Any]) -> dict[str, Any]:
    experts = draw(st.sampled_from([1, 1, 2, 3, 5, 64, 65]))
    return {
        "experts": experts,
        "top_k": draw(st.integers(1, min(experts, 4))),
        "estimator": draw(st.sampled_from(["flipout", "local", "mean"])),
        "sigma": draw(st.sampled_from(["weight", "unit"])),
        "routing": draw(st.sampled_from(["argmax", "straight-through", "sample"])),
        "usage": draw(st.sampled_from(["gate", "uniform"])),
        "sigma_transform": draw(st.sampled_from(["exp", "softplus"])),
    }


def outcome(layer: nn.Module, x: Tensor, cotangent: int) -> Any:
    """Answer, terms and gradients of a pass; or the error."""
    layer.zero_grad()
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_() if x.is_floating_point() else x
    try:
        answer = layer(x)
        weight = torch.randn(answer.shape, generator=torch.Generator().manual_seed(cotangent), dtype=torch.float64)
        loss = (answer * weight.to(answer.dtype)).sum()
        if answer.numel():
            for term in loss_terms(layer):
                loss = loss + 0.01 * term.evaluate()
        loss.backward()
    except (InputError, RuntimeError) as error:
        return type(error)
    return [answer.detach(), x.grad, *(p.grad for p in layer.parameters())]


def assert_compiled_is_plain(layer: nn.Module, x: Tensor, training: bool) -> None:
    """Without noise the same numbers (to float32's precision), with noise finite ones; or the same kind of error."""
    for inner in layer.modules():
        if isinstance(inner, MoVELayer):
            inner.kernel_width.fill_(1.0)
    found = outcome(layer.train(training), x, 1)
    with mock.patch("hvcl.ops.border.load", return_value=None):
        expected = outcome(layer, x, 1)
    if isinstance(expected, type):
        assert found is expected
        return
    assert not isinstance(found, type), found
    inner = next(module for module in layer.modules() if isinstance(module, MoVELayer))
    noisy = training and (inner.estimator != "mean" or inner.routing == "sample")
    for one, two in zip(found, expected, strict=True):
        assert (one is None or not one.any()) == (two is None or not two.any()) or noisy
        if one is None or two is None:
            continue
        assert one.shape == two.shape
        if noisy:
            assert one.isfinite().all()
        else:
            scale = max(1.0, float(two.abs().max())) if two.numel() else 1.0
            torch.testing.assert_close(one / scale, two / scale, **CLOSE)


class TestLayers:
    @fuzz(60)
    @given(options(), st.data(), layouts, types, st.booleans())
    def test_dense(self, chosen, data, layout, kind, training):
        draw, torch_seed = data.draw, data.draw(st.integers(0, 99))
        torch.manual_seed(torch_seed)
        inputs, outputs, copies = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.sampled_from([1, 1, 2, 3]))
        layer = MoVELinear(inputs, outputs, copies=copies, bias=draw(st.booleans()), **chosen)
        rows = draw(st.sampled_from([0, 1, 2, 7, 33]))
        shapes = [(rows, inputs), (copies, rows, inputs), (rows, inputs + 1), (2, rows, inputs), (inputs,), (), (inputs, 0)]
        assert_compiled_is_plain(layer, laid_out(torch.randn(draw(st.sampled_from(shapes))), layout).to(kind), training)

    @fuzz(60)
    @given(options(), st.data(), layouts, types, st.booleans())
    def test_convolutions(self, chosen, data, layout, kind, training):
        draw = data.draw
        torch.manual_seed(draw(st.integers(0, 99)))
        chosen["experts"] = min(chosen["experts"], 5)
        make, places = draw(st.sampled_from([(MoVEConv1d, 1), (MoVEConv2d, 2)]))
        size = st.integers(1, 3)
        geometry = {name: tuple(draw(size) for _ in range(places)) for name in ("kernel_size", "stride", "dilation")}
        geometry["padding"] = tuple(draw(st.integers(0, 2)) for _ in range(places))
        channels = draw(st.integers(1, 3))
        layer = make(channels, draw(st.integers(1, 4)), **geometry, bias=draw(st.booleans()), **chosen)
        shape = (draw(st.sampled_from([0, 1, 2, 19])), channels, *(draw(st.integers(0, 7)) for _ in range(places)))
        x = torch.randn(shape if draw(st.booleans()) else shape[draw(st.integers(0, 2)) :])
        assert_compiled_is_plain(layer, laid_out(x, layout).to(kind), training)

    @fuzz(40)
    @given(options(), st.data(), layouts, types, st.booleans())
    def test_stacks(self, chosen, data, layout, kind, training):
        draw = data.draw
        torch.manual_seed(draw(st.integers(0, 99)))
        sizes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
        copies = draw(st.integers(1, 3))
        stack = MoVEStack(sizes, copies=copies, side_by_side=draw(st.booleans()), **chosen)
        rows = draw(st.sampled_from([0, 1, 2, 17]))
        shapes = [(rows, sizes[0]), (copies, rows, sizes[0]), (copies + 1, rows, sizes[0]), (rows, sizes[0] + 1)]
        assert_compiled_is_plain(stack, laid_out(torch.randn(draw(st.sampled_from(shapes))), layout).to(kind), training)

    @fuzz(30)
    @given(options(), st.data())
    def test_parameters_of_another_layout_or_type(self, chosen, data):
        """Somebody may put any tensor into a layer: `layer.posterior.mean = ...`, `.double()` of a part, tied weights."""
        torch.manual_seed(0)
        chosen["experts"] = min(chosen["experts"], 5)
        layer = MoVELinear(4, 3, **chosen)
        name = data.draw(st.sampled_from([name for name, _ in layer.named_parameters()]))
        owner, _, last = name.rpartition(".")
        module = layer.get_submodule(owner)
        value = getattr(module, last).detach()
        setattr(module, last, nn.Parameter(laid_out(value, data.draw(layouts))))
        assert_compiled_is_plain(layer, torch.randn(6, 4), False)
        wrong = data.draw(st.sampled_from([torch.cat([value, value]), value[..., :-1], value.unsqueeze(0), value[:0]]))
        setattr(module, last, nn.Parameter(wrong.clone()))
        with contextlib.suppress(InputError, RuntimeError, IndexError, ValueError):
            layer(torch.randn(6, 4)).sum().backward()


# -- optimisers ---------------------------------------------------------------------------------------------------------------


@st.composite
def altered(draw: Callable[..., Any], value: Any) -> Any:
    """Something else in the place of a part of a state."""
    choices: list[Any] = [None, 3.0, "much", [], {}, torch.zeros(()), torch.zeros(0), torch.zeros(3, 1, 2)]
    if isinstance(value, Tensor):
        choices += [value.double(), value.half(), value.long(), value.unsqueeze(0), torch.cat([value.view(-1)] * 2)]
        choices += [value.flatten()[: value.numel() // 2], value.expand(2, *value.shape), value.clone()]
        choices += [laid_out(value, "transposed"), laid_out(value, "apart")]
    return choices[draw(st.integers(0, len(choices) - 1))]


def network_and_batch(data: st.DataObject) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    sigma, kind = data.draw(st.sampled_from(["weight", "unit"])), data.draw(st.sampled_from(["dense", "conv", "stack"]))
    match kind:
        case "dense":
            return nn.Sequential(MoVELinear(4, 5, 3, sigma=sigma), nn.Linear(5, 2)), torch.randn(8, 4)
        case "conv":
            return MoVEConv1d(2, 3, 2, experts=2, sigma=sigma), torch.randn(8, 2, 5)
    return MoVEStack((4, 5, 2), 2, copies=2, sigma=sigma), torch.randn(8, 4)


class TestStates:
    @fuzz(80)
    @given(st.data())
    def test_variational_adam(self, data):
        """A state that does not fit changes nothing; one that does is stepped on from."""
        network, x = network_and_batch(data)
        optimizer = VariationalAdam(network, lr=0.01)
        for _ in range(2):
            network(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        before = copy.deepcopy(optimizer.state_dict())
        state = copy.deepcopy(before)
        where = data.draw(st.sampled_from(["entry", "entry", "entry", "no entry", "parameter", "key", "state", "groups"]))
        number = data.draw(st.sampled_from(sorted(state["state"])))
        entries = state["state"][number]
        entry = data.draw(st.sampled_from(sorted(entries)))
        match where:
            case "entry":
                entries[entry] = data.draw(altered(entries[entry]))
            case "no entry":
                del entries[entry]
            case "parameter":
                state["state"][number] = data.draw(altered(None))
            case "key":
                state["state"][data.draw(st.sampled_from([-1, 99, None, "mean", 1.5]))] = entries
            case "state":
                state["state"] = data.draw(altered(None))
            case "groups":
                state["param_groups"] = data.draw(st.sampled_from([[], [{}], None, [{"params": []}], state["param_groups"] * 2]))
        load_it = data.draw(st.sampled_from([optimizer.load_state_dict, lambda s: load_optimizer_state(optimizer, s)]))
        try:
            load_it(state)
        except InputError:
            after = optimizer.state_dict()
            for key, own in before["state"].items():
                assert all(torch.equal(value, after["state"][key][name]) for name, value in own.items())
        network(x).square().sum().backward()
        optimizer.step()
        assert all(p.isfinite().all() for p in network.parameters())

    @fuzz(40)
    @given(st.data())
    def test_small_adam(self, data):
        torch.manual_seed(0)
        network, x = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), torch.randn(5, 4)
        optimizer = SmallAdam(list(network.parameters()), 0.01)
        network(x).square().sum().backward()
        optimizer.step()
        before = copy.deepcopy(optimizer.state_dict())
        state = copy.deepcopy(before)
        key = data.draw(st.sampled_from(["first", "second", "count"]))
        match data.draw(st.sampled_from(["part", "whole", "missing"])):
            case "part" if key != "count":
                place = data.draw(st.integers(0, 3))
                state[key][place] = data.draw(altered(state[key][place]))
            case "whole":
                state[key] = data.draw(altered(state[key]))
            case _:
                del state[key]
        try:
            optimizer.load_state_dict(state)
        except InputError:
            after = optimizer.state_dict()
            assert all(torch.equal(a, b) for name in ("first", "second") for a, b in zip(before[name], after[name], strict=True))
            assert torch.equal(before["count"], after["count"])
        optimizer.step()
        assert all(p.isfinite().all() for p in network.parameters())


# -- the operators themselves -------------------------------------------------------------------------------------------------


class TestOperators:
    """Right arguments give the right answer; with one wrong one among them there is an error, and never an answer."""

    @fuzz(60)
    @given(st.lists(st.integers(0, 4), max_size=3), st.lists(st.integers(0, 4), max_size=3), types, layouts)
    def test_an_address_is_of_what_was_promised(self, shape, promised, kind, layout):
        values = laid_out(torch.zeros(shape), layout).to(kind)
        fits = tuple(shape) == tuple(promised) and kind is torch.float32 and values.is_contiguous()
        if fits:
            assert address(values, *promised) == values.data_ptr()
        else:
            with pytest.raises(InputError):
                address(values, *promised)

    @fuzz(60)
    @given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), types, layouts)
    def test_rows_apart(self, rows, columns, promised_rows, promised_columns, kind, layout):
        values = laid_out(torch.zeros(rows, columns), layout).to(kind)
        try:
            at, apart = of_rows(values, promised_rows, promised_columns)
        except InputError:
            return
        assert (rows, columns, kind) == (promised_rows, promised_columns, torch.float32)
        last = 0 if not rows or not columns else (rows - 1) * apart + columns
        assert at == values.data_ptr()
        assert values.storage_offset() + last <= values.untyped_storage().nbytes() // 4

    @fuzz(60)
    @given(st.data())
    def test_chain(self, data):
        draw = data.draw
        sizes, copies = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))), draw(st.integers(1, 3))
        rows = draw(st.integers(0, 9))
        tensors = {"x": torch.randn(rows, sizes[0])}
        for number, (before, after) in enumerate(itertools.pairwise(sizes)):
            tensors[f"weight {number}"] = torch.randn((copies, before, after) if number else (before, copies * after))
            tensors[f"bias {number}"] = torch.randn((copies, 1, after) if number else (copies * after,))
        tensors, wrong = spoiled(draw, tensors)
        x, *parameters = [value.requires_grad_() if value.dtype is torch.float32 else value for value in tensors.values()]
        if wrong is not None and not (wrong == "x" and x.dtype is torch.float32 and x.dim() == 2 and x.shape[1] == sizes[0]):
            with pytest.raises(DOCUMENTED):
                chain.run(load(), x, parameters, sizes, copies)
            return
        answer = chain.run(load(), x, parameters, sizes, copies)
        h = x.expand(copies, *x.shape)
        for number in range(len(sizes) - 1):
            weight, bias = parameters[2 * number : 2 * number + 2]
            if number == 0:
                weight, bias = weight.unflatten(1, (copies, -1)).transpose(0, 1), bias.view(copies, 1, -1)
            h = torch.baddbmm(bias, nn.functional.leaky_relu(h, chain.SLOPE) if number else h, weight)
        expected = h.transpose(0, 1).flatten(1) if len(x) else h.new_zeros(0, copies * sizes[-1])
        torch.testing.assert_close(answer, expected, **CLOSE)
        if len(x):
            every = [x, *parameters]
            found, theirs = (torch.autograd.grad(value.square().sum(), every) for value in (answer, expected))
            for one, two in zip(found, theirs, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-2)

    @fuzz(40)
    @given(st.data())
    def test_squash(self, data):
        draw = data.draw
        rows, actions = draw(st.integers(0, 5)), draw(st.integers(0, 4))
        tensors = {"outputs": torch.randn(rows, 2 * actions), "mask": (torch.rand(rows, actions) > 0.5).float()}
        tensors, wrong = spoiled(draw, tensors)
        outputs, mask = tensors.values()
        if outputs.dtype is torch.float32:
            outputs.requires_grad_()
        try:
            action, density = squash.sample(load(), outputs, mask, (-5.0, 2.0))
        except DOCUMENTED:
            assert wrong is not None
            return
        except ValueError:
            assert mask.dim() != 2
            return
        assert (action.shape, density.shape) == (mask.shape, mask.shape[:1])
        assert (action.abs() <= mask).all()
        (action.sum() + density.sum()).backward()
        assert outputs.grad.isfinite().all()

    @fuzz(40)
    @given(st.data())
    def test_tree(self, data):
        draw = data.draw
        count = draw(st.integers(1, 40))
        nodes = np.arange(count, dtype=draw(st.sampled_from([np.float64, np.float64, np.float64, np.float32])))
        leaves = np.array(draw(st.lists(st.integers(-2, count + 2), max_size=5)), dtype=np.int64)
        with contextlib.suppress(*DOCUMENTED):
            tree.update(load(), nodes, leaves.copy(), draw(st.integers(0, 6)))
            assert len(leaves) == 0 or (leaves.min() >= 0 and leaves.max() < count)
        masses = np.array(draw(st.lists(st.floats(allow_nan=True), max_size=5)), dtype=np.float64)
        with contextlib.suppress(*DOCUMENTED):
            found = tree.find(load(), nodes, masses, draw(st.integers(-1, 9)), draw(st.integers(0, 6)))
            assert ((found >= 0) & (found < count)).all()

    @fuzz(50)
    @given(st.data())
    def test_patches(self, data):
        draw = data.draw
        channels, height, width, size = (draw(st.integers(0, n)) for n in (2, 6, 6, 4))
        step = draw(st.integers(0, 3))
        places = max(0, (height - size) // max(step, 1) + 1) * max(0, (width - size) // max(step, 1) + 1)
        tensors = {
            "image": torch.randn(channels, height, width),
            "rows": torch.zeros(places, channels * size * size),
            "scale": torch.zeros(places),
        }
        tensors, wrong = spoiled(draw, tensors)
        try:
            patches_of(load(), tensors["image"], size, step, 0.1, tensors["rows"], tensors["scale"])
        except (*DOCUMENTED, ValueError):
            assert wrong is not None or min(height, width) < size or size < 1 or step < 1
            return
        image = tensors["image"]
        if channels:
            expected = nn.functional.unfold(image.unsqueeze(0), size)[0].T
            torch.testing.assert_close(
                (tensors["rows"] - tensors["rows"].mean(1, keepdim=True)), expected - expected.mean(1, keepdim=True)
            )

    @fuzz(40)
    @given(st.data())
    def test_cells(self, data):
        draw = data.draw
        places, filters, cells = (draw(st.integers(n, 5)) for n in (1, 1, 1))
        sums = torch.zeros(cells, 2 * filters)
        tensors = {
            "responses": torch.randn(places, filters),
            "scale": torch.ones(places),
            "offset": torch.zeros(filters),
            "cell": torch.randint(0, cells + draw(st.integers(0, 1)), (places,), dtype=torch.int32),
            "up": sums[:, :filters],
            "down": sums[:, filters:],
        }
        tensors, wrong = spoiled(draw, tensors)
        try:
            check_cells(tensors["cell"], len(tensors["up"]))
            both = draw(st.booleans())
            odd, mirrored = (tensors["responses"], tensors["cell"]) if both else (None, None)
            scale, offset = tensors["scale"], tensors["offset"]
            sums = tensors["up"], tensors["down"]
            threshold_and_pool(load(), tensors["responses"], odd, scale, offset, tensors["cell"], mirrored, 0.2, *sums)
        except (*DOCUMENTED, ValueError, RuntimeError):
            assert wrong is not None or int(tensors["cell"].max()) >= cells
            return
        above = ((1 + both) * tensors["responses"] - 0.2).relu()  # of the mirrored side, even minus odd, nothing is left
        expected = torch.zeros(len(tensors["up"]), filters).index_add_(0, tensors["cell"].long(), above)
        torch.testing.assert_close(tensors["up"], expected, **CLOSE)

    @fuzz(40)
    @given(st.data())
    def test_gates(self, data):
        draw = data.draw
        rows, inputs, experts = (draw(st.integers(1, n)) for n in (9, 5, 6))
        tensors = {
            "features": torch.randn(rows, inputs),
            "weight": torch.randn(experts, inputs),
            "bias": torch.randn(experts),
            "prior weight": torch.randn(experts, inputs),
            "prior bias": torch.randn(experts),
        }
        tensors, wrong = spoiled(draw, tensors)
        assume(wrong not in ("features", "weight"))  # whose sizes are those that the others must have
        top_k = draw(st.integers(1, experts))
        parts = list(tensors.values())
        if wrong is not None:
            with pytest.raises(DOCUMENTED):
                gate(load(), *parts, top_k=top_k, sampled=False, through=False)
            return
        routed = gate(load(), *parts, top_k=top_k, sampled=draw(st.booleans()), through=draw(st.booleans()))
        torch.testing.assert_close(routed.log_p, (parts[0] @ parts[1].T + parts[2]).log_softmax(1), **CLOSE)
        assert sorted(routed.rows.tolist()) == sorted(list(range(rows)) * top_k)
        assert (routed.starts[0], routed.starts[-1]) == (0, rows * top_k)

    @fuzz(40)
    @given(st.data())
    def test_distances_and_held_nodes(self, data):
        draw = data.draw
        copies, inputs, outputs = (draw(st.integers(1, 4)) for _ in range(3))
        weights, nodes, rows = (copies, inputs, outputs), (copies, outputs), (copies, inputs + 1, outputs)
        shapes = dict(zip(HeldLayer._fields, (weights, nodes, nodes, weights, nodes, nodes, rows, rows), strict=True))
        tensors, wrong = spoiled(draw, {name: torch.rand(shape) for name, shape in shapes.items()})
        layer = HeldLayer(**tensors)
        if wrong is None:
            moved = layer.holds[:, :-1] * (layer.mean - layer.old_mean) ** 2
            biases = layer.holds[:, -1] * (layer.bias - layer.old_bias) ** 2
            torch.testing.assert_close(held_sums(load(), [layer])[0], moved.sum() + biases.sum(), **CLOSE)
        else:
            with pytest.raises((*DOCUMENTED, ValueError)):
                held_sums(load(), [layer])
        which = draw(st.lists(st.integers(-1, copies), max_size=6))
        out = torch.zeros(copies, copies, dtype=torch.float64)
        values = tensors["mean"]
        try:
            diversity.add_distances(load(), values, False, 1.0, which, out)
        except DOCUMENTED:
            return
        assert len(set(which)) == len(which)
        flat = values.flatten(1)
        for row in which:
            torch.testing.assert_close(out[row].float(), (flat - flat[row]).square().sum(1), **CLOSE)

    @fuzz(40)
    @given(st.lists(st.integers(0, 4), min_size=2, max_size=4), layouts, types)
    def test_pooling(self, shape, layout, kind):
        assume(len(shape) > 2 and all(shape[2:]))
        x = laid_out(torch.randn(shape), layout).to(kind)
        assume(x.is_floating_point())
        places = x.flatten(2)
        torch.testing.assert_close(mean_and_max(x), torch.cat([places.mean(2), places.amax(2)], 1))
