import copy

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.layers import MoVEStack
from hvcl.ops import load
from hvcl.optim import SmallAdam
from hvcl.rl.dense import StackedDense
from hvcl.rl.networks import mirror
from hvcl.rl.part import Part

compiled = pytest.mark.skipif(load() is None, reason="there is no C compiler")


def apart(x):
    """The same rows with something between them."""
    return torch.cat([x, torch.full_like(x, 9.0)], 1)[:, : x.shape[1]]


@compiled
@pytest.mark.parametrize("hidden", [(5, 7), (5,), (70, 3, 66)])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("layout", [lambda x: x, apart, lambda x: x.T.contiguous().T, lambda x: x[:1].expand(6, -1)])
def test_compiled_and_plain_agree(hidden, copies, layout):
    torch.manual_seed(0)
    network = StackedDense(4, 3, hidden, copies)
    reference = copy.deepcopy(network).double()
    x = layout(torch.randn(6, 4)).requires_grad_()
    same = x.detach().double().requires_grad_()
    grad = torch.randn(6, 3 * copies)
    answers, expected = network(x), reference.plain(same)
    torch.testing.assert_close(answers.double(), expected, rtol=0, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(network(x), answers)
    found = torch.autograd.grad(answers, [x, *network.parameters()], grad)
    wanted = torch.autograd.grad(expected, [same, *reference.parameters()], grad.double())
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-5)
    network.requires_grad_(False)
    (alone,) = torch.autograd.grad(network(x), x, grad)
    assert torch.equal(alone, found[0])


@compiled
def test_a_single_row_may_claim_any_stride():
    network = StackedDense(4, 3, (5,))
    row = torch.from_numpy(np.random.default_rng(0).random(4, np.float32)[None])  # numpy gives a new axis the stride 0
    assert row.stride(0) == 0
    torch.testing.assert_close(network(row), network.plain(row))
    grads = [torch.autograd.grad(answers(row).sum(), network.weight0)[0] for answers in (network, network.plain)]
    torch.testing.assert_close(*grads)


@compiled
def test_parameters_that_were_changed_before_the_way_back_are_noticed():
    network = StackedDense(4, 3, (5,))
    answers = network(torch.randn(6, 4))
    with torch.no_grad():
        network.weight1.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        answers.sum().backward()


@pytest.mark.parametrize("x", [torch.zeros(6, 3), torch.zeros(6, 4, dtype=torch.double)])
def test_inputs_of_another_kind_are_refused(x):
    for network in (StackedDense(4, 3, (5,)), MoVEStack((4, 5, 3), 2)):
        with pytest.raises((RuntimeError, InputError)):
            network(x)


def test_without_a_compiler_the_plain_path_serves(monkeypatch):
    network, x = StackedDense(4, 3, (5, 7), 2), torch.randn(6, 4)
    expected = network(x)
    monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    torch.testing.assert_close(network(x), expected)


def test_copies_are_networks_of_their_own():
    both = StackedDense(4, 1, (5, 6), copies=2)
    one = StackedDense(4, 1, (5, 6))
    own = dict(both.named_parameters())
    with torch.no_grad():
        one.weight0.copy_(own["weight0"][:, 5:])
        one.bias0.copy_(own["bias0"][5:])
        for name in ("weight1", "bias1", "weight2", "bias2"):
            getattr(one, name).copy_(own[name][1:])
    x = torch.randn(7, 4)
    torch.testing.assert_close(both(x)[:, 1:], one(x))


def test_a_mirror_has_the_present_weights_and_no_gradients_of_its_own():
    network = StackedDense(3, 1, (4,), copies=2)
    image = mirror(network)
    x = torch.randn(5, 3, requires_grad=True)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(image(x), network(x))
    image(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in [*image.parameters(), *network.parameters()])


def test_a_copy_of_a_part_has_a_mirror_of_its_own():
    part = Part(StackedDense(3, 1, (4,), copies=2), 0.1)
    other = copy.deepcopy(part)
    x = torch.randn(5, 3)
    before = part(x).detach()
    other.step(other(x).sum(), 0.0)
    torch.testing.assert_close(other.mirror(x), other(x))
    torch.testing.assert_close(part.mirror(x), before)
    assert not torch.equal(other(x), before)


def test_small_adam_gives_the_numbers_of_torch():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    small, adam = SmallAdam(ours, 0.01), torch.optim.Adam(theirs, 0.01, fused=True)
    for step in range(5):
        if step == 3:  # and after a resume
            state = small.state_dict()
            small = SmallAdam(ours, 0.01)
            small.load_state_dict(state)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        small.step()
        adam.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    small.zero_grad()
    assert all(p.grad is None for p in ours)
