import copy

import pytest
import torch

from hvcl.optim import SmallAdam
from hvcl.rl.dense import StackedDense
from hvcl.rl.networks import mirror, twin_of
from hvcl.rl.part import Part


@pytest.mark.parametrize("hidden", [(5, 7), (5,)])
@pytest.mark.parametrize("copies", [1, 2])
def test_written_out_and_plain_agree(hidden, copies):
    torch.manual_seed(0)
    network = StackedDense(4, 3, hidden, copies).double()
    x = torch.randn(6, 4, dtype=torch.double, requires_grad=True)
    grad = torch.randn(6, 3 * copies, dtype=torch.double)
    answers = network(x), network.plain(x)
    torch.testing.assert_close(*answers, rtol=0, atol=1e-12)
    leaves = [x, *network.parameters()]
    for a, b in zip(*(torch.autograd.grad(answer, leaves, grad) for answer in answers), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


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
    network = twin_of(3, (4,))
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
    part = Part(twin_of(3, (4,)), 0.1)
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
