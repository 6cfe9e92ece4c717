"""Stacked small MoVE layers against the layers of `hvcl.layers`."""

import copy

import pytest
import torch

from hvcl.kernels import load_kernels
from hvcl.layers import MoVELinear, loss_terms, sampling
from hvcl.rl.compiled import NAMES as COMPILED
from hvcl.rl.move import StackedMoVE, StackedMoVELinear

NAMES = ["expert_kl", "gate_kl", "conditional_entropy", "marginal_entropy", "diversity"]


def pair(experts, copies, sigma):
    """A stacked layer, and the reference layers that it is made of, with posteriors away from their priors."""
    torch.manual_seed(0)
    stacked = StackedMoVELinear(5, 6, experts, copies, sigma)
    layers = []
    for number in range(copies):
        layer = MoVELinear(5, 6, experts, estimator="local", sigma=sigma)
        rows = slice(number * experts, (number + 1) * experts)
        with torch.no_grad():
            stacked.bias[rows] = torch.randn(experts, 6)
            layer.bias.copy_(stacked.bias[rows])
            for name in ("mean", "rho", "prior_mean", "prior_log_sigma"):
                mine = getattr(stacked.posterior, name)
                mine[rows] += 0.1 * torch.randn_like(mine[rows])
                getattr(layer.posterior, name).copy_(mine[rows])
            if experts > 1:
                stacked.prior_weight[rows] = torch.randn(experts, 5)
                for mine, theirs in (
                    (stacked.gate_weight, "weight"),
                    (stacked.gate_bias, "bias"),
                    (stacked.prior_weight, "prior_weight"),
                ):
                    getattr(layer.gate, theirs).copy_(mine[rows])
        layers.append(layer)
    return stacked, layers


