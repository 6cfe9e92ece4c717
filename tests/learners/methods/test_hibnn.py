"""Hierarchical Indian buffet process neural networks."""

import pytest
import torch
from torch import distributions as D

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.methods.hibnn import Draw, Sticks, beta_logits, concrete, kl_bernoulli, kl_beta

PROBLEM = Problem((3,), 2, task_examples=(20, 20, 20))


def batch(seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(20, 3, generator=random), torch.arange(20) % 2


@pytest.fixture(autouse=True)
def _own_numbers():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


def test_masks_are_on_with_their_probability_and_binary_in_the_limit():
    logits = torch.tensor([-2.0, 0.0, 1.0])
    soft, hard = concrete(logits, 20_000, 0.7), concrete(logits, 20_000, 0.01)
    for masks in (soft, hard):
        torch.testing.assert_close((masks > 0.5).float().mean(0), logits.sigmoid(), atol=0.01, rtol=0)
    assert ((soft > 0.1) & (soft < 0.9)).float().mean() > 0.3
    assert ((hard > 0.1) & (hard < 0.9)).float().mean() < 0.02


@pytest.mark.parametrize(("a", "b"), [(3.0, 2.0), (0.05, 0.4), (50.0, 1.0)])
def test_draws_of_beta_variables_have_the_right_moments_and_pathwise_gradients(a, b):
    first, second = (torch.full((200_000,), value, requires_grad=True) for value in (a, b))
    draws = beta_logits(first, second).sigmoid()
    expected = D.Beta(a, b)
    assert draws.mean().item() == pytest.approx(expected.mean.item(), abs=0.005)
    assert draws.var().item() == pytest.approx(expected.variance.item(), rel=0.05, abs=1e-4)
    slopes = torch.autograd.grad(draws.sum(), [first, second])
    assert slopes[0].mean().item() == pytest.approx(b / (a + b) ** 2, rel=0.05)
    assert slopes[1].mean().item() == pytest.approx(-a / (a + b) ** 2, rel=0.05)


def test_draws_with_tiny_concentrations_do_not_underflow():
    logits = beta_logits(torch.full((1000,), 1e-3), torch.full((1000,), 4.0))
    assert logits.isfinite().all()
    assert logits.unique().numel() == 1000
    assert logits.median() < -200  # where the variable itself would be zero


def test_divergence_of_beta_variables_against_an_integral():
    x = torch.linspace(0, 1, 200_001, dtype=torch.float64)[1:-1]
    for posterior, prior in (((2.5, 1.5), (5.0, 1.0)), ((1.2, 3.0), (2.0, 2.0))):
        log_q, log_p = D.Beta(*map(_double, posterior)).log_prob(x), D.Beta(*map(_double, prior)).log_prob(x)
        exact = torch.trapezoid(log_q.exp() * (log_q - log_p), x)
        torch.testing.assert_close(kl_beta(*map(_double, (*posterior, *prior))), exact, rtol=1e-4, atol=1e-6)
    assert kl_beta(*map(_double, (3.0, 0.7, 3.0, 0.7))).item() == 0.0


def _double(value):
    return torch.tensor(value, dtype=torch.float64)


def test_divergence_of_bernoulli_variables_by_hand():
    found = kl_bernoulli(torch.cat([torch.tensor([0.2, 0.5]).logit(), torch.tensor([-1e4])]), torch.tensor([0.4, 0.5, 0.9]))
    by_hand = 0.2 * torch.tensor(0.2 / 0.4).log() + 0.8 * torch.tensor(0.8 / 0.6).log()
    torch.testing.assert_close(found, torch.stack([by_hand, torch.tensor(0.0), torch.tensor(10.0).log()]))


def test_prior_shares_sticks_between_layers():
    sticks = Sticks((6, 4), expected_units=3.0, sharing=4.0, rate=10.0)
    drawn = [sticks.draw() for _ in range(4000)]
    powers = 0.75 ** torch.arange(1.0, 7.0)
    torch.testing.assert_close(torch.stack([draw.sticks for draw in drawn]).mean(0), powers, atol=0.02, rtol=0)
    for layer, units in enumerate((6, 4)):
        mean = torch.stack([draw.logits[layer].sigmoid() for draw in drawn]).mean(0)
        torch.testing.assert_close(mean, powers[:units], atol=0.02, rtol=0)
    both = torch.stack([torch.stack([draw.logits[0][:4], draw.logits[1]]).sigmoid() for draw in drawn])
    correlations = [torch.corrcoef(both[:, :, unit].T)[0, 1].item() for unit in range(4)]
    # var(pi_0k) (1 - 1 / (alpha + 1)) of the variance that the sticks bring is common to the layers
    assert min(correlations) > 0.2
    close = Sticks((6, 4), expected_units=3.0, sharing=1e5, rate=10.0).draw()
    for logits in close.logits:
        torch.testing.assert_close(logits.sigmoid(), close.sticks[: len(logits)], atol=0.01, rtol=0)


def test_a_wide_layer_expects_as_many_units_as_it_is_told():
    sticks = Sticks((200,), expected_units=20.0, sharing=50.0, rate=10.0)
    assert sum(sticks.draw().active_units for _ in range(300)) / 300 == pytest.approx(20.0, rel=0.1)


def test_divergence_is_that_of_sticks_layers_and_masks():
    sticks = Sticks((3, 2), expected_units=2.0, sharing=4.0, rate=1.0)
    with torch.no_grad():
        sticks.log_a += 0.3
    draw = Draw(torch.tensor([0.8, 0.5, 0.2]), (torch.tensor([1.0, 0.0, -1.0]), torch.tensor([0.5, -0.5])))
    found = sticks.divergence(draw)
    prior = torch.tensor([2 / 3, 4 / 9, 8 / 27])
    a, b = torch.tensor(2.0) * torch.tensor(0.3).exp(), torch.tensor(1.0)
    torch.testing.assert_close(found["stick_kl"], 3 * kl_beta(a, b, torch.tensor(2.0), torch.tensor(1.0)))
    of_layers = of_masks = 0.0
    for unit, layer in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]:
        now, before = draw.sticks[unit], prior[unit]
        concentrations = [4 * now + 0.01, 4 * (1 - now) + 0.01, 4 * before + 0.01, 4 * (1 - before) + 0.01]
        of_layers = of_layers + kl_beta(*concentrations)
        mean = concentrations[2] / (concentrations[2] + concentrations[3])
        of_masks = of_masks + kl_bernoulli(draw.logits[layer][unit], mean)
    torch.testing.assert_close(found["layer_kl"], of_layers)
    torch.testing.assert_close(found["mask_kl"], of_masks)


