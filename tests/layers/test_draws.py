"""The estimator "draws": a few independent draws of the weights a batch."""

import pytest
import torch
from torch.nn import functional as F

from hvcl.layers import MoVEConv2d, MoVELinear


@pytest.fixture
def normals(monkeypatch):
    """Records the standard normals that are drawn."""
    recorded = []
    original = torch.randn_like

    def record(like, **options):
        recorded.append(original(like, **options))
        return recorded[-1]

    monkeypatch.setattr(torch, "randn_like", record)
    return recorded


@pytest.mark.parametrize("sigma", ["weight", "unit"])
def test_each_half_of_the_batch_has_a_draw_of_its_own_and_exact_gradients(normals, sigma):
    torch.manual_seed(0)
    layer = MoVELinear(4, 3, experts=1, estimator="draws", sigma=sigma, dtype=torch.float64)
    x = torch.randn(6, 4, dtype=torch.float64)
    answer = layer(x)
    mean = layer.posterior.mean.detach()[0].requires_grad_()
    rho = layer.posterior.rho.detach()[0].requires_grad_()
    first, second = (mean + rho.exp() * noise for noise in normals)
    expected = torch.cat([x[:3] @ first, x[3:] @ second])
    torch.testing.assert_close(answer, expected)
    weights = torch.randn_like(answer.detach())
    (answer * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(layer.posterior.mean.grad[0], mean.grad)
    torch.testing.assert_close(layer.posterior.rho.grad[0], rho.grad)


def test_convolutions_use_the_drawn_weights(normals):
    torch.manual_seed(0)
    layer = MoVEConv2d(2, 3, 3, padding=1, experts=1, estimator="draws", dtype=torch.float64)
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    answer = layer(x).detach()
    mean, sigma = layer.posterior.mean.detach()[0], layer.posterior.sigma.detach()[0]
    expected = [F.conv2d(part, mean + sigma * noise, padding=1) for part, noise in zip((x[:2], x[2:]), normals, strict=True)]
    torch.testing.assert_close(answer, torch.cat(expected))


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_small_batches(batch):
    layer = MoVELinear(4, 3, experts=2, estimator="draws")
    assert layer(torch.randn(batch, 4)).shape == (batch, 3)


def test_mean_and_variance_are_the_analytic_ones():
    """20,000 draws; the standard error of a variance is 1 %, of a mean sd / 141. Tolerance: five standard errors."""
    torch.manual_seed(0)
    layer = MoVELinear(6, 2, experts=1, estimator="draws", initial_sigma=1.0, dtype=torch.float64)
    x = torch.randn(1, 6, dtype=torch.float64)
    with torch.no_grad():
        outputs = torch.cat([layer(x) for _ in range(20_000)])
        mean = x @ layer.posterior.mean[0]
        variance = x.square() @ layer.posterior.sigma[0].square()
    assert ((outputs.mean(0) - mean).abs() < 5 * variance.sqrt() / 141).all()
    torch.testing.assert_close(outputs.var(0), variance[0], rtol=0.05, atol=0.0)


def test_evaluation_uses_the_mean():
    layer = MoVELinear(4, 3, experts=1, estimator="draws").eval()
    x = torch.randn(5, 4)
    torch.testing.assert_close(layer(x), x @ layer.posterior.mean[0])