@pytest.mark.parametrize("sigma", ["unit", "weight"])
@pytest.mark.parametrize(("experts", "copies"), [(3, 2), (4, 1), (1, 2)])
def test_answers_terms_and_gradients_are_those_of_the_layers(experts, copies, sigma):
    stacked, layers = pair(experts, copies, sigma)
    x = torch.randn(copies, 40, 5)
    stacked.eval()
    ours = stacked(x)
    theirs = torch.stack([layer.eval()(x[c]) for c, layer in enumerate(layers)])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(ours)
    total, reference = (ours * weight).sum(), (theirs * weight).sum()
    for name in NAMES if experts > 1 else NAMES[:1]:
        mine = getattr(stacked, name)()
        other = sum(getattr(layer, name)() for layer in layers)
        assert mine.item() == pytest.approx(other.item(), rel=1e-4), name
        total, reference = total + mine, reference + other
    total.backward()
    reference.backward()

    def joined(of):
        return torch.cat([of(layer) for layer in layers])

    torch.testing.assert_close(stacked.posterior.mean.grad, joined(lambda layer: layer.posterior.mean.grad), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(stacked.posterior.rho.grad, joined(lambda layer: layer.posterior.rho.grad), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(stacked.bias.grad, joined(lambda layer: layer.bias.grad), rtol=1e-3, atol=1e-4)
    if experts > 1:
        torch.testing.assert_close(stacked.gate_weight.grad, joined(lambda layer: layer.gate.weight.grad), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sigma", ["unit", "weight"])
def test_the_noise_has_the_posteriors_variance(sigma):
    stacked, _ = pair(2, 1, sigma)
    x = torch.randn(1, 3, 5)
    means = stacked.eval()(x).detach()
    stacked.train()
    with torch.no_grad():
        draws = torch.stack([stacked(x) for _ in range(4000)])
    chosen = stacked._choose(x)
    variance = torch.zeros_like(means)
    for row in range(3):
        expert = int(chosen[0, row].argmax())
        spread = (x[0, row].square() @ stacked.posterior.sigma[expert].square()).detach()
        variance[0, row] = chosen[0, row, expert].detach() ** 2 * spread
    torch.testing.assert_close(draws.mean(0), means, rtol=0, atol=5 * float(variance.max().sqrt()) / 4000**0.5)
    torch.testing.assert_close(draws.var(0), variance, rtol=0.15, atol=1e-6)  # sd of a variance of 4000 draws: 2 %


def test_consolidation_makes_all_priors_and_the_task_loss_teaches_the_gate():
    network = StackedMoVE(4, 2, (5,), experts=3, copies=2, sigma="unit", initial_sigma=0.1)
    network.plain(torch.randn(30, 4)).square().sum().backward()
    assert all(layer.gate_weight.grad.abs().sum() > 0 for layer in network.layers)
    for layer in network.layers:
        layer.consolidate()
    network.plain(torch.randn(30, 4))
    terms = {(t.layer, t.name): t.evaluate().item() for t in loss_terms(network)}
    for layer in ("layers.0", "layers.1"):
        assert terms[layer, "expert_kl"] == 0
        assert terms[layer, "gate_kl"] == pytest.approx(0, abs=1e-6)


compiled = pytest.mark.skipif(load_kernels(torch.zeros(1)) is None, reason="there is no C compiler")


def network_of(experts, copies, hidden=(8, 12), transform="exp"):
    """A network away from its priors."""
    torch.manual_seed(0)
    network = StackedMoVE(7, 3, hidden, experts, copies, "unit", 0.5, transform)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        for name, buffer in network.named_buffers():
            if "prior" in name:
                buffer += 0.2 * torch.randn_like(buffer)
    return network


def noise_of(network, space):
    """The normals of the last compiled pass, layer by layer, for rows as they came."""
    kernels = load_kernels(space.x)
    for number, layer in enumerate(network.layers):
        draws = []
        for number_of_copy, call in enumerate(space.calls[number]):
            drawn = kernels.standard_normals(call.seed, torch.empty(space.rows, layer.outputs))
            draws.append(torch.empty_like(drawn))
            draws[-1][space.rows_of[number][number_of_copy] if call.moved else slice(None)] = drawn
        yield torch.stack(draws)


def price(values):
    return sum(weight * value for weight, value in zip((0.3, 0.7, -0.4, 0.6), values, strict=True))


@compiled
@pytest.mark.parametrize("sampling", [True, False])
@pytest.mark.parametrize("transform", ["exp", "softplus"])
@pytest.mark.parametrize(("experts", "copies"), [(3, 2), (4, 1), (1, 2), (1, 1), (6, 2), (14, 1)])
def test_compiled_and_plain_agree(experts, copies, transform, sampling, monkeypatch):
    """Values, terms and gradients of single precision are those that plain operations give in double precision."""
    network = network_of(experts, copies, transform=transform).train(sampling)
    x = torch.randn(40, 7, requires_grad=True)
    weight = torch.randn(40, 3 * copies)
    network.compiled.diverse = True
    answers, terms = network(x), network.compiled.terms
    draws = [draw.double() for draw in noise_of(network, terms.grad_fn.lease.space)]
    ((answers * weight).sum() + price(terms)).backward()

    reference = copy.deepcopy(network).double()
    same = x.detach().double().requires_grad_()
    drawn = iter(draws)
    monkeypatch.setattr(torch, "randn", lambda *_: next(drawn))
    expected = reference.plain(same)
    monkeypatch.undo()
    sums = dict.fromkeys(COMPILED, torch.zeros((), dtype=torch.double))
    for term in loss_terms(reference):
        if term.name in sums:
            sums[term.name] = sums[term.name] + term.evaluate()
    torch.testing.assert_close(answers.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms.double(), torch.stack([*sums.values()]), rtol=1e-4, atol=1e-5)
    ((expected * weight).sum() + price(sums.values())).backward()
    torch.testing.assert_close(x.grad.double(), same.grad, rtol=1e-3, atol=1e-4)
    for (name, mine), theirs in zip(network.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@compiled
def test_compiled_passes_may_overlap_and_add_up():
    network = network_of(3, 2).eval()
    x, y = torch.randn(2, 20, 7)
    network.plain(x).sum().backward()
    network.plain(y).sum().backward()
    expected = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    network.zero_grad()
    first, second = network(x), network(y)
    first.sum().backward()
    second.sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(network(x), first)
    found = [p.grad for name, p in network.named_parameters() if not name.endswith("rho")]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@compiled
@pytest.mark.parametrize(("experts", "transform"), [(4, "exp"), (1, "exp"), (1, "softplus")])
def test_a_network_without_gradients_of_its_own_passes_them_to_its_input(experts, transform):
    network = network_of(experts, 2, transform=transform).eval().requires_grad_(False)
    x = torch.randn(20, 9)[:, 1:8].requires_grad_()
    weight = torch.randn(20, 6)
    found, expected = (torch.autograd.grad((answers * weight).sum(), x)[0] for answers in (network(x), network.plain(x)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for layer in network.layers:
        layer.posterior.rho.fill_(-60.0)
    with sampling(network):  # noise of nothing
        torch.testing.assert_close(torch.autograd.grad((network(x) * weight).sum(), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_without_a_compiler_the_plain_path_serves(monkeypatch):
    network = network_of(2, 1).eval()
    x = torch.randn(9, 7)
    expected = network(x)
    monkeypatch.setattr("hvcl.rl.move.load_kernels", lambda _: None)
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    assert network.compiled.terms is None
