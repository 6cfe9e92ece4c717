import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError
from hvcl.layers import MoVELinear, VariationalModule, consolidate, loss_terms
from hvcl.objective import Cyclic, Objective, TargetInformation


@pytest.fixture
def network():
    torch.manual_seed(0)
    net = nn.Sequential(MoVELinear(5, 8, experts=3), nn.LeakyReLU(), MoVELinear(8, 2, experts=2))
    with torch.no_grad():  # away from the prior, so that every term is non-zero
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def values(network):
    sums = {}
    for term in loss_terms(network):
        sums[term.name] = sums.get(term.name, 0.0) + term.evaluate().item()
    return sums


def test_total_is_the_weighted_sum_of_method_section_2(network):
    x, y = torch.randn(16, 5), torch.randint(2, (16,))
    utility = -nn.functional.cross_entropy(network(x), y, reduction="none")
    weights = {
        "gate_kl": 0.3,
        "expert_kl": 0.7,
        "conditional_entropy": 0.11,
        "marginal_entropy": -0.13,
        "diversity": 0.17,
        "diversity_every": 1,
    }
    total, terms = Objective(**weights)(utility, network, num_data=50)
    parts = values(network)
    expected = (
        -utility.mean().item()
        + 0.3 * parts["gate_kl"]
        + 0.7 / 50 * parts["expert_kl"]
        + 0.11 * parts["conditional_entropy"]
        - 0.13 * parts["marginal_entropy"]
        - 0.17 * parts["diversity"]
    )
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert terms["expert_kl"] == pytest.approx(parts["expert_kl"] / 50, rel=1e-5)
    assert set(terms) == {"utility", *weights} - {"diversity_every"}


def test_beta_multiplies_the_kl_larger_means_closer_to_the_prior(network):
    distances = []
    for beta in (0.0, 10.0):
        torch.manual_seed(1)
        net = nn.Sequential(MoVELinear(5, 2, experts=2))
        consolidate(net)
        objective, optimizer = Objective(gate_kl=0.0, expert_kl=beta), torch.optim.Adam(net.parameters(), 0.02)
        x = torch.randn(64, 5)
        y = (x[:, 0] > 0).long()
        for _ in range(60):
            loss = objective(-nn.functional.cross_entropy(net(x), y), net, num_data=64).total
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        distances.append(net[0].posterior.kl().sum().item())
    assert distances[1] < 0.2 * distances[0]


def test_terms_with_zero_weight_are_not_computed(network, monkeypatch):
    monkeypatch.setattr(MoVELinear, "diversity", lambda self: pytest.fail("diversity was computed"))
    network(torch.randn(4, 5))
    assert "diversity" not in Objective(diversity=0.0)(torch.zeros(4), network, num_data=4).terms


def test_schedules_are_asked_with_the_progress(network):
    network(torch.randn(4, 5))
    objective = Objective(gate_kl=0.0, expert_kl=Cyclic(1.0, cycles=1))
    totals = [objective(torch.zeros(4), network, 10, progress).total.item() for progress in (0.0, 0.25, 0.5)]
    assert totals[0] == 0.0
    assert totals[1] == pytest.approx(totals[2] / 2, rel=1e-5)
    assert totals[2] > 0


def test_target_information_hears_the_kl_per_example(network):
    network(torch.randn(4, 5))
    schedule = TargetInformation(target_bits=1e-6, initial_beta=1.0, rate=0.01)
    objective = Objective(gate_kl=0.0, expert_kl=schedule)
    objective(torch.zeros(4), network, 10)
    assert schedule.value(0.0) == pytest.approx(1.01005, rel=1e-4)  # far above the target: one whole step up


def test_a_users_own_module_takes_part_and_must_be_given_a_weight():
    class Ridge(VariationalModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x @ self.weight

        def terms(self):
            return {"ridge": lambda: self.weight.square().sum()}

        def consolidate(self):
            pass

    net = nn.Sequential(Ridge())
    net(torch.randn(2, 3))
    assert Objective(others={"ridge": 0.5})(torch.zeros(2), net, 1).total.item() == pytest.approx(1.5)
    with pytest.raises(InputError, match="ridge"):
        Objective()(torch.zeros(2), net, 1)
    with pytest.raises(InputError, match="taken"):
        Objective(others={"gate_kl": 1.0})


def test_bad_arguments_are_named(network):
    network(torch.randn(4, 5))
    with pytest.raises(InputError, match="num_data"):
        Objective()(torch.zeros(4), network, 0)
    with pytest.raises(InputError, match="empty"):
        Objective()(torch.zeros(0), network, 1)


def test_any_utility_can_be_plugged_in_regression():
    """-MSE as the utility: two regimes y = x and y = -x, told apart by the second input, are fitted to the noise level."""
    torch.manual_seed(3)
    net = nn.Sequential(MoVELinear(2, 32, experts=2), nn.LeakyReLU(), MoVELinear(32, 1, experts=2))
    objective = Objective(gate_kl=0.0, expert_kl=1e-4, conditional_entropy=0.01)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    x = torch.stack([torch.linspace(-1, 1, 200), torch.tensor([-1.0, 1.0]).repeat(100)], 1)
    y = (x[:, 0] * x[:, 1]).unsqueeze(1)
    for _ in range(400):
        loss = objective(-(net(x) - y).square(), net, num_data=200).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        error = float((net(x) - y).square().mean())
    assert error < 0.02 * float(y.var())