def test_loss_is_the_bound_per_example():
    learner = create("hibnn", PROBLEM, seed=1, hidden=(4,), estimator="mean")
    x, y = batch()
    with learner.random.active(keep=False):
        terms = learner.loss(x, y, None)
    assert {"stick_kl", "layer_kl", "mask_kl", "expert_kl", "active_units"} <= terms.keys()
    parts = sum(torch.as_tensor(terms[name]).item() for name in ("stick_kl", "layer_kl", "mask_kl", "expert_kl"))
    assert terms["loss"].item() == pytest.approx(parts - terms["utility"], rel=1e-5)
    assert terms["stick_kl"].item() == 0.0  # the posterior starts as the prior
    with learner.random.active(keep=False):
        draw = learner.network.sticks.draw()
    torch.testing.assert_close(terms["layer_kl"] * 20, learner.network.sticks.divergence(draw)["layer_kl"])


def test_units_that_are_off_say_nothing():
    learner = create("hibnn", PROBLEM, seed=1, hidden=(4,), estimator="mean")
    draw = Draw(torch.ones(4), (torch.full((4,), -1e4),))
    outputs = learner.answers(batch()[0], draw)
    torch.testing.assert_close(outputs, outputs[:1].expand_as(outputs))
    on = learner.answers(batch()[0], Draw(torch.ones(4), (torch.full((4,), 1e4),)))
    torch.testing.assert_close(on, learner.network.layers(batch()[0]).unflatten(1, (3, 2)))


def test_convolutions_are_masked_by_channel_and_narrow_layers_take_the_first_sticks():
    learner = create("hibnn", Problem((1, 8, 8), 2), seed=1, channels=(3, 5), hidden=(7,), estimator="mean")
    assert learner.network.sticks.widths == (3, 5, 7)
    assert learner.network.sticks.log_a.shape == (7,)
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    seen = []
    learner.network.layers.conv1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    off = torch.tensor([1e4, -1e4, 1e4])
    learner.answers(x, Draw(torch.ones(7), (off, torch.zeros(5), torch.zeros(7))))
    assert (seen[0][:, 1] == 0).all()
    assert (seen[0][:, [0, 2]] != 0).any((0, 2, 3)).all()


def test_posterior_becomes_the_prior_at_a_boundary_sticks_included():
    learner = create("hibnn", PROBLEM, seed=1, hidden=(4,), learning_rate=0.05)
    sticks = learner.network.sticks
    before = sticks.prior_a.clone()
    for _ in range(5):
        learner.observe(*batch())
    assert torch.equal(sticks.prior_a, before)
    assert not torch.allclose(sticks.a, before)
    learner.end_task()
    assert torch.equal(sticks.prior_a, sticks.a)
    assert torch.equal(sticks.prior_b, sticks.b)


def test_every_task_has_a_head_and_the_surest_answers():
    learner = create("hibnn", PROBLEM, seed=1, hidden=(4,), samples=1)
    assert learner.network.layers.head.layer.out_features == 6
    learner.observe(*batch())
    learner.end_task()
    learner.observe(*batch())
    assert learner.trained == [0, 1]
    # of the heads that were trained, the first is surer of the first and the third example; the third was not trained
    p = torch.tensor([[0.9, 0.6, 1.0], [0.6, 0.3, 1.0], [0.8, 0.5, 1.0]])
    learner._draw_probabilities = lambda x, task: torch.stack([p, 1 - p], 2)
    torch.testing.assert_close(learner.predict(torch.zeros(3, 3))[:, 0], torch.tensor([0.9, 0.3, 0.8]))
    together = create("hibnn", PROBLEM, seed=1, hidden=(4,), samples=1, infer_from="batch")
    together.trained = [0, 1]
    together._draw_probabilities = learner._draw_probabilities
    torch.testing.assert_close(together.predict(torch.zeros(3, 3))[:, 0], torch.tensor([0.9, 0.6, 0.8]))


def test_one_head_where_tasks_share_it_or_are_told_or_not_known():
    aware = Problem((3,), 4, ((0, 1), (2, 3)), task_examples=(20, 20))
    for problem, settings in ((PROBLEM, {"heads": "one"}), (aware, {}), (Problem((3,), 2), {})):
        assert create("hibnn", problem, seed=1, hidden=(4,), **settings).heads == 1


def test_past_its_last_task_it_goes_on_with_the_last_head():
    learner = create("hibnn", PROBLEM, seed=1, hidden=(4,))
    for _ in range(4):
        learner.end_task()
    learner.observe(*batch())
    assert learner.trained == [2]
    assert learner.memory == "none"


BAD = [{"expected_units": 0.0}, {"sharing": 0.0}, {"temperature": 0.0}, {"samples": 0}, {"hidden": ()}, {"stick_rate": 0.0}]


@pytest.mark.parametrize("settings", BAD)
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("hibnn", PROBLEM, **settings)
