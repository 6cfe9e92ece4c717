"""The VAE: its bound, its architectures, its mixture."""

import math

import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError
from hvcl.generative import Layers, MoVEVAE, move_layers
from hvcl.layers import MoVELayer, consolidate, loss_terms
from hvcl.objective import Objective


def mixture(experts=1, mean_experts=3, **options):
    return move_layers(experts, mean_experts, {"initial_sigma": 0.05, **options})


def clusters(n=90, seed=0):
    """Three groups of points in four dimensions, far apart."""
    random = torch.Generator().manual_seed(seed)
    group = torch.arange(n) % 3
    centres = torch.tensor([[3.0, 0, 0, 0], [0, 3, 0, 0], [-3, -3, 0, 0]])
    return centres[group] + 0.1 * torch.randn(n, 4, generator=random), group


def train(vae, x, condition=None, steps=120, rate=0.05):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(vae.parameters(), lr=rate)
    objective = Objective(gate_kl=0.0, expert_kl=0.01)
    for _ in range(steps):
        elbo = vae.elbo(x, condition)
        loss = objective(elbo.value, vae, num_data=len(x)).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        vae.prior.record(elbo.component, len(x))
    return vae


def test_elbo_of_a_vae_with_known_weights():
    vae = MoVEVAE((2,), latent=1, hidden=(), likelihood="bce")
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()
        vae.mean.bias.fill_(2.0)
        vae.log_variance.bias.fill_(math.log(0.25))
        vae.decoder.head.bias.copy_(torch.tensor([0.0, math.log(3.0)]))
    elbo = vae.elbo(torch.tensor([[1.0, 0.0]]))
    assert elbo.reconstruction.item() == pytest.approx(math.log(0.5) + math.log(0.25))
    assert elbo.divergence.item() == pytest.approx(0.5 * (0.25 + 4 - 1 - math.log(0.25)))
    assert elbo.value.item() == pytest.approx(elbo.reconstruction.item() - elbo.divergence.item())


def test_elbo_is_below_the_true_likelihood_and_reaches_it_with_the_true_posterior():
    """x = w z + noise: log p(x) and p(z|x) are known."""
    w, s = 2.0, 0.5
    vae = MoVEVAE((1,), latent=1, hidden=(), likelihood="gaussian")
    variance = 1 / (1 + w**2 / s**2)
    with torch.no_grad():
        vae.decoder.head.weight.fill_(w), vae.decoder.head.bias.zero_()
        vae.likelihood.log_scale.fill_(math.log(s))
        vae.mean.weight.fill_(variance * w / s**2), vae.mean.bias.zero_()
        vae.log_variance.weight.zero_(), vae.log_variance.bias.fill_(math.log(variance))
    x = torch.tensor([[1.3]]).repeat(20_000, 1)
    evidence = torch.distributions.Normal(0.0, math.sqrt(w**2 + s**2)).log_prob(torch.tensor(1.3)).item()
    torch.manual_seed(0)
    assert vae.elbo(x).value.mean().item() == pytest.approx(evidence, abs=0.02)
    with torch.no_grad():
        vae.mean.bias.fill_(0.3)  # another posterior: the bound falls by its divergence from the true one
    gap = 0.5 * 0.3**2 / variance
    assert vae.elbo(x).value.mean().item() == pytest.approx(evidence - gap, abs=0.03)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 9, 14)])
def test_the_decoder_of_pictures_ends_where_the_encoder_began(shape):
    vae = MoVEVAE(shape, mixture(2), latent=8, hidden=(12, 10), channels=(2, 3, 4, 5, 6))
    x = torch.rand(3, *shape)
    assert vae.reconstruct(x).shape == x.shape
    sizes = [m.posterior.mean.shape[1:3] for m in vae.decoder.modules() if isinstance(m, MoVELayer)]
    assert [tuple(size) for size in sizes[:2]] == [(8, 10), (10, 12)]
    assert [size[1] for size in sizes[3:]] == [5, 4, 3, 2, shape[0]]


def test_the_papers_networks():
    mnist = MoVEVAE((1, 28, 28), mixture(1, 1))
    dense = [tuple(m.posterior.mean.shape) for m in mnist.modules() if isinstance(m, MoVELayer)]
    assert dense == [(1, 784, 256), (1, 256, 256), (1, 256, 64), (1, 256, 64), (1, 64, 256), (1, 256, 256), (1, 256, 784)]
    cifar = MoVEVAE((3, 32, 32), mixture(2, 3), latent=128, channels=(8, 16, 32, 64, 128))
    experts = [m.experts for m in cifar.modules() if isinstance(m, MoVELayer)]
    assert experts == [2] * 7 + [3, 1] + [2] * 8
    assert cifar.prior.mean.shape == (3, 128)


def test_plain_layers_make_an_ordinary_vae_that_pays_for_no_priors():
    vae = MoVEVAE((1, 8, 8), latent=3, hidden=(5,), channels=(2,))
    assert list(loss_terms(vae)) == []
    assert {type(m) for m in vae.modules() if list(m.parameters(recurse=False))} == {nn.Linear, nn.Conv2d, nn.ConvTranspose2d}
    x = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(Objective()(vae.elbo(x).value.detach() * 0 + 1, vae, 10).total, torch.tensor(-1.0))


