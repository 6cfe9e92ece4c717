from __future__ import annotations

import math

import pytest
import torch

from hvcl.gates import SoftmaxGate


@pytest.fixture
def gate():
    torch.manual_seed(0)
    gate = SoftmaxGate(4, 3, dtype=torch.float64)
    with torch.no_grad():
        gate.bias.normal_()
    return gate


@pytest.fixture
def features():
    return torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_is_a_linear_softmax(gate, features):
    log_p, weight, bias = gate(features), gate.weight.tolist(), gate.bias.tolist()
    for b in range(6):
        scores = [math.exp(sum(weight[m][i] * features[0, b, i].item() for i in range(4)) + bias[m]) for m in range(3)]
        for m in range(3):
            assert log_p[0, b, m].item() == pytest.approx(math.log(scores[m] / sum(scores)), rel=1e-10)


def test_gradient(gate, features):
    assert torch.autograd.gradcheck(
        lambda x, w, b: torch.func.functional_call(gate, {"weight": w, "bias": b}, (x,)),
        (features.requires_grad_(), gate.weight, gate.bias),
    )


def test_is_finite_far_out(gate):
    log_p = gate(torch.full((1, 1, 4), 1e6, dtype=torch.float64))
    assert log_p.isfinite().all()
    assert log_p.exp().sum().item() == pytest.approx(1)


def test_the_first_prior_is_uniform_on_every_input(gate, features):
    torch.testing.assert_close(gate.prior(features), torch.full((1, 6, 3), -math.log(3), dtype=torch.float64))


def test_consolidate_makes_the_gate_its_own_prior_and_then_leaves_it_alone(gate, features):
    gate.consolidate()
    old = gate(features)
    assert torch.equal(gate.prior(features), old)
    with torch.no_grad():
        gate.weight.add_(1.0)
        gate.bias.mul_(2.0)
    assert torch.equal(gate.prior(features), old)
    other = torch.randn(1, 6, 4, dtype=torch.float64)
    assert not torch.allclose(gate.prior(other), old)  # evaluated on the input that it is given


def test_the_prior_is_stored_but_not_trained(gate):
    assert {name for name, _ in gate.named_parameters()} == {"weight", "bias"}
    assert {"prior_weight", "prior_bias"} <= set(gate.state_dict())
    gate.consolidate()
    assert not gate.prior_weight.requires_grad


def test_starts_small_and_without_ties():
    """Logits of unit-variance inputs have variance 1: 200 x 50 weights, within 5 standard errors."""
    torch.manual_seed(0)
    gate = SoftmaxGate(200, 50)
    assert gate.weight.std().item() * math.sqrt(200) == pytest.approx(1, rel=5 / math.sqrt(2 * 200 * 50))
    assert torch.equal(gate.bias, torch.zeros(50))
    assert len({tuple(row) for row in gate.weight.tolist()}) == 50


def test_reset_starts_anew(gate, features):
    gate.consolidate()
    before = gate.weight.detach().clone()
    gate.reset_parameters()
    assert not torch.equal(gate.weight, before)
    assert torch.equal(gate.bias, torch.zeros(3))
    torch.testing.assert_close(gate.prior(features), torch.full((1, 6, 3), -math.log(3), dtype=torch.float64))
