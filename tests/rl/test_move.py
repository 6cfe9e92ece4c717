"""Stacked small MoVE layers against the layers of `hvcl.layers`."""

import pytest
import torch

from hvcl.layers import MoVELinear, loss_terms
from hvcl.rl.move import StackedMoVE, StackedMoVELinear

NAMES = ["expert_kl", "gate_kl", "conditional_entropy", "marginal_entropy", "diversity"]


def pair(experts, copies, sigma):
    """A stacked layer, and the reference layers that it is made of, with posteriors away from their priors."""
    torch.manual_seed(0)
    stacked = StackedMoVELinear(5, 6, experts, copies, sigma)
    layers = []
    for copy in range(copies):
        layer = MoVELinear(5, 6, experts, estimator="local", sigma=sigma)
        rows = slice(copy * experts, (copy + 1) * experts)
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
    network(torch.randn(30, 4)).square().sum().backward()
    assert all(layer.gate_weight.grad.abs().sum() > 0 for layer in network.layers)
    for layer in network.layers:
        layer.consolidate()
    network(torch.randn(30, 4))
    terms = {(t.layer, t.name): t.evaluate().item() for t in loss_terms(network)}
    for layer in ("layers.0", "layers.1"):
        assert terms[layer, "expert_kl"] == 0
        assert terms[layer, "gate_kl"] == pytest.approx(0, abs=1e-6)