def test_the_expert_of_a_latent_is_the_one_that_computed_its_mean():
    vae = MoVEVAE((4,), mixture(1, 3, estimator="mean"), latent=2, hidden=(6,))
    x, _ = clusters(30)
    torch.nn.init.normal_(vae.mean.gate.weight)
    vae.eval()
    latent = vae.encode(x)
    features = vae.features(x)
    assert len(latent.expert.unique()) > 1
    (weights,) = vae.mean.gate(features).exp()
    for row, expert in enumerate(latent.expert.tolist()):
        own = features[row] @ vae.mean.posterior.mean[expert] + vae.mean.bias[expert]
        torch.testing.assert_close(latent.mean[row], weights[row, expert] * own)


@pytest.mark.parametrize("routing", ["straight-through", "sample"])
def test_the_expert_of_a_latent_is_known_in_training_whatever_the_routing(routing):
    """Experts of other layers are drawn if asked for; that of the mean is the most probable one, with weight 1."""
    torch.manual_seed(0)
    vae = MoVEVAE((4,), mixture(3, 3, estimator="mean", routing=routing), latent=2, hidden=(6,)).train()
    assert (vae.encoder.dense0.routing, vae.mean.routing) == (routing, "straight-through")
    features = vae.features(clusters(60)[0]).detach()
    latent = vae.latent_of(features)
    assert len(latent.expert.unique()) > 1
    for row, expert in enumerate(latent.expert.tolist()):
        own = features[row] @ vae.mean.posterior.mean[expert] + vae.mean.bias[expert]
        torch.testing.assert_close(latent.mean[row], own)


DEEP = pytest.mark.parametrize(
    ("shape", "sizes"),
    [((20,), {"hidden": (64,) * 4}), ((3, 16, 16), {"hidden": (64, 64), "channels": (8, 16, 32)})],
    ids=["dense", "pictures"],
)


@DEEP
def test_signals_of_a_deep_vae_shrink_with_the_number_of_experts_unless_routed_straight_through(shape, sizes):
    """Mean absolute latent means and decoder's outputs at the start, of ten VAEs; seed 0."""

    def sizes_at_the_start(experts, routing):
        torch.manual_seed(0)
        found = torch.zeros(2)
        for _ in range(10):
            vae = MoVEVAE(shape, mixture(experts, experts, routing=routing), latent=16, **sizes).eval()
            with torch.no_grad():
                means, outputs = vae.encode(torch.randn(64, *shape)).mean, vae.decode(torch.randn(64, 16))
            found += torch.stack([means.abs().mean(), outputs.abs().mean()]) / 10
        return found

    one = sizes_at_the_start(1, "straight-through")
    torch.testing.assert_close(sizes_at_the_start(4, "straight-through"), one, rtol=0.25, atol=0.0)
    assert (sizes_at_the_start(4, "argmax") < one / 20).all()


@DEEP
def test_the_bound_alone_teaches_every_gate_of_a_vae_that_routes_straight_through(shape, sizes):
    torch.manual_seed(0)
    vae = MoVEVAE(shape, mixture(4, 3, routing="straight-through"), latent=16, **sizes)
    (-vae.elbo(torch.rand(64, *shape)).value.mean()).backward()
    gates = [module.gate for module in vae.modules() if isinstance(module, MoVELayer) and module.gate is not None]
    assert len(gates) == sum(isinstance(module, MoVELayer) for module in vae.modules()) - 1, "all but the log variance's"
    for gate in gates:
        assert gate.weight.grad.abs().max() > 0
        assert gate.bias.grad.abs().max() > 0


def test_first_priors_at_the_start_cost_nothing_at_first():
    for first_prior, free in (("start", True), ("zero", False)):
        vae = MoVEVAE((1, 8, 8), mixture(2, 3, first_prior=first_prior), latent=3, hidden=(5,), channels=(2,))
        vae.elbo(torch.rand(4, 1, 8, 8))
        costs = [term.evaluate().item() for term in loss_terms(vae) if term.name == "expert_kl"]
        assert len(costs) == 7
        assert all((cost == 0) == free for cost in costs)


@pytest.mark.parametrize("options", [{"routing": "nearest"}, {"first_prior": "flat"}])
def test_unknown_options_of_the_layers_are_refused(options):
    with pytest.raises(InputError, match="must be one of"):
        MoVEVAE((4,), mixture(1, 1, **options))


def test_every_expert_generates_what_it_encodes():
    """A gate that tells the clusters apart: then each component of the mixture makes its own cluster."""
    x, group = clusters()
    torch.manual_seed(0)
    vae = MoVEVAE((4,), mixture(1, 3), latent=2, hidden=(), likelihood="gaussian")
    centres = torch.stack([x[group == g].mean(0) for g in range(3)])
    with torch.no_grad():
        vae.mean.gate.weight.copy_((5 * centres).view_as(vae.mean.gate.weight))
    vae.mean.gate.requires_grad_(False)
    train(vae, x, steps=200, rate=0.1)
    assert torch.equal(vae.encode(x).expert, group)
    for expert in range(3):
        made = vae.sample(200, expert=expert)
        assert set(made.expert.tolist()) == {expert}
        assert (torch.cdist(made.x, centres).argmin(1) == expert).float().mean() > 0.95


