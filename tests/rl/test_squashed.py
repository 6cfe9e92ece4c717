import math

import pytest
import torch
from torch.nn import functional as F

from hvcl.ops import load
from hvcl.rl.squashed import mode, sample, split


def log_probability(outputs, action, mask):
    """log pi of actions strictly between -1 and 1, by the formula."""
    mean, log_sigma = split(outputs)
    before = torch.atanh(action)
    density = -0.5 * ((before - mean) / log_sigma.exp()).square() - log_sigma - 0.5 * math.log(2 * math.pi)
    jacobian = 2 * (math.log(2) - before - F.softplus(-2 * before))
    return ((density - jacobian) * mask).sum(1)


@pytest.mark.parametrize(("mean", "log_sigma"), [(0.0, 0.0), (1.5, -1.0), (-0.7, 0.5)])
def test_the_density_integrates_to_one(mean, log_sigma):
    u = torch.linspace(-18, 18, 200_001, dtype=torch.double)
    action = u.tanh()
    inside = action.abs() < 1 - 1e-13
    outputs = torch.tensor([[mean, log_sigma]], dtype=torch.double).expand(int(inside.sum()), 2)
    action = action[inside].unsqueeze(1)
    density = log_probability(outputs, action, torch.ones_like(action)).exp()
    assert torch.trapezoid(density, action[:, 0]).item() == pytest.approx(1, abs=1e-5)


def test_a_masked_density_is_that_of_the_actions_that_are_read():
    # two of three actions: the density over the plane integrates to 1, whatever the third output says
    grid = torch.linspace(-6, 6, 301, dtype=torch.double).tanh()
    a, b = torch.meshgrid(grid, grid, indexing="ij")
    action = torch.stack([a.flatten(), b.flatten(), torch.zeros(a.numel(), dtype=torch.double)], 1)
    mask = torch.tensor([1.0, 1.0, 0.0], dtype=torch.double).expand_as(action)
    outputs = torch.tensor([[0.3, -0.4, 55.0, -0.5, 0.1, -19.0]], dtype=torch.double).expand(len(action), 6)
    density = log_probability(outputs, action, mask).exp().view(301, 301)
    assert torch.trapezoid(torch.trapezoid(density, grid), grid).item() == pytest.approx(1, abs=1e-3)


def test_draws_come_with_their_own_density():
    torch.manual_seed(0)
    outputs = torch.randn(200, 6, dtype=torch.double)
    mask = (torch.rand(200, 3) < 0.6).double()
    action, log_pi = sample(outputs, mask)
    assert (action[mask == 0] == 0).all()
    torch.testing.assert_close(log_pi, log_probability(outputs, action, mask))


def test_the_gradient_is_that_of_the_plain_formula():
    outputs = torch.randn(50, 6, dtype=torch.double) * 2
    outputs[:5, 3] = 3.0  # beyond the range of log sigma: no gradient there
    mask = (torch.rand(50, 3) < 0.6).double()
    of_action, of_density = torch.randn(50, 3, dtype=torch.double), torch.randn(50, dtype=torch.double)

    def plain(outputs, mask):
        mean, log_sigma = outputs.chunk(2, 1)
        log_sigma = log_sigma.clamp(-20, 2)
        noise = torch.randn_like(mean)
        u = mean + log_sigma.exp() * noise
        density = -log_sigma - noise.square() / 2 - 0.5 * math.log(2 * math.pi) - torch.log(1 - u.tanh().square())
        return u.tanh() * mask, (density * mask).sum(1)

    gradients = []
    for draw in (sample, plain):
        leaf = outputs.clone().requires_grad_()
        torch.manual_seed(1)
        action, log_pi = draw(leaf, mask)
        ((action * of_action).sum() + (log_pi * of_density).sum()).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
    assert (gradients[0][:5, 3] == 0).all()


@pytest.mark.skipif(load() is None, reason="there is no C compiler")
def test_compiled_and_plain_agree(monkeypatch):
    torch.manual_seed(0)
    outputs = torch.randn(50, 6) * 3
    outputs[:5, 3:], outputs[5:9, 3:], outputs[9:12, :3] = 3.0, -25.0, 30.0  # at both ends of log sigma; actions at the edge
    mask = (torch.rand(50, 8) < 0.6).float()[:, 2:5]
    of_action, of_density = torch.randn(50, 7)[:, 4:], torch.ones(()).expand(50)

    def draw():
        leaf = outputs.clone().requires_grad_()
        torch.manual_seed(1)
        action, log_pi = sample(leaf, mask)
        return action, log_pi, torch.autograd.grad([action, log_pi], leaf, [of_action, of_density])[0]

    ours = draw()
    with torch.no_grad():
        torch.manual_seed(1)
        assert all(torch.equal(a, b) for a, b in zip(sample(outputs, mask), ours[:2], strict=True))
    monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    for mine, theirs in zip(ours, draw(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6)
    assert (ours[0][mask == 0] == 0).all()


def test_extreme_outputs_stay_finite():
    outputs = torch.tensor([[50.0, -50.0, 5.0, -30.0]], requires_grad=True)
    action, log_pi = sample(outputs, torch.ones(1, 2))
    (action.sum() + log_pi.sum()).backward()
    assert torch.isfinite(log_pi).all()
    assert torch.isfinite(outputs.grad).all()
    assert mode(outputs).abs().max() <= 1
