"""UCL's stacked networks against the layers and sums of `hvcl.learners.methods.ucl`."""

import copy
import itertools

import pytest
import torch

from hvcl.layers import MoVELinear
from hvcl.learners.methods.ucl import node_options, regularisers
from hvcl.ops import load
from hvcl.rl.methods.ucl import UCLPart, UCLWeights
from hvcl.rl.nodes import NAMES, Nodes

SIZES, RATIO = (4, 6, 5, 3), 0.3
WEIGHTS = torch.tensor([0.7, 0.4, -0.3])


def moved_part(copies):
    """A part after a boundary, with everything away from what it was there; some biases as they were."""
    torch.manual_seed(0)
    part = UCLPart(Nodes(SIZES[0], SIZES[-1], SIZES[1:-1], copies, RATIO), UCLWeights(), 0.01, 8)
    for boundary in (True, False):
        with torch.no_grad():
            for parameter in part.network.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
            next(iter(part.nodes)).posterior.rho[:, 0] = -4.0  # a sure node
        if boundary:
            part.end_task(torch.zeros(1, 4), torch.zeros(1, 3))
    with torch.no_grad():
        part.nodes.layers[1].bias[:, 0] = part.nodes.held[1].old_bias[:, 0]
    return part


def reference(nodes):
    """The sums of single layers, and the gradients that they have with `WEIGHTS`, in the order of the stacked parameters."""
    found, gradients = torch.zeros(3), []
    for number in range(nodes.copies):
        layers, biases = [], []
        for stacked, hold, size in zip(nodes, nodes.held, itertools.pairwise(SIZES), strict=True):
            layer = MoVELinear(*size, experts=1, **node_options(RATIO))
            with torch.no_grad():
                layer.bias.copy_(stacked.bias[number : number + 1])
                for name in ("mean", "rho", "prior_mean", "prior_log_sigma"):
                    getattr(layer.posterior, name).copy_(getattr(stacked.posterior, name)[number : number + 1])
            layers.append(layer)
            biases.append(hold.old_bias[number : number + 1])
        sums = torch.stack(regularisers(layers, biases))
        torch.dot(WEIGHTS, sums).backward()
        found += sums.detach()
        gradients.append([p.grad for layer in layers for p in (layer.posterior.mean, layer.posterior.rho, layer.bias)])
    return found, [torch.cat(parts) for parts in zip(*gradients, strict=True)]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("path", ["plain", "compiled"])
def test_sums_and_gradients_are_those_of_the_layers(path, copies, monkeypatch):
    if path == "plain":
        monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    elif load() is None:
        pytest.skip("there is no C compiler")
    nodes = moved_part(copies).nodes
    expected, gradients = reference(nodes)
    sums = nodes.regularisers()
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=1e-5)
    torch.dot(WEIGHTS, sums).backward()
    own = [p for layer in nodes for p in (layer.posterior.mean, layer.posterior.rho, layer.bias)]
    for parameter, gradient in zip(own, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


def test_the_price_is_the_papers():
    part = moved_part(2)
    squares, magnitudes, spread = (part.nodes.regularisers() / 8).tolist()
    total, terms = part.priced(torch.tensor(2.0), 0.0)
    assert total.item() == pytest.approx(2 + squares / 2 + magnitudes + 0.03 / 2 * spread, rel=1e-5)
    assert terms == pytest.approx(dict(zip(NAMES, (squares, magnitudes, spread), strict=True)))
    part.first = True
    assert part.priced(torch.tensor(2.0), 0.0)[0].item() == pytest.approx(2 + 0.01 / 2 * squares + 0.03 / 2 * spread, rel=1e-5)


def test_means_and_sigmas_share_the_he_variance():
    posterior = Nodes(400, 300, (), 1, 0.25).layers[0].posterior
    assert posterior.mean.var().item() == pytest.approx(0.75 * 2 / 400, rel=0.02)
    assert posterior.sigma.square().mean().item() == pytest.approx(0.25 * 2 / 400, rel=1e-4)


@pytest.mark.parametrize("has_compiler", [True, False])
def test_a_part_goes_on_exactly_where_its_state_was(has_compiler, monkeypatch):
    if not has_compiler:
        monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    part, other = moved_part(2), UCLPart(Nodes(4, 3, (6, 5), 2, RATIO), UCLWeights(), 0.01, 8)
    x = torch.randn(8, 4)

    def step(of):
        torch.manual_seed(1)
        return of.step(of(x).square().mean(), 0.0)

    step(part)
    other.load_state_dict(copy.deepcopy(part.state_dict()))
    for _ in range(3):
        assert step(part) == step(other)
    for mine, theirs in zip(part.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