def test_a_condition_generates_the_class_that_was_asked_for():
    x, group = clusters()
    torch.manual_seed(0)
    vae = MoVEVAE((4,), mixture(1, 1), latent=2, hidden=(16,), likelihood="gaussian", conditions=3)
    train(vae, x, group, steps=180)
    centres = torch.stack([x[group == g].mean(0) for g in range(3)])
    for condition in range(3):
        made = vae.sample(100, condition=condition)
        nearest = torch.cdist(made.x, centres).argmin(1)
        assert (nearest == condition).float().mean() > 0.95
        assert set(made.condition.tolist()) == {condition}
    with pytest.raises(InputError, match="condition must lie between 0 and 2"):
        vae.sample(1, condition=3)


def test_training_raises_the_bound_and_consolidation_makes_it_the_prior():
    x, _ = clusters()
    vae = MoVEVAE((4,), mixture(1, 1), latent=2, hidden=(16,), likelihood="gaussian")
    before = vae.elbo(x).value.mean().item()
    train(vae, x)
    assert vae.elbo(x).value.mean().item() > before + 2
    assert sum(term.evaluate().item() for term in loss_terms(vae) if term.name == "expert_kl") > 1
    assert consolidate(vae) == 5
    assert sum(term.evaluate().item() for term in loss_terms(vae) if term.name == "expert_kl") == pytest.approx(0.0, abs=1e-4)


def test_generation_uses_posterior_means_and_leaves_the_mode_alone():
    vae = MoVEVAE((4,), mixture(1, 1, initial_sigma=1.0), latent=2, hidden=(6,), likelihood="gaussian").train()
    x, _ = clusters(10)
    assert torch.equal(vae.reconstruct(x), vae.reconstruct(x))
    assert vae.training
    torch.manual_seed(3)
    first = vae.sample(5).x
    torch.manual_seed(3)
    assert torch.equal(vae.sample(5).x, first)


def test_inputs_that_do_not_fit_are_refused():
    vae = MoVEVAE((4,), Layers(), latent=2, hidden=(6,))
    with pytest.raises(InputError, match=r"takes \(batch, 4\), got \(3, 5\)"):
        vae.check(torch.rand(3, 5))
    for bad in (torch.rand(3, 5), torch.rand(0, 4)):
        with pytest.raises(InputError, match=r"takes \(batch, 4\)"):
            vae.elbo(bad)
    with pytest.raises(InputError, match="between 0 and 1"):
        vae.reconstruct(torch.full((1, 4), 2.0))
    with pytest.raises(InputError, match="count must be at least 1"):
        vae.sample(0)
    with pytest.raises(InputError, match="channels, height, width"):
        MoVEVAE((4,), channels=(8,))


@pytest.mark.parametrize("layers", [Layers(), move_layers(1, 1, {})], ids=["plain", "MoVE"])
def test_deep_networks_of_pictures_hear_their_input_from_the_start(layers):
    """torch's own draws leave 1e-4 of what differs between pictures after eight layers: within a factor of 30 here, seed 0."""
    torch.manual_seed(0)
    vae = MoVEVAE((3, 32, 32), layers, latent=16, hidden=(64, 64), channels=(8, 16, 32, 64, 128))
    x = torch.rand(64, 3, 32, 32)
    x = (x - x.mean(0)) / x.std(0)  # what differs between pictures has size one
    with torch.no_grad():
        mean = vae.mean(vae.features(x))
        out = vae.decoder(torch.randn(64, 16))
    assert 1 / 30 < float(mean.std(0).mean()) < 30
    assert 1 / 30 < float(out.std(0).mean()) < 30


def test_a_condition_that_is_certain_has_the_exact_divergence_and_an_uncertain_one_its_estimate():
    """The mean of many estimates at a mixture of two equal components is the divergence from either."""
    torch.manual_seed(0)
    vae = MoVEVAE((2,), latent=2, hidden=(3,), likelihood="gaussian", conditions=2)
    x = torch.randn(1, 2).repeat(4000, 1)
    number = torch.zeros(4000, dtype=torch.long)
    certain = torch.tensor([1.0, 0.0]).expand(4000, 2)
    exact = vae.elbo(x, number)
    found = vae.elbo(x, certain)
    torch.testing.assert_close(found.divergence, exact.divergence)
    assert torch.equal(found.component, number)
    with torch.no_grad():
        vae.prior.mean[1] = vae.prior.mean[0]
    mixed = vae.elbo(x, torch.tensor([0.6, 0.4]).expand(4000, 2))
    assert mixed.divergence.std() > 0.1
    assert mixed.divergence.mean().item() == pytest.approx(exact.divergence[0].item(), abs=0.1)
