"""The VAE with a categorical latent variable."""

import math

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.generative import MixtureVAE


def mixture(components=4, used=(0, 2), **settings):
    torch.manual_seed(0)
    made = MixtureVAE((3,), components, **({"latent": 2, "hidden": (5,), "likelihood": "gaussian"} | settings))
    for component in used:
        made.use(component)
    return made


def test_the_evidence_of_a_component_and_the_bound_against_computations_by_hand():
    """With posteriors so narrow that a draw is their mean."""
    vae = mixture()
    with torch.no_grad():
        heads = vae.heads.weight.view(4, 2, 2, -1), vae.heads.bias.view(4, 2, 2)
        heads[0][:, 1] = 0.0
        heads[1][:, 1] = -20.0
        vae.prior.log_variance.normal_()
    x = torch.randn(6, 3)
    features = vae.features(x)
    each = []
    heads = vae.heads.weight.view(4, 2, 2, -1), vae.heads.bias.view(4, 2, 2)
    for component in range(4):
        mean = features @ heads[0][component, 0].T + heads[1][component, 0]
        outputs = vae.decoder.head(F.leaky_relu(vae.decoder.dense0(mean)))
        reconstruction = torch.distributions.Normal(outputs, vae.likelihood.log_scale.exp()).log_prob(x).sum(1)
        q = torch.distributions.Normal(mean, math.exp(-10))
        p = torch.distributions.Normal(vae.prior.mean[component], (0.5 * vae.prior.log_variance[component]).exp())
        each.append(reconstruction - torch.distributions.kl_divergence(q, p).sum(1))
    expected = torch.stack(each, 1)
    every = torch.arange(4).expand(6, -1)
    torch.testing.assert_close(vae.evidence(features, x, every), expected, rtol=1e-3, atol=1e-3)
    log_q = vae.log_posterior(features)
    assert (log_q[:, [1, 3]] == -torch.inf).all()
    w = vae.classify(features)[:, [0, 2]].softmax(1)
    bound = (w * (expected[:, [0, 2]] - w.log())).sum(1) - math.log(2)
    torch.testing.assert_close(vae.bound(features, x, log_q), bound, rtol=1e-3, atol=1e-3)


def test_the_bound_is_below_the_likelihood_of_a_mixture_that_is_known():
    """x = z + noise, two components: log p(x) is that of a mixture of Gaussians, and the true posterior reaches it."""
    vae = MixtureVAE((1,), 2, latent=1, hidden=(), likelihood="gaussian")
    vae.use(0), vae.use(1)
    s, centres = 0.5, torch.tensor([-1.0, 2.0])
    variance = 1 / (1 + 1 / s**2)
    with torch.no_grad():
        vae.decoder.head.weight.fill_(1.0), vae.decoder.head.bias.zero_()
        vae.likelihood.log_scale.fill_(math.log(s))
        vae.prior.mean.copy_(centres.unsqueeze(1))
        vae.heads.weight.copy_(torch.tensor([variance / s**2, 0.0] * 2).unsqueeze(1))
        vae.heads.bias.copy_(torch.stack([variance * centres, torch.full((2,), math.log(variance))], 1).flatten())
        # log of the odds of the components, a line in x
        slope = (centres[1] - centres[0]) / (1 + s**2)
        vae.classify.weight.copy_(torch.tensor([[0.0], [slope]]))
        vae.classify.bias.copy_(torch.tensor([0.0, -slope * centres.mean()]))
    x = torch.tensor([[0.7]]).repeat(20_000, 1)
    evidence = (torch.distributions.Normal(centres, math.sqrt(1 + s**2)).log_prob(torch.tensor(0.7)).exp() / 2).sum().log()
    features = vae.features(x)
    torch.manual_seed(0)
    found = vae.bound(features, x, vae.log_posterior(features)).mean()
    assert found.item() == pytest.approx(evidence.item(), abs=0.02)
    with torch.no_grad():
        vae.classify.bias[1] += 1.0
    found = vae.bound(features, x, vae.log_posterior(features)).mean()
    right = torch.tensor([0.0, float(slope * (0.7 - centres.mean()))]).softmax(0)
    wrong = (right.log() + torch.tensor([0.0, 1.0])).softmax(0)
    gap = (wrong * (wrong / right).log()).sum()
    assert found.item() == pytest.approx((evidence - gap).item(), abs=0.02)


def test_a_component_that_is_a_copy_explains_as_well_and_shares_nothing():
    vae = mixture()
    x = torch.randn(4, 3)
    features = vae.features(x)
    vae.use(3, like=2)
    assert vae.numbers.tolist() == [0, 2, 3]
    for one in vae.latents(features, torch.tensor([[2, 3]]).expand(4, 2)):
        torch.testing.assert_close(one[:, 0], one[:, 1])
    log_q = vae.log_posterior(features)
    torch.testing.assert_close(log_q[:, 2], log_q[:, 3])
    assert torch.equal(vae.prior.mean[2], vae.prior.mean[3])
    with torch.no_grad():
        vae.heads.bias.view(4, -1)[3] += 1.0
    mean, _ = vae.latents(features, torch.tensor([[2, 3]]).expand(4, 2))
    torch.testing.assert_close(mean[:, 1], mean[:, 0] + 1)


def test_generated_examples_come_in_the_proportions_of_what_components_have_had():
    vae = mixture()
    vae.prior.examples += torch.tensor([30.0, 0.0, 10.0, 0.0])
    x, component = vae.sample(4000)
    assert x.shape == (4000, 3)
    shares = torch.bincount(component, minlength=4) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.75, 0.0, 0.25, 0.0]), atol=0.03, rtol=0)


def test_pictures_are_given_back_as_pictures():
    vae = MixtureVAE((1, 8, 8), 2, latent=3, hidden=(5,), channels=(2, 4))
    with pytest.raises(InputError, match="no component in use"):
        vae.reconstruct(torch.rand(2, 1, 8, 8))
    vae.use(1)
    found = vae.reconstruct(torch.rand(2, 1, 8, 8))
    assert found.shape == (2, 1, 8, 8)
    assert 0 < found.min() < found.max() < 1
