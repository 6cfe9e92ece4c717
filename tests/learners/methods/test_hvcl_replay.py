"""The layers of the VAE beside the classifier's."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.layers import MoVELayer
from hvcl.learners import create
from hvcl.testing import LEARNER_CHECKS, LearnerCase

SMALL = {"hidden": (16, 12), "learning_rate": 0.02, "latent": 4, "likelihood": "gaussian", "generated": 30}
MIXTURES = {"vae_experts": 2, "latent_experts": 3}
PROBLEM = Problem((3,), 2, None, (40, 40), (4, 4))


def batch(seed, n=8):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=random), torch.arange(n) % 2


def made(**settings):
    return create("hvcl-replay", PROBLEM, seed=1, **SMALL, **settings)


def layers_of(network):
    return [module for module in network.modules() if isinstance(module, MoVELayer)]


@pytest.mark.parametrize("routing", ["argmax", "straight-through", "sample"])
@pytest.mark.parametrize("vae_routing", [None, "argmax", "straight-through", "sample"])
def test_classifier_and_vae_each_have_their_own_routing(routing, vae_routing):
    learner = made(routing=routing, **MIXTURES, **({} if vae_routing is None else {"vae_routing": vae_routing}))
    assert {layer.routing for layer in layers_of(learner.network)} == {routing}
    vae, wanted = learner.generator.vae, vae_routing or "argmax"
    assert {layer.routing for layer in layers_of(vae) if layer is not vae.mean} == {wanted}
    assert vae.mean.routing == ("straight-through" if wanted == "sample" else wanted), "the latent mean's expert is known"


@pytest.mark.parametrize("channels", [(), (2, 3)])
def test_the_first_prior_is_that_of_classifier_and_vae(channels):
    shape = (1, 8, 8) if channels else (3,)
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    for first_prior, free in (("start", True), ("zero", False)):
        learner = create(
            "hvcl-replay", Problem(shape, 2, None, (40,), (4,)), channels=channels, first_prior=first_prior, **SMALL, **MIXTURES
        )
        every = [*layers_of(learner.network), *layers_of(learner.generator.vae)]
        assert {layer.posterior.first_prior for layer in every} == {first_prior}
        terms = learner.observe(x, torch.arange(8) % 2)
        assert (terms["expert_kl"] == 0) == free
        assert (terms["vae_expert_kl"] == 0) == free


def test_only_mixtures_are_routed():
    """Of one expert each, whatever the routing, the numbers are the same; of several they are not."""
    for mixtures, alike in (({}, True), (MIXTURES, False)):
        learners = [made(vae_routing=routing, **mixtures) for routing in ("argmax", "straight-through")]
        one, other = ([learner.observe(*batch(step))["elbo"] for step in range(3)] for learner in learners)
        assert (one == other) == alike


@pytest.mark.parametrize("check", ["learns, domain, boundaries", "resuming", "state"])
@pytest.mark.parametrize(
    "settings",
    [
        {"vae_routing": "straight-through", "first_prior": "start", "separate": True},
        {"vae_routing": "sample", "routing": "straight-through", "refresh": True},
    ],
    ids=["straight-through", "sample"],
)
def test_other_routings_keep_the_contract(settings, check):
    LEARNER_CHECKS[check](LearnerCase("hvcl-replay", SMALL | MIXTURES | {"hidden": (16,)} | settings))


@pytest.mark.parametrize("setting", ["vae_routing", "first_prior"])
def test_unknown_kinds_of_layers_are_refused(setting):
    with pytest.raises(InputError, match=f"{setting} must be one of .*, got 'other'"):
        made(**{setting: "other"})
