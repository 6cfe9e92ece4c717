from __future__ import annotations

import copy
import math

import pytest
import torch

from hvcl.layers import MoVELinear
from hvcl.layers.diversity import JITTER, _LogDeterminant, _value, median_width, squared_distances
from hvcl.ops import load
from hvcl.ops.diversity import log_determinant as compiled


def explicit(mean, sigma):
    experts = list(zip(mean, sigma, strict=True))
    rows = [[((a - c) ** 2).sum() + ((b - d) ** 2).sum() for c, d in experts] for a, b in experts]
    return torch.tensor(rows, dtype=torch.float64)


class TestSquaredDistances:
    def test_agrees_with_the_formula(self):
        torch.manual_seed(0)
        mean, sigma = torch.randn(4, 3, 2, dtype=torch.float64), torch.rand(4, 3, 2, dtype=torch.float64)
        torch.testing.assert_close(squared_distances(mean, sigma), explicit(mean, sigma), rtol=1e-12, atol=1e-12)

    def test_counts_a_shared_sigma_once_per_weight(self):
        torch.manual_seed(0)
        mean, sigma = torch.randn(3, 5, 2, dtype=torch.float64), torch.rand(3, 2, dtype=torch.float64)
        expected = explicit(mean, sigma.unsqueeze(1).expand_as(mean))
        torch.testing.assert_close(squared_distances(mean, sigma, 5.0), expected, rtol=1e-12, atol=1e-12)

    def test_survives_a_large_common_offset_in_float32(self):
        """Experts at distance 1e-2 around weights of size 100: without centring float32 would see only rounding."""
        torch.manual_seed(0)
        difference = 1e-3 * torch.randn(3, 100)
        mean = (100 + torch.randn(1, 100) + difference).float()
        sigma = torch.full_like(mean, 0.1)
        expected = explicit(mean.double(), sigma.double())
        torch.testing.assert_close(squared_distances(mean, sigma).double(), expected, rtol=1e-3, atol=1e-9)

    def test_is_zero_on_the_diagonal_and_never_negative(self):
        torch.manual_seed(0)
        mean = torch.randn(1, 50).repeat(4, 1)
        distances = squared_distances(mean, mean.exp())
        assert torch.equal(distances.diagonal(), torch.zeros(4))
        assert (distances >= 0).all()


class TestMedianWidth:
    def test_is_the_root_of_the_median_pair(self):
        distances = torch.tensor([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]])
        assert median_width(distances).item() == 2.0

    def test_is_one_for_identical_experts(self):
        assert median_width(torch.zeros(3, 3)).item() == 1.0


