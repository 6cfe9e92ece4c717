from __future__ import annotations

import pytest
import torch
from torch import nn

from hvcl.layers import (
    LossTerm,
    MoVEConv2d,
    MoVELinear,
    VariationalModule,
    consolidate,
    loss_terms,
    sampling,
    variational_modules,
)

TERMS = ["expert_kl", "gate_kl", "conditional_entropy", "marginal_entropy", "diversity"]


class Shift(VariationalModule):
    """A user's own layer: y = x + a, pulled towards its last value."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("before", torch.tensor(0.0))
        self.evaluated = 0

    def forward(self, x):
        return x + self.a + (torch.randn(()) if self.is_sampling else 0.0)

    def pull(self):
        self.evaluated += 1
        return (self.a - self.before) ** 2

    def terms(self):
        return {"pull": self.pull}

    def consolidate(self):
        self.before.copy_(self.a.detach())


class Network(nn.Module):
    """MoVE layers in a Sequential in a ModuleDict, in a list, shared, and a layer that is none of ours."""

    def __init__(self):
        super().__init__()
        shared = MoVELinear(3, 3)
        self.body = nn.ModuleDict({"conv": nn.Sequential(MoVEConv2d(2, 3, 2), nn.ReLU(), nn.Flatten()), "shift": Shift()})
        self.heads = nn.ModuleList([nn.Sequential(nn.Linear(12, 3), shared), shared])

    def forward(self, x):
        x = self.body["shift"](self.body["conv"](x))
        for head in self.heads:
            x = head(x)
        return x


@pytest.fixture
def network():
    torch.manual_seed(0)
    network = Network()
    network(torch.randn(4, 2, 3, 3))
    return network


def test_terms_are_found_in_any_nesting_by_their_dotted_path_each_layer_once(network):
    found = [(term.layer, term.name) for term in loss_terms(network)]
    assert found == [
        *(("body.conv.0", name) for name in TERMS),
        ("body.shift", "pull"),
        *(("heads.0.1", name) for name in TERMS),
    ]
    for term in loss_terms(network):
        assert isinstance(term, LossTerm)
        assert term.evaluate().shape == ()
    assert network.get_submodule("heads.0.1") is network.heads[1]
    assert [name for name, _ in variational_modules(network)] == ["body.conv.0", "body.shift", "heads.0.1"]


def test_a_layer_by_itself_has_the_empty_name():
    layer = MoVELinear(2, 2)
    layer(torch.randn(3, 2))
    assert [term.layer for term in loss_terms(layer)] == [""] * 5


def test_a_network_without_our_layers_has_no_terms():
    network = nn.Sequential(nn.Linear(2, 2))
    assert list(loss_terms(network)) == []
    assert consolidate(network) == 0


def test_terms_cost_nothing_until_they_are_evaluated(network):
    terms = [term for term in loss_terms(network) if term.name == "pull"]
    assert network.body["shift"].evaluated == 0
    assert terms[0].evaluate().item() == 4.0
    assert network.body["shift"].evaluated == 1


def test_consolidate_reaches_every_layer_once_and_counts(network):
    assert consolidate(network) == 3
    network(torch.randn(4, 2, 3, 3))
    kls = {(t.layer, t.name): t.evaluate().item() for t in loss_terms(network) if t.name in ("expert_kl", "gate_kl", "pull")}
    assert len(kls) == 5
    assert set(kls.values()) == {0.0}


def test_terms_give_gradients_to_their_own_layer(network):
    sum(term.evaluate() for term in loss_terms(network) if term.layer == "heads.0.1").backward()
    assert network.heads[1].posterior.mean.grad.norm() > 0
    assert network.body["shift"].a.grad is not None  # the gates' terms reach back through the input of the layer
    assert network.body["conv"][0].posterior.mean.grad.norm() > 0


def test_sampling_reaches_every_layer_and_restores_each_state(network):
    network.eval()
    shift, conv = network.body["shift"], network.body["conv"][0]
    shift.sample_in_eval = True
    assert not conv.is_sampling
    with sampling(network):
        assert conv.is_sampling
        assert shift.is_sampling
        assert network.heads[1].is_sampling
        with sampling(network.heads):
            assert network.heads[1].is_sampling
        assert network.heads[1].is_sampling
    assert not conv.is_sampling
    assert not network.heads[1].is_sampling
    assert shift.is_sampling


def test_sampling_restores_after_an_exception(network):
    network.eval()

    def fail():
        with sampling(network):
            assert all(inner.is_sampling for _, inner in variational_modules(network))
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert not any(inner.is_sampling for _, inner in variational_modules(network))


def test_evaluation_of_the_network_is_deterministic_and_training_is_not(network):
    x = torch.randn(4, 2, 3, 3)
    assert not torch.equal(network(x), network(x))
    network.eval()
    with torch.no_grad():
        assert torch.equal(network(x), network(x))


def test_an_incomplete_subclass_cannot_be_built():
    class NoTerms(VariationalModule):
        def consolidate(self):
            pass

    with pytest.raises(TypeError, match="terms"):
        NoTerms()


def test_a_task_at_a_time_the_kl_measures_the_last_task_only():
    """The prior after two consolidations is the second posterior, not the first."""
    torch.manual_seed(0)
    layer = MoVELinear(2, 2, dtype=torch.float64)
    first = layer.posterior.mean.detach().clone()
    consolidate(layer)
    with torch.no_grad():
        layer.posterior.mean.add_(1.0)
    consolidate(layer)
    with torch.no_grad():
        layer.posterior.mean.copy_(first)
    variance = layer.posterior.sigma.square()
    torch.testing.assert_close(layer.posterior.kl(), (0.5 / variance).flatten(1).sum(1))
