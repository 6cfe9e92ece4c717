"""Conjugate densities of observations."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from hvcl.core.errors import InputError
from hvcl.rl.observation_gate import DIFFERENCE, ObservationGate


def gate_of(*groups, contamination=0.0):
    gate = ObservationGate(groups[0].shape[1], contamination)
    for expert, rows in enumerate(groups):
        gate.open()
        gate.learn(rows, expert)
    return gate


def column(values):
    return np.array(values, np.float32)[:, None]


def predictive(values):
    """Of mu | v ~ N(0, v), v ~ IG(1, 0.1), by the textbook."""
    n, z = len(values), np.sign(values) * np.log1p(np.abs(values))
    mean = z.sum() / (n + 1)
    b = 0.1 + (np.square(z).sum() - (n + 1) * mean**2) / 2
    return stats.t(2 + n, mean, math.sqrt(b * (n + 2) / ((1 + n / 2) * (n + 1))))


@pytest.mark.parametrize("contamination", [0.0, 0.2])
def test_density_is_that_of_the_conjugate_model(contamination):
    seen = np.array([0.3, -1.0, 2.5])
    gate = gate_of(column([*seen, 0.0]), contamination=contamination)
    z = math.log(1.7)
    own = (1 - contamination) * predictive(seen).pdf(z) + contamination * predictive(np.zeros(0)).pdf(z)
    share = 3.5 / 5
    expected = [math.log(share * own), math.log((1 - DIFFERENCE) * share * own + DIFFERENCE / 2 * predictive(np.zeros(0)).pdf(z))]
    np.testing.assert_allclose(gate.log_likelihood(column([0.7]))[0], expected, rtol=1e-6)
    nothing = [math.log(1 - share), math.log((1 - DIFFERENCE) * (1 - share) + DIFFERENCE / 2)]
    np.testing.assert_allclose(gate.log_likelihood(column([0.0]))[0], nothing, rtol=1e-9)


def test_order_and_chunks_do_not_matter():
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    whole, parts = gate_of(rows), gate_of(rows[30:])
    parts.learn(rows[:30], 0)
    torch.testing.assert_close(whole.log_likelihood(rows), parts.log_likelihood(rows))


def test_a_place_that_was_always_zero_decides():
    random = np.random.default_rng(1)
    narrow, wide = (np.zeros((200, 4), np.float32) for _ in range(2))
    narrow[:, :2], wide[:, :3] = random.normal(size=(200, 2)), random.normal(size=(200, 3))
    gate = gate_of(narrow, wide)
    assert gate.log_probabilities(narrow).argmax(1).eq(0).all()
    assert gate.log_probabilities(wide).argmax(1).eq(1).all()
    torch.testing.assert_close(gate.log_probabilities(wide).exp().sum(1), torch.ones(200, dtype=torch.double))


def test_state_is_carried_over():
    rows = np.random.default_rng(2).normal(size=(20, 3)).astype(np.float32)
    gate, twin = gate_of(rows, rows + 1), ObservationGate(3)
    twin.load_state_dict(gate.state_dict())
    assert torch.equal(twin.log_likelihood(rows), gate.log_likelihood(rows))
    twin.learn(rows, 0)
    assert gate.counts.tolist() == [20, 20]


@pytest.mark.parametrize(("observations", "contamination"), [(0, 0.0), (3, 1.0), (3, -0.1)])
def test_bad_settings_are_refused(observations, contamination):
    with pytest.raises(InputError, match="at least one number"):
        ObservationGate(observations, contamination)
