"""Uncertainty-based continual learning."""

import math

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.methods.ucl import layers_of, weight_strengths


def batch(seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(10, 3, generator=random), torch.arange(10) % 2


def test_terms_are_those_of_the_paper():
    """Two layers, every sum written out by loops."""
    learner = create("ucl", Problem((3,), 2, task_examples=(10, 10)), seed=1, hidden=(4,), learning_rate=0.05)
    for seed in range(3):
        learner.observe(*batch(seed))
    learner.end_task()
    for seed in range(3):
        learner.observe(*batch(seed + 3))
    squares = magnitudes = spread = 0.0
    before = [0.0] * 3
    for layer, old_bias in zip(layers_of(learner.network), learner.biases, strict=True):
        posterior = layer.posterior
        mean, old = posterior.mean[0].tolist(), posterior.prior_mean[0].tolist()
        sigma, old_sigma = posterior.sigma_of(posterior.rho)[0].tolist(), posterior.prior_log_sigma[0].exp().tolist()
        start = math.sqrt(0.5 * 2 / layer.in_features)
        node = [start / s for s in old_sigma]
        for j in range(layer.out_features):
            for i in range(layer.in_features):
                shift = mean[i][j] - old[i][j]
                squares += (max(node[j], before[i]) * shift) ** 2
                magnitudes += start**2 * (old[i][j] / old_sigma[j]) ** 2 * abs(shift)
            shift, was = (layer.bias[0, j] - old_bias[0, j]).item(), old_bias[0, j].item()
            squares += (node[j] * shift) ** 2
            magnitudes += start**2 * (was / old_sigma[j]) ** 2 * abs(shift)
            ratio = (sigma[j] / old_sigma[j]) ** 2
            spread += ratio - math.log(ratio) + sigma[j] ** 2 - math.log(sigma[j] ** 2)
        before = node
    assert [term.item() for term in learner.regularisers()] == pytest.approx([squares, magnitudes, spread], rel=1e-4)
    with learner.random.active(keep=False):
        terms = learner.loss(*batch(), None)
    with learner.random.active(keep=False):
        cross_entropy = torch.nn.functional.cross_entropy(learner.logits(batch()[0], None), batch()[1])
    expected = cross_entropy.item() + (squares / 2 + magnitudes + 0.03 / 2 * spread) / 10
    assert terms["loss"].item() == pytest.approx(expected, rel=1e-4)


def test_first_task_is_held_to_the_start_by_alpha_only():
    learner = create("ucl", Problem((3,), 2), seed=1, hidden=(4,), beta=0.0, learning_rate=0.05)
    squares, magnitudes, _ = learner.regularisers()
    assert squares.item() == magnitudes.item() == 0.0
    learner.observe(*batch())
    with learner.random.active(keep=False):
        terms = learner.loss(*batch(), None)
    with learner.random.active(keep=False):
        cross_entropy = torch.nn.functional.cross_entropy(learner.logits(batch()[0], None), batch()[1])
    torch.testing.assert_close(terms["loss"], cross_entropy + 0.01 / 2 * terms["squares"])


def test_weights_of_flattened_images_take_the_strength_of_their_channel():
    learner = create("ucl", Problem((1, 4, 4), 2), seed=1, channels=(2,), hidden=())
    conv, head = layers_of(learner.network)
    before, node = torch.tensor([3.0, 0.5]), torch.ones(2)
    strengths = weight_strengths(head, node, before)  # two channels of 2 x 2 places
    assert strengths[0, :, 0].tolist() == [3.0] * 4 + [1.0] * 4
    assert weight_strengths(conv, before, None).shape == (1, 2, 1, 1, 1)
    stacked = create("ucl", Problem((1, 8, 8), 2), seed=1, channels=(2, 2), hidden=())
    second = list(layers_of(stacked.network))[1]
    assert weight_strengths(second, node, before).expand_as(second.posterior.mean)[0, :, :, 0, 0].tolist() == [[3.0, 1.0]] * 2


def test_task_il_has_plain_heads():
    learner = create("ucl", Problem((3,), 4, ((0, 1), (2, 3))), seed=1, hidden=(4,))
    assert isinstance(learner.network.head, torch.nn.Linear)
    assert len(learner.biases) == 1
    learner.end_task()
    terms = learner.observe(batch()[0], batch()[1] + 2, torch.ones(10, dtype=torch.long))
    assert math.isfinite(terms["loss"])


def test_start_has_the_he_variance_in_means_and_sigmas_together():
    learner = create("ucl", Problem((400,), 2), seed=1, hidden=(300,), ratio=0.25)
    posterior = next(layers_of(learner.network)).posterior
    assert posterior.mean.var().item() == pytest.approx(0.75 * 2 / 400, rel=0.02)
    assert posterior.sigma.square().mean().item() == pytest.approx(0.25 * 2 / 400, rel=1e-4)


@pytest.mark.parametrize("settings", [{"ratio": 1.0}, {"beta": -1.0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("ucl", Problem((3,), 2), **settings)
