"""The latent mixture: divergence, weights, draws."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.generative import Latent, LatentPrior


def latent(n=5, d=3):
    return Latent(torch.randn(n, d), torch.randn(n, d), torch.zeros(n, dtype=torch.long))


def test_divergence_is_that_of_torch_for_every_component():
    prior = LatentPrior(3, conditions=2, experts=2)
    with torch.no_grad():
        prior.mean.normal_()
        prior.log_variance.normal_()
    q, component = latent(), torch.tensor([0, 1, 2, 3, 1])
    a = torch.distributions.Normal(q.mean, (0.5 * q.log_variance).exp())
    b = torch.distributions.Normal(prior.mean[component], (0.5 * prior.log_variance[component]).exp())
    torch.testing.assert_close(prior.divergence(q, component), torch.distributions.kl_divergence(a, b).sum(1))


def test_a_single_component_is_standard_normal_and_stays_so():
    prior = LatentPrior(3)
    assert list(prior.parameters()) == []
    q = latent()
    expected = 0.5 * (q.log_variance.exp() + q.mean.square() - 1 - q.log_variance).sum(1)
    torch.testing.assert_close(prior.divergence(q, torch.zeros(5, dtype=torch.long)), expected)
    z = prior.draw(prior.choose(20_000))
    assert z.mean().abs() < 0.03
    assert (z.std() - 1).abs() < 0.03


def test_components_come_in_the_proportions_of_the_stream_whatever_is_replayed():
    prior = LatentPrior(2, conditions=3)
    prior.record(torch.tensor([0, 0, 0, 1]), new=4)
    prior.record(torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 0]), new=0)  # generated ones do not count
    drawn = torch.bincount(prior.choose(4000), minlength=3) / 4000
    torch.testing.assert_close(drawn, torch.tensor([0.75, 0.25, 0.0]), atol=0.03, rtol=0)


def test_experts_of_a_condition_follow_the_gate_when_it_changes_its_mind():
    prior = LatentPrior(2, conditions=2, experts=2)
    prior.record(torch.tensor([0, 0, 0, 0]), new=4)
    assert prior.usage[0].tolist() == [1.0, 0.0]
    assert prior.usage[1].tolist() == [0.5, 0.5], "nothing is known of a condition that has not come"
    for _ in range(50):
        prior.record(torch.ones(100, dtype=torch.long), new=0)
    assert prior.usage[0, 1] > 0.99
    assert prior.usage.sum(1).tolist() == pytest.approx([1.0, 1.0])


def test_asking_for_a_condition_or_an_expert():
    prior = LatentPrior(2, conditions=2, experts=3)
    prior.record(torch.tensor([0, 1, 2, 3, 4]), new=5)
    assert set((prior.choose(100, condition=1) // 3).tolist()) == {1}
    assert set((prior.choose(100, expert=0) % 3).tolist()) == {0}
    assert prior.mass([0, 1], 1).tolist() == [[0, 1, 0], [0, 1, 0]]
    assert prior.mass().sum() == 5
    with pytest.raises(InputError, match="got none"):
        prior.choose(1, condition=[])
    with pytest.raises(InputError, match="no example of condition 1 and expert 2"):
        prior.choose(1, condition=1, expert=2)
    with pytest.raises(InputError, match="expert must lie between 0 and 2"):
        prior.choose(1, expert=3)


def test_a_conditional_prior_wants_conditions():
    with pytest.raises(InputError, match="conditional"):
        LatentPrior(2, conditions=2).component(None, torch.zeros(3, dtype=torch.long))
    for bad, said in (
        (torch.tensor([0, 1, 2]), "between 0 and 1, got values from 0 to 2"),
        (torch.tensor([0, -1, 0]), "got values from -1 to 0"),
        (torch.tensor([0, 1]), "must be 3 integers"),
        (torch.zeros(3), "must be 3 integers"),
    ):
        with pytest.raises(InputError, match=said):
            LatentPrior(2, conditions=2).component(bad, torch.zeros(3, dtype=torch.long))
    with pytest.raises(InputError, match="positive"):
        LatentPrior(0)


def test_the_density_of_a_mixture_is_that_of_torch():
    prior = LatentPrior(3, conditions=2)
    with torch.no_grad():
        prior.mean.normal_()
        prior.log_variance.normal_()
    q, weights = latent(), torch.tensor([[0.3, 0.7], [0.99, 0.01], [0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
    z = q.draw()
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(weights),
        torch.distributions.Independent(torch.distributions.Normal(prior.mean, (0.5 * prior.log_variance).exp()), 1),
    )
    torch.testing.assert_close(prior.log_density(z, weights), mixture.log_prob(z))
    own = torch.distributions.Normal(q.mean, (0.5 * q.log_variance).exp()).log_prob(z).sum(1)
    torch.testing.assert_close(q.log_density(z), own)
    alone = torch.distributions.Normal(prior.mean[1], (0.5 * prior.log_variance[1]).exp()).log_prob(z).sum(1)
    torch.testing.assert_close(prior.log_density(z, torch.tensor([[0.0, 1.0]]).expand(5, 2)), alone)


def test_a_condition_with_no_probability_teaches_nothing_and_spoils_nothing():
    prior = LatentPrior(3, conditions=2)
    prior.log_density(torch.randn(4, 3), torch.tensor([[1.0, 0.0]]).expand(4, 2)).sum().backward()
    assert prior.mean.grad.isfinite().all()
    assert (prior.mean.grad[1] == 0).all()
