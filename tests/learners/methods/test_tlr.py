"""Target layer regularisation with a Cramer-Wold generator."""

import math

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.methods.tlr import cramer_wold


def batch(seed=0, n=128):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=random), torch.arange(n) % 2


def test_distance_of_two_small_samples_by_hand():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    y = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    width = (1.059 * torch.cat([x, y]).std().item()) ** 2 * 4**-0.4

    def phi(squared):
        return (1 + squared / width) ** -0.5  # 2D - 3 = 1

    total = (2 + 2 * phi(25)) + (2 + 2 * phi(4)) - 2 * (phi(0) + phi(4) + phi(25) + phi(9 + 4))
    assert cramer_wold(x, y).item() == pytest.approx(total / (8 * math.sqrt(math.pi * width)), rel=1e-5)
    assert cramer_wold(x, x.flip(0)).item() == pytest.approx(0.0, abs=1e-6)


def test_distance_grows_with_the_shift():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 10, generator=random), torch.randn(200, 10, generator=random)
    distances = [cramer_wold(x, y + shift).item() for shift in (0.0, 0.3, 1.0)]
    assert 0 < distances[0] < distances[1] < distances[2]


def test_generator_learns_the_activations_and_is_frozen_afterwards():
    learner = create("tlr", Problem((3,), 2, task_examples=(128, 128)), seed=1, hidden=(4,), generator_epochs=150)
    x, y = batch()
    assert "distance" not in learner.observe(x, y)
    with torch.no_grad(), learner.random.active(keep=False):
        activations = learner.target_layer(x)
        before = cramer_wold(activations, learner.generate(128)).item()
    learner.end_task()
    with torch.no_grad(), learner.random.active(keep=False):
        activations = learner.target_layer(x)
        after = cramer_wold(activations, learner.generate(128)).item()
    assert after < 0.1 * before
    state = {key: value.clone() for key, value in learner.generator.state_dict().items()}
    assert learner.observe(*batch(1))["distance"] > 0
    assert all(torch.equal(state[key], value) for key, value in learner.generator.state_dict().items())
    assert learner.state_dict()["data"]["count"] == 128
    learner.end_task()
    assert learner.state_dict()["data"]["parts"] == []
    assert learner.memory == "none"


def test_loss_is_cross_entropy_and_distance():
    learner = create("tlr", Problem((3,), 2, task_examples=(128, 128)), seed=1, hidden=(4,), strength=3.0, generator_epochs=1)
    x, y = batch()
    learner.observe(x, y)
    learner.end_task()
    with learner.random.active(keep=False):
        terms = learner.loss(x, y, None)
    with learner.random.active(keep=False):
        distance = cramer_wold(learner.target_layer(x), learner.generate(128))
    torch.testing.assert_close(terms["distance"], distance)
    cross_entropy = torch.nn.functional.cross_entropy(learner.logits(x, None), y)
    torch.testing.assert_close(terms["loss"], cross_entropy + 3 * distance)


def test_new_inputs_keep_the_target_layer_s_distribution():
    """The next task's inputs are shifted: its activations stay closer to the old ones with the penalty than without."""
    distances = {}
    for strength in (1e-6, 100.0):
        problem = Problem((3,), 2, task_examples=(128, 128))
        learner = create("tlr", problem, seed=1, hidden=(8,), learning_rate=0.01, strength=strength, generator_epochs=50)
        x, y = batch()
        learner.observe(x, y)
        learner.end_task()
        old = learner.target_layer(x).detach()
        for _ in range(100):
            learner.observe(x + 2, y)
        distances[strength] = cramer_wold(old, learner.target_layer(x + 2)).item()
    assert distances[100.0] < 0.3 * distances[1e-6]


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"noise": 0}, {"generator_epochs": 0}, {"hidden": ()}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("tlr", Problem((3,), 2), **settings)
