"""Stacks of dense MoVE layers; compiled against plain operations in tests/ops/test_dense.py."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.layers import MoVELinear, MoVEStack, loss_terms, sampling

TERMS = ("expert_kl", "gate_kl", "conditional_entropy", "marginal_entropy", "diversity")


def moved_stack(experts=3, copies=2, **options):
    """A stack away from its priors."""
    torch.manual_seed(0)
    stack = MoVEStack((7, 8, 12, 3), experts, copies=copies, **options)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        for name, buffer in stack.named_buffers():
            if "prior" in name:
                buffer += 0.2 * torch.randn_like(buffer)
    return stack


@pytest.mark.parametrize("sigma", ["unit", "weight"])
@pytest.mark.parametrize(("experts", "copies"), [(3, 2), (4, 1), (1, 2)])
def test_copies_are_layers_of_their_own(experts, copies, sigma):
    torch.manual_seed(0)
    several = MoVELinear(5, 6, experts, copies=copies, sigma=sigma).eval()
    with torch.no_grad():
        for tensor in [*several.parameters(), *(b for n, b in several.named_buffers() if "prior" in n)]:
            tensor.add_(0.1 * torch.randn_like(tensor))
    singles = []
    for number in range(copies):
        single = MoVELinear(5, 6, experts, sigma=sigma).eval()
        state = several.state_dict()
        rows = {name: slice(number * len(own), (number + 1) * len(own)) for name, own in single.state_dict().items()}
        single.load_state_dict({name: state[name][rows[name]] for name in rows})
        singles.append(single)
    x = torch.randn(copies, 40, 5)
    ours = several(x if copies > 1 else x[0]).view(copies, 40, 6)
    theirs = torch.stack([single(x[c]) for c, single in enumerate(singles)])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for name in TERMS if experts > 1 else TERMS[:1]:
        expected = sum(getattr(single, name)() for single in singles)
        assert getattr(several, name)().item() == pytest.approx(expected.item(), rel=1e-4), name


def test_consolidation_makes_all_priors_and_the_task_loss_teaches_the_gate():
    stack = MoVEStack((4, 5, 2), 3, copies=2)
    stack(torch.randn(30, 4)).square().sum().backward()
    assert all(layer.gate.weight.grad.abs().sum() > 0 for layer in stack)
    stack.consolidate()
    stack(torch.randn(30, 4))
    terms = {term.name: term.evaluate().item() for term in loss_terms(stack)}
    assert terms["expert_kl"] == 0
    assert terms["gate_kl"] == pytest.approx(0, abs=1e-5)


def test_passes_may_overlap_and_gradients_add_up():
    stack = moved_stack().eval()
    x, y = torch.randn(2, 20, 7)
    stack.plain(x).sum().backward()
    stack.plain(y).sum().backward()
    expected = {name: p.grad.clone() for name, p in stack.named_parameters() if p.grad is not None}
    stack.zero_grad()
    first, second = stack(x), stack(y)
    first.sum().backward()
    second.sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(stack(x), first)
    own = dict(stack.named_parameters())
    for name, gradient in expected.items():
        torch.testing.assert_close(own[name].grad, gradient, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("experts", [4, 1])
def test_without_gradients_of_its_own_it_passes_them_to_its_input(experts):
    stack = moved_stack(experts).eval().requires_grad_(False)
    x = torch.randn(20, 9)[:, 1:8].requires_grad_()
    weight = torch.randn(2, 20, 3)
    found, expected = (torch.autograd.grad((answers * weight).sum(), x)[0] for answers in (stack(x), stack.plain(x)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for layer in stack:
        layer.posterior.rho.fill_(-60.0)
    with sampling(stack):  # noise of nothing
        torch.testing.assert_close(torch.autograd.grad((stack(x) * weight).sum(), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_without_a_compiled_library_plain_operations_serve(monkeypatch):
    stack = moved_stack(2, 1).eval()
    x = torch.randn(9, 7)
    expected = stack(x)
    monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    torch.testing.assert_close(stack(x), expected, rtol=1e-4, atol=1e-5)
    assert stack.term_vector() is None


@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 5, 7), (2, 5, 6)])
def test_inputs_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match="expects"):
        moved_stack()(torch.zeros(shape))