class TestLogDeterminant:
    @pytest.mark.parametrize("width", [0.3, 1.0, 4.0])
    def test_two_experts_have_one_minus_k_squared(self, width):
        mean = torch.tensor([[0.0], [math.sqrt(0.7)]], dtype=torch.float64)
        sigma = torch.ones_like(mean)
        k = math.exp(-0.7 / (2 * width**2))
        value = _LogDeterminant.apply(mean, sigma, 1.0, squared_distances(mean, sigma), torch.tensor(width, dtype=torch.float64))
        assert value.item() == pytest.approx(math.log((1 + JITTER) ** 2 - k**2), rel=1e-10)
        assert value.exp().item() == pytest.approx(1 - k**2, abs=3 * JITTER)

    def test_a_small_width_saturates_and_a_large_one_is_singular(self):
        torch.manual_seed(0)
        mean = torch.randn(4, 10, dtype=torch.float64)
        distances = squared_distances(mean, mean.exp())
        widths = (torch.tensor(w, dtype=torch.float64) for w in (1e-2, 1e4))
        small, large = (_LogDeterminant.apply(mean, mean.exp(), 1.0, distances, w).item() for w in widths)
        assert small == pytest.approx(4 * math.log1p(JITTER), abs=1e-9)
        assert large == pytest.approx(math.log(4 + JITTER) + 3 * math.log(JITTER), abs=1e-2)

    @pytest.mark.skipif(load() is None, reason="no compiled library")
    @pytest.mark.parametrize("experts", [2, 5, 64])
    def test_compiled_agrees(self, experts):
        """Value to 1e-6, and with it the Laplacian that its gradient is made of."""
        torch.manual_seed(0)
        mean = torch.randn(experts, 10, dtype=torch.float64, requires_grad=True)
        sigma = torch.zeros_like(mean)
        distances = squared_distances(mean, sigma)
        width = torch.tensor(3.0, dtype=torch.float64)
        value = _LogDeterminant.apply(mean, sigma, 1.0, distances, width)
        value.backward()
        found, laplacian = compiled(load(), distances, 3.0, JITTER)
        assert found == pytest.approx(value.item(), rel=1e-6)
        torch.testing.assert_close(-4 * laplacian.double() @ mean.detach(), mean.grad, rtol=1e-3, atol=1e-4)

    def test_its_gradient_parts_experts_that_are_close(self):
        torch.manual_seed(0)
        layer = MoVELinear(5, 4, experts=2, kernel_width=1.0, dtype=torch.float64)
        with torch.no_grad():
            layer.posterior.mean[1] = layer.posterior.mean[0] + 1e-2 * torch.randn(5, 4)
        apart = layer.posterior.mean[0] - layer.posterior.mean[1]
        layer.diversity().backward()
        gradient = layer.posterior.mean.grad
        assert (gradient[0] * apart).sum() > 0  # ascending, the experts move apart
        torch.testing.assert_close(gradient[0], -gradient[1])


class Owner:
    """Stands for the optimiser that gradients are collected for."""


@pytest.mark.parametrize("sigma", ["weight", "unit"])
@pytest.mark.parametrize("copies", [1, 2])
class TestCollected:
    """The diversity of a posterior whose gradients are collected, with distances that are remembered from step to step."""

    def build(self, sigma, copies):
        torch.manual_seed(0)
        layer = MoVELinear(40, 30, experts=4, sigma=sigma, copies=copies)
        with torch.no_grad():
            layer.posterior.rho.normal_(-1, 0.5)
        owner = Owner()
        layer.posterior.collector.begin(owner)
        return layer, 1.0 if sigma == "weight" else 40.0, owner

    def step(self, posterior, *experts):
        """As an optimiser does it."""
        of = posterior.stepped_together
        before = tuple(t._version for t in of)
        with torch.no_grad():
            for t in of:
                t[list(experts)] += 0.1 * torch.randn_like(t[list(experts)])
        posterior.collector.stepped(list(experts), before, *of)

    def value(self, layer, repeats, remembers=True):
        if not remembers:
            layer.posterior.collector._distances = None
        value, laplacian = _value(layer.posterior, layer.posterior.rho.detach(), repeats, layer.kernel_width)
        return torch.cat([value.reshape(1), laplacian.flatten()])

    def test_is_the_diversity(self, sigma, copies):
        layer, repeats, _owner = self.build(sigma, copies)
        found = self.value(layer, repeats)[0]
        plain = copy.deepcopy(layer).double()
        assert found.item() == pytest.approx(plain.diversity().item(), rel=1e-4)

    def test_remembering_changes_no_bit(self, sigma, copies):
        """A run that is resumed remembers nothing and must go on the same."""
        layer, repeats, _owner = self.build(sigma, copies)
        self.value(layer, repeats)
        for experts in ((1,), (0, 3), ()):
            self.step(layer.posterior, *experts)
            assert torch.equal(self.value(layer, repeats), self.value(layer, repeats, remembers=False))

    def test_sees_changes_from_elsewhere(self, sigma, copies):
        layer, repeats, _owner = self.build(sigma, copies)
        before = self.value(layer, repeats)
        with torch.no_grad():
            layer.posterior.mean[2] += 1.0
        self.step(layer.posterior, 0)
        after = self.value(layer, repeats)
        assert torch.equal(after, self.value(layer, repeats, remembers=False))
        assert not torch.equal(after, before)
