"""The parts of hvcl that can be chosen: first priors, what its gates see, normalisation, the kind of gate."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.layers import MoVEConv2d, MoVELayer, WithContext
from hvcl.learners import create

PICTURES = Problem((3, 16, 16), 4)
SMALL = {"channels": (4, 6), "hidden": (8,), "experts": 3}


def batches(count=4, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [(torch.randn(16, 3, 16, 16, generator=random), torch.randint(0, 4, (16,), generator=random)) for _ in range(count)]


def test_a_first_prior_at_the_start_costs_nothing_at_first_and_something_later():
    (x, y), *more = batches(6)
    terms = {}
    for kind in ("zero", "start"):
        learner = create("hvcl", PICTURES, seed=1, first_prior=kind, num_data=100, **SMALL)
        terms[kind] = learner.observe(x, y)["expert_kl"]
        if kind == "start":
            later = [learner.observe(*batch)["expert_kl"] for batch in more][-1]
    assert terms["start"] == 0.0
    assert later > 0.0
    assert terms["zero"] > 1.0  # nats per example, before anything is learned


@pytest.mark.parametrize("experts", [2, 8])
def test_a_deep_networks_signal_does_not_depend_on_the_number_of_experts(experts):
    """Straight-through: mean size of the outputs within a factor of 1.5 of one expert's, over 20 networks."""
    x = batches(1)[0][0]
    deep = {"channels": (4, 8), "hidden": (32, 32, 32), "layer_norm": False}

    def size(**settings):
        sizes = []
        for seed in range(20):
            network = create("hvcl", PICTURES, seed=seed, **deep, **settings).network.eval()
            with torch.no_grad():
                sizes.append(float(network(x).square().mean().sqrt()))
        return sum(sizes) / len(sizes)

    one = size(experts=1)
    through, weighted = (size(experts=experts, routing=kind) for kind in ("straight-through", "argmax"))
    assert 1 / 1.5 < through / one < 1.5
    assert weighted / one < 0.5


def test_gates_of_convolutions_see_places():
    learner = create("hvcl", PICTURES, seed=1, gate_grid=2, **SMALL)
    convolutions = [layer for layer in learner.network if isinstance(layer, MoVEConv2d)]
    assert [layer.gate.weight.shape[1] for layer in convolutions] == [2 * 3 * 4, 2 * 4 * 4]
    picture = torch.zeros(1, 3, 16, 16)
    picture[..., :8, :8] = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    turned = picture.flip(2, 3)
    with torch.no_grad():
        for seen, same in ((convolutions[0], False), (create("hvcl", PICTURES, seed=1, **SMALL).network.conv0, True)):
            seen.eval()
            answers = []
            for x in (picture, turned):
                seen(x)
                answers.append(seen.gate_log_probabilities)
            assert torch.allclose(*answers, atol=1e-5) == same


def test_gates_read_the_networks_input():
    learner = create("hvcl", PICTURES, seed=1, gate_input=True, **SMALL)
    assert isinstance(learner.network, WithContext)
    layers = [layer for layer in learner.network.modules() if isinstance(layer, MoVELayer)]
    assert [layer.context for layer in layers] == [3 * 8 * 8] * 4
    (x, y), *_ = batches(1)
    learner.observe(x, y)
    weights = [layer.gate.weight[:, -192:].detach().clone() for layer in layers]
    for _ in range(3):
        learner.observe(x, y)
    assert all(not torch.equal(before, layer.gate.weight[:, -192:]) for before, layer in zip(weights, layers, strict=True))


def test_layer_normalisation_is_before_every_activation_but_not_at_the_head():
    network = create("hvcl", PICTURES, seed=1, layer_norm=True, **SMALL).network
    names = [name for name, _ in network.named_children()]
    assert names == ["conv0", "conv0_norm", "conv0_act", "conv1", "conv1_norm", "conv1_act", "flatten", "dense0", "dense0_norm",
                     "dense0_act", "head"]  # fmt: skip
    x = 100 * batches(1)[0][0]
    hidden = network[:9](x)
    torch.testing.assert_close(hidden.mean(1), torch.zeros(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(hidden.var(1, unbiased=False), torch.ones(16), atol=1e-3, rtol=0)


EVERYTHING = {"first_prior": "start", "gate_grid": 2, "gate_input": True, "layer_norm": True, "routing": "straight-through"}


def test_goes_on_bit_identically_with_all_of_it():
    data = batches(6)
    whole, first = (create("hvcl", PICTURES, seed=1, **EVERYTHING, **SMALL) for _ in range(2))
    for batch in data:
        whole.observe(*batch)
    for batch in data[:3]:
        first.observe(*batch)
    second = create("hvcl", PICTURES, seed=9, **EVERYTHING, **SMALL)
    second.load_state_dict(first.state_dict())
    for batch in data[3:]:
        second.observe(*batch)
    assert torch.equal(whole.predict(data[0][0]), second.predict(data[0][0]))


@pytest.mark.parametrize(
    "settings", [{"gate_grid": 0}, {"first_prior": "middle"}, {"gate": "linear"}, {"top_k": 4}, {"top_k": 0}]
)
def test_unknown_values_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("hvcl", PICTURES, **settings, **SMALL)
