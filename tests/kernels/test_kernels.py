"""The compiled passes against plain torch in float64; tolerances are those of float32 arithmetic."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import Tensor

from hvcl.kernels import AdamStep, ExpertUpdate, Products, load_kernels
from hvcl.kernels.library import _find_gemm, _load
from hvcl.optim.adam import _mean_update, _to_rho, _variational_update
from hvcl.posteriors.deferral import Collected, Factors

SIZES = [1, 63, 64, 65, 513, 5000]
GUARD = 16
"""Numbers on either side of an array that nothing may write to."""


@pytest.fixture
def kernels():
    found = _load()
    if found is None:
        pytest.skip("no compiled kernels: there is no C compiler, or HVCL_NO_KERNELS is set")
    return found


class Guarded:
    """Tensors within larger ones, whose edges are checked for stray writes."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def __call__(self, values: Tensor) -> Tensor:
        buffer = torch.full((values.numel() + 2 * GUARD,), 1234.5)
        buffer[GUARD:-GUARD] = values.flatten()
        self._buffers.append(buffer)
        return buffer[GUARD:-GUARD].view(values.shape)

    def check(self) -> None:
        for buffer in self._buffers:
            assert (buffer[:GUARD] == 1234.5).all()
            assert (buffer[-GUARD:] == 1234.5).all()


def adam_step(t: int, kl_weight: float, lr: float = 0.01) -> AdamStep:
    return AdamStep(lr / (1 - 0.9**t), 0.9, 0.999, (1 - 0.999**t) ** -0.5, 1e-8, kl_weight)


def normals(*shape: int, seed: int, std: float = 1.0, mean: float = 0.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * std + mean


def stack(experts: int, n: int) -> dict[str, Tensor]:
    """An expert-major stack in the middle of training."""
    return {
        "mean": normals(experts, n, seed=1, std=0.3),
        "m1": normals(experts, n, seed=2, std=0.1),
        "v1": normals(experts, n, seed=3, std=0.1).square(),
        "prior_mean": normals(experts, n, seed=4, std=0.3),
        "rho": normals(experts, n, seed=5, std=0.5, mean=-2),
        "m2": normals(experts, n, seed=6, std=0.1),
        "v2": normals(experts, n, seed=7, std=0.1).square(),
        "prior_log_sigma": normals(experts, n, seed=8, std=0.5, mean=-1.5),
    }


class TestVariationalUpdate:
    @pytest.mark.parametrize("mode", [0, 1])
    @pytest.mark.parametrize("n", SIZES)
    @pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)), ids=str)
    def test_agrees_with_torch_in_float64(self, kernels, n, mode, present):
        """Expert 2, then expert 0 of four. Numbers to 1e-5 relative and 1e-5 absolute (a thousandth of a step; moments near zero
        make a step as inexact as they are), KLs to 1e-5 and 1e-6 a weight."""
        start = stack(4, n)
        guarded = Guarded()
        mine = {name: guarded(value) for name, value in start.items()}
        kl = guarded(torch.full((4,), -7.0))
        updates, shared = [], []
        for seed, (expert, t, weight) in enumerate([(2, 3, 0.7), (0, 1, 0.01)], start=20):
            made = [normals(n, seed=seed + 10 * i) if has else None for i, has in enumerate(present)]
            # the second expert has other gradients missing than the first
            g_mean, g_rho, g_noise = made if expert == 2 else (made[1], made[2], made[0])
            updates.append(ExpertUpdate(expert, adam_step(t, weight), g_mean, g_rho, g_noise))
            shared.append(normals(n, seed=seed + 50) if g_noise is not None and mode == 0 else None)
        kernels.variational_update(updates, mode, list(mine.values()), shared, kl)

        theirs = {name: value.double() for name, value in start.items()}
        for update, of in zip(updates, shared, strict=True):
            row = {name: value[update.expert] for name, value in theirs.items()}
            g_mean = None if update.g_mean is None else update.g_mean.double()
            g_rho = None if update.g_rho is None else update.g_rho.double()
            if update.g_noise is not None:
                kind = "noise" if mode == 0 else "variance"
                noise = Collected(kind, update.g_noise.double(), None if of is None else of.double())
                g_rho = _to_rho(noise, row["rho"]) + (0 if g_rho is None else g_rho)
            first = (row["mean"], g_mean, row["m1"], row["v1"], row["prior_mean"])
            expected = _variational_update(update.step, *first, row["rho"], g_rho, row["m2"], row["v2"], row["prior_log_sigma"])
            assert kl[update.expert].item() == pytest.approx(expected, rel=1e-5, abs=1e-6 * n)
            for name, value in row.items():
                torch.testing.assert_close(mine[name][update.expert].double(), value, rtol=1e-5, atol=1e-5, msg=name)
            assert not torch.equal(mine["mean"][update.expert], start["mean"][update.expert])
            assert not torch.equal(mine["rho"][update.expert], start["rho"][update.expert])
        for name in start:
            for untouched in (1, 3):
                assert torch.equal(mine[name][untouched], start[name][untouched])
        assert torch.equal(mine["prior_mean"], start["prior_mean"])
        assert torch.equal(mine["prior_log_sigma"], start["prior_log_sigma"])
        assert kl[[1, 3]].tolist() == [-7.0, -7.0]
        guarded.check()

    def test_no_experts_is_no_change(self, kernels):
        start = stack(2, 65)
        mine = {name: value.clone() for name, value in start.items()}
        kernels.variational_update([], 0, list(mine.values()), [], torch.zeros(2))
        for name, value in start.items():
            assert torch.equal(mine[name], value)

    @pytest.mark.parametrize("std", [1e-1, 1e-2, 1e-3])
    def test_a_small_kl_is_accurate(self, kernels, std):
        """A posterior near its prior: 65536 weights, KL to 5 % even where it is 1e-6 nats a weight."""
        n = 65536
        prior = normals(1, n, seed=1, std=0.5, mean=-2)
        rho, mean = prior + normals(1, n, seed=2, std=std), normals(1, n, seed=3)
        arrays = [mean.clone(), torch.zeros(1, n), torch.zeros(1, n), mean.clone(), rho, *torch.zeros(2, 1, n), prior]
        kl = torch.zeros(1)
        kernels.variational_update([ExpertUpdate(0, adam_step(1, 0.0, lr=0.0))], 0, arrays, [None], kl)
        ratio = (rho - prior).double()
        assert kl.item() == pytest.approx((torch.expm1(2 * ratio) / 2 - ratio).sum().item(), rel=0.05)

    def test_a_posterior_at_its_prior_stays_there(self, kernels):
        """KL 0 exactly and no gradient: Adam would turn a gradient of mere rounding errors into a whole step."""
        mean, rho = normals(1, 5000, seed=1), normals(1, 5000, seed=2, mean=-2)
        arrays = [mean.clone(), *torch.zeros(2, 1, 5000), mean.clone(), rho.clone(), *torch.zeros(2, 1, 5000), rho.clone()]
        kl = torch.ones(1)
        kernels.variational_update([ExpertUpdate(0, adam_step(1, 1.0))], 0, arrays, [None], kl)
        assert torch.equal(arrays[0], mean)
        assert torch.equal(arrays[4], rho)
        assert kl.item() == 0


class TestMeanUpdate:
    @pytest.mark.parametrize("with_gradient", [True, False])
    @pytest.mark.parametrize(
        "layout",
        [(1, 1, 1), (1, 63, 1), (5, 13, 1), (64, 65, 1), (3, 5, 9), (1, 4, 65), (1, 2, 513), (7, 1, 3), (1, 1, 5000)],
        ids=str,
    )
    def test_agrees_with_torch_in_float64(self, kernels, layout, with_gradient):
        """Experts 2 and 0 of three: numbers to 1e-5 relative and 1e-6 absolute, KLs to 1e-5."""
        n = math.prod(layout)
        start = {name: value for name, value in stack(3, n).items() if name in ("mean", "m1", "v1", "prior_mean")}
        inverse = normals(3, layout[1], seed=9).exp()
        guarded = Guarded()
        mine = {name: guarded(value) for name, value in start.items()}
        kl = guarded(torch.full((3,), -7.0))
        updates = [
            ExpertUpdate(m, adam_step(t, w), normals(n, seed=30 + m) if with_gradient else None)
            for m, t, w in ((2, 5, 0.3), (0, 1, 0.02))
        ]
        kernels.mean_update(updates, layout, [*mine.values(), inverse], kl)
        for update in updates:
            row = {name: value[update.expert].double() for name, value in start.items()}
            spread = inverse[update.expert].double().view(1, -1, 1).expand(layout).flatten()
            g_mean = None if update.g_mean is None else update.g_mean.double()
            expected = _mean_update(update.step, row["mean"], g_mean, row["m1"], row["v1"], row["prior_mean"], spread)
            assert kl[update.expert].item() == pytest.approx(expected, rel=1e-5)
            for name, value in row.items():
                torch.testing.assert_close(mine[name][update.expert].double(), value, rtol=1e-5, atol=1e-6, msg=name)
        for name in start:
            assert torch.equal(mine[name][1], start[name][1])
        assert torch.equal(mine["prior_mean"], start["prior_mean"])
        assert kl[1] == -7
        guarded.check()


@pytest.mark.parametrize("n", SIZES)
def test_scale_noise(kernels, n):
    """exp(rho) * shared to 2e-6 relative, from sigmas of 2e-9 to 20."""
    rho = torch.linspace(-20, 3, n) if n > 1 else torch.tensor([-3.0])
    shared = normals(n, seed=1)
    torch.testing.assert_close(kernels.scale_noise(rho, shared).double(), rho.double().exp() * shared.double(), rtol=2e-6, atol=0)


class TestMix:
    @pytest.mark.parametrize("item", [(1,), (63,), (65,), (513,), (3, 5, 7)], ids=str)
    @pytest.mark.parametrize("rows", [1, 7, 64])
    @pytest.mark.parametrize("arranged", ["stays", "permuted", "padded"])
    def test_agrees_with_indexing(self, kernels, item, rows, arranged):
        """Answers exact; the weights' gradients, which are sums, to 1e-5 of the length of the summands."""
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
        if arranged == "stays":
            row_of = slot_of = None
            slots = rows
        else:
            extra = 5 if arranged == "padded" else 0  # slots whose answers are not used
            slots = rows + extra
            row_of = torch.cat([order, order[:1].expand(extra)])
            slot_of = torch.empty(rows, dtype=torch.int64)
            slot_of[order] = torch.arange(rows)
        y, weights, grad = normals(slots, *item, seed=2), normals(slots, seed=3).exp(), normals(rows, *item, seed=4)
        if arranged == "padded":
            weights[rows:] = 0
        column = weights.view(-1, *[1] * len(item))
        used = (y * column) if slot_of is None else (y * column)[slot_of]
        assert torch.equal(kernels.mix_forward(y, weights, slot_of), used)
        g_y, g_w = kernels.mix_backward(grad, y, weights, row_of)
        back = grad if row_of is None else grad[row_of]
        assert torch.equal(g_y, back * column)
        products = (back.double() * y.double()).flatten(1)
        assert ((g_w.double() - products.sum(1)).abs() <= 1e-5 * products.norm(dim=1) + 1e-7).all()


class TestPool:
    @pytest.mark.parametrize(
        "shape", [(1, 1, 1), (3, 5, 63), (2, 3, 8, 8), (2, 3, 5, 13), (2, 1, 3, 9, 19), (1, 2, 5000)], ids=str
    )
    def test_agrees_with_torch_in_float64(self, kernels, shape):
        """Maxima and where they are exactly; means and gradients to 1e-6."""
        x = normals(*shape, seed=1)
        pooled, where = kernels.pool_forward(x)
        reference = x.double().requires_grad_()
        top, at = reference.flatten(2).max(2)
        expected = torch.cat([reference.flatten(2).mean(2), top], 1)
        torch.testing.assert_close(pooled.double(), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(pooled[:, shape[1] :].double(), top)
        assert torch.equal(where, at)
        grad = normals(*pooled.shape, seed=2)
        (theirs,) = torch.autograd.grad(expected, reference, grad.double())
        mine = kernels.pool_backward(grad, where, x.shape)
        assert mine.shape == x.shape
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("value", [0.0, -3.0])
    def test_of_equal_maxima_the_first_gets_the_gradient(self, kernels, value):
        x = torch.full((2, 3, 4, 17), value - 1)
        x[0, :, 1, 2] = x[0, :, 1, 9] = x[0, :, 3, 0] = value
        x[1] = value
        pooled, where = kernels.pool_forward(x)
        assert (pooled[:, 3:] == value).all()
        assert where.tolist() == [[19] * 3, [0] * 3]
        grad = torch.zeros(2, 6)
        grad[:, 3:] = 2.0
        spread = kernels.pool_backward(grad, where, x.shape).flatten(2)
        assert spread.sum().item() == 12
        assert (spread[0, :, 19] == 2).all()
        assert (spread[1, :, 0] == 2).all()


class TestStandardNormals:
    def test_moments_tails_and_range(self, kernels):
        """Ten million draws: finite, moments within 5 standard errors, counts beyond 1 to 5 sigma within 5 of theirs."""
        n = 10_000_000
        x = kernels.standard_normals(12345, torch.empty(n))
        assert x.isfinite().all()
        assert 4.5 < x.abs().max() < 5.5
        x = x.double()
        for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            assert abs((x**power).mean().item() - mean) < 5 * math.sqrt(variance / n)
        for bound in (1, 2, 3, 4, 5):
            expected = n * math.erfc(bound / math.sqrt(2)) / 2
            for count in ((x > bound).sum().item(), (x < -bound).sum().item()):
                assert abs(count - expected) < 5 * math.sqrt(expected) + 1
        assert x[:1_000_000].unique().numel() > 900_000  # of the 8.4 million values that 23 bits can make

    @pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
    def test_kolmogorov_smirnov(self, kernels, seed):
        """Two million draws; the distance to the normal cdf below its 0.1 % quantile, 1.95 / sqrt(n)."""
        n = 2_000_000
        x = kernels.standard_normals(seed, torch.empty(n)).sort().values.double()
        cdf = torch.special.ndtr(x)
        steps = torch.arange(n + 1, dtype=torch.float64) / n
        distance = torch.maximum((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()).item()
        assert distance < 1.95 / math.sqrt(n)

    @pytest.mark.parametrize("n", SIZES)
    def test_every_place_is_filled_and_nothing_else(self, kernels, n):
        guarded = Guarded()
        out = guarded(torch.full((n,), torch.nan))
        assert kernels.standard_normals(7, out) is out
        assert out.isfinite().all()
        assert out.unique().numel() > 0.99 * n
        guarded.check()

    def test_the_seed_decides(self, kernels):
        a, b, c = (kernels.standard_normals(seed, torch.empty(5000)) for seed in (5, 5, 6))
        assert torch.equal(a, b)
        assert not (a == c).any() or (a == c).float().mean() < 0.01

    @pytest.mark.parametrize(("one", "two"), [(0, 1), (1, 2), (41, 42), (7, 7 + 2**32), (3, 3 + 2**62)])
    def test_seeds_are_uncorrelated(self, kernels, one, two):
        """A million draws of each: correlations of values, squares and neighbours within 5 standard errors."""
        n = 1_000_000
        a, b = (kernels.standard_normals(seed, torch.empty(n)).double() for seed in (one, two))
        for u, v in ((a, b), (a[1:], b[:-1]), (a[64:], b[:-64])):
            assert abs((u * v).mean().item()) * math.sqrt(n) < 5
            assert abs(((u**2 - 1) * (v**2 - 1)).mean().item()) / 2 * math.sqrt(n) < 5

    @pytest.mark.parametrize("lag", [1, 2, 32, 63, 64, 65, 128, 4096])
    def test_draws_of_one_seed_are_uncorrelated(self, kernels, lag):
        """A million draws, 5 standard errors."""
        n = 1_000_000
        x = kernels.standard_normals(99, torch.empty(n)).double()
        assert abs((x[lag:] * x[:-lag]).mean().item()) * math.sqrt(n) < 5
        assert abs(((x[lag:] ** 2 - 1) * (x[:-lag] ** 2 - 1)).mean().item()) / 2 * math.sqrt(n) < 5


class TestRandomFlip:
    @pytest.mark.parametrize("n", [*SIZES, 2047, 2048, 2049])
    def test_values_and_the_adding_variant(self, kernels, n):
        x, before = normals(n, seed=1), normals(n, seed=2)
        flipped = kernels.random_flip(3, x)
        assert torch.equal(flipped.abs(), x.abs())
        guarded = Guarded()
        out = guarded(before)
        kernels.add_random_flip(3, x, out)
        torch.testing.assert_close(out, before + flipped, rtol=1e-6, atol=1e-6)
        assert torch.equal(kernels.random_flip(3, torch.ones(n)), flipped / x)
        assert torch.equal(kernels.random_flip(3, flipped), x)  # twice the same signs is none
        guarded.check()

    def test_fair_at_every_bit_and_lane_and_independent_of_neighbours(self, kernels):
        """4000 blocks of 32 bits by 64 lanes, all |z| < 5.5 (four thousand numbers)."""
        blocks = 4000
        signs = kernels.random_flip(11, torch.ones(blocks * 32 * 64)).double().view(blocks, 32, 64)
        assert (signs.mean(0).abs() * math.sqrt(blocks)).max() < 5.5  # every position by itself
        assert (signs.mean((0, 2)).abs() * math.sqrt(blocks * 64)).max() < 5  # bits
        assert (signs.mean((0, 1)).abs() * math.sqrt(blocks * 32)).max() < 5  # lanes
        flat = signs.flatten()
        for lag in (1, 63, 64, 65, 128, 2048):
            assert abs((flat[lag:] * flat[:-lag]).mean().item()) * math.sqrt(len(flat)) < 5
        other = kernels.random_flip(12, torch.ones(len(flat))).double()
        assert abs((flat * other).mean().item()) * math.sqrt(len(flat)) < 5


class TestLocalNoise:
    @pytest.mark.parametrize("shape", [(1, 1), (7, 63), (5, 65), (3, 5, 4, 13), (2, 3, 513)], ids=str)
    def test_agrees_with_torch_in_float64(self, kernels, shape):
        """y + sigma norm z and its gradients with the z of the seed, to 1e-5 of the largest number."""
        rows, channels, *places = shape
        count = math.prod(places)
        experts = torch.arange(rows) % 2 * 2  # of three, the second has no rows
        norm, sigma = normals(rows, 1, *places, seed=1).abs(), normals(3, channels, seed=2).exp()
        z = torch.zeros(shape)
        kernels.local_noise(9, experts, torch.ones_like(norm), torch.ones_like(sigma), z)
        assert z.unique().numel() > 0.99 * z.numel()
        y, grad = normals(*shape, seed=3), normals(*shape, seed=4)
        guarded = Guarded()
        out = guarded(y)
        kernels.local_noise(9, experts, norm, sigma, out)
        g_norm, g_sigma = kernels.local_noise_backward(9, experts, norm, sigma, grad)
        norm_double, sigma_double = norm.double().requires_grad_(), sigma.double().requires_grad_()
        spread = sigma_double[experts].view(rows, channels, *[1] * len(places))
        expected = y + spread * norm_double * z
        expected.backward(grad.double())
        for mine, theirs in ((out, expected), (g_norm, norm_double.grad), (g_sigma, sigma_double.grad)):
            bound = 1e-5 * theirs.abs().max().item() * math.sqrt(max(1, count))
            torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=bound)
        assert (g_sigma[1] == 0).all()
        guarded.check()

    def test_moments(self, kernels):
        """A million numbers in rows of 65: mean, variance and correlation of neighbouring rows within 5 standard errors."""
        z = torch.zeros(15385, 65)
        kernels.local_noise(4, torch.zeros(15385, dtype=torch.int64), torch.ones(15385, 1), torch.ones(1, 65), z)
        z = z.double()
        assert abs(z.mean().item()) * math.sqrt(z.numel()) < 5
        assert abs(z.square().mean().item() - 1) * math.sqrt(z.numel() / 2) < 5
        assert abs((z[1:] * z[:-1]).mean().item()) * math.sqrt(z.numel()) < 5


class TestLoading:
    def test_only_contiguous_float32_on_the_cpu(self, kernels):
        assert load_kernels(torch.zeros(3, 4)) is kernels
        assert load_kernels(torch.zeros(3, 4).T) is None
        assert load_kernels(torch.zeros(3, dtype=torch.float64)) is None
        assert load_kernels(torch.zeros(3, device="meta")) is None

    @staticmethod
    def run(code: str, **environment: str) -> None:
        kept = {k: v for k, v in os.environ.items() if k not in ("HVCL_NO_KERNELS", "CC")}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**kept, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    TRAINS = """
        import torch
        from hvcl.layers import MoVELinear
        from hvcl.optim import VariationalAdam
        layer = MoVELinear(5, 3, experts=2)
        before = layer.posterior.mean.detach().clone()
        optimizer = VariationalAdam(layer)
        (layer(torch.randn(8, 5)).square().mean() + layer.expert_kl()).backward()
        optimizer.step()
        assert not torch.equal(layer.posterior.mean, before)
    """

    def test_the_environment_switches_them_off(self):
        self.run("from hvcl.kernels.library import _load\nassert _load() is None", HVCL_NO_KERNELS="1")

    def test_a_compiler_that_fails_or_is_missing_is_no_error(self, tmp_path):
        self.run(
            """
            import os
            from pathlib import Path
            from hvcl.kernels.library import _load
            assert _load() is None
            _load.cache_clear()
            os.environ["PATH"] = ""
            os.environ["CC"] = "no-such-compiler"
            assert _load() is None
            assert not list(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.so"))
            """
            + textwrap.indent(textwrap.dedent(self.TRAINS), " " * 12),
            CC="/bin/false",
            XDG_CACHE_HOME=str(tmp_path),
        )

    def test_a_cache_folder_that_cannot_be_made_is_no_error(self, tmp_path):
        (tmp_path / "file").touch()
        self.run("from hvcl.kernels.library import _load\nassert _load() is None", XDG_CACHE_HOME=str(tmp_path / "file"))

    def test_compiled_anew_the_library_leaves_denormal_numbers_alone(self, kernels, tmp_path):
        self.run(
            """
            import numpy, os, torch
            from pathlib import Path
            from hvcl.kernels.library import _load
            found = _load()
            assert found is not None
            assert len(list(Path(os.environ["XDG_CACHE_HOME"]).rglob("kernels-*.so"))) == 1
            found.standard_normals(1, torch.empty(1000))
            found.scale_noise(torch.zeros(100), torch.zeros(100))
            one = torch.ones(1000)
            assert ((torch.full((1000,), 1e-40) * one) > 0).all()
            assert ((torch.full((1000,), 1e-30) * 1e-10) > 0).all()
            assert (numpy.full(1000, 1e-40, numpy.float32) * numpy.float32(1) > 0).all()
            assert numpy.float64(1e-310) * 1 > 0 and 1e-300 * 1e-15 > 0
            """,
            XDG_CACHE_HOME=str(tmp_path),
        )


class TestProduct:
    @pytest.fixture(params=["torch's", "its own"])
    def library(self, request, kernels):
        """With the matrix product that torch uses, and with the one that stands in where it is not found."""
        if request.param == "torch's":
            if not kernels.has_gemm:
                pytest.skip("torch's matrix product was not found")
            yield kernels
            return
        kernels._use_gemm(None)
        yield kernels
        kernels._use_gemm(_find_gemm())

    @pytest.mark.parametrize("turn_a", [False, True])
    @pytest.mark.parametrize("turn_b", [False, True])
    @pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (64, 33, 17)])
    def test_agrees_with_torch(self, library, shape, turn_a, turn_b):
        rows, n, columns = shape
        a, b = normals(rows, n, seed=1), normals(n, columns, seed=2)
        expected = a.double() @ b.double()
        first, second = a.T.contiguous() if turn_a else a, b.T.contiguous() if turn_b else b
        torch.testing.assert_close(library.product(first, second, turn_a, turn_b).double(), expected, rtol=1e-5, atol=1e-5)
        guarded = Guarded()
        more = guarded(torch.ones(rows, columns))
        library.product(first, second, turn_a, turn_b, add_to=more)
        guarded.check()
        torch.testing.assert_close(more.double(), expected + 1, rtol=1e-5, atol=1e-5)


class TestProductsInUpdates:
    """Gradients as factors against the same gradients multiplied out before."""

    @pytest.mark.parametrize("sigma", ["weight", "unit"])
    @pytest.mark.parametrize("with_more", [False, True])
    def test_agree_with_multiplied_gradients(self, kernels, sigma, with_more):
        experts, inputs, outputs = 4, 6, 5
        counts = [3, 0, 7, 1]
        starts = torch.tensor([0, *itertools.accumulate(counts)])
        rows = sum(counts)
        left, right = normals(rows, inputs, seed=20), normals(rows, outputs, seed=21)
        noise_left, noise_right = normals(rows, inputs, seed=22), normals(rows, outputs, seed=23)
        shared, more = normals(inputs, outputs, seed=24), normals(experts, inputs, outputs, seed=25)
        factors = Factors(starts, left, right, noise_left, noise_right, shared)
        collected: dict[int, dict[str, Tensor]] = {m: {} for m in range(experts)}
        for expert, item in factors.multiplied():
            collected[expert][item.kind] = item.gradient
        assert [bool(c) for c in collected.values()] == [True, False, True, True]
        results = []
        for as_products in (True, False):
            arrays = stack(experts, inputs * outputs)
            kl = torch.zeros(experts)
            updates, draws = [], []
            for m in range(experts):
                g_mean = more[m].clone() if with_more else None
                g_noise = None
                if not as_products:
                    product, g_noise = collected[m].get("mean"), collected[m].get("noise")
                    g_mean = product if g_mean is None else g_mean if product is None else g_mean + product
                updates.append(ExpertUpdate(m, adam_step(3, 0.1), g_mean, None, g_noise))
                draws.append(shared if g_noise is not None else None)
            room = torch.empty(2 * inputs * outputs)
            addresses = [t.data_ptr() for t in (*factors, room)]
            products = Products(inputs, outputs, *addresses) if as_products else None
            if sigma == "weight":
                kernels.variational_update(updates, 0, list(arrays.values()), draws, kl, products)
            else:
                updates = [u._replace(g_noise=None) for u in updates]
                inverse = normals(experts, outputs, seed=26).exp()
                stacked = (*(arrays[name] for name in ("mean", "m1", "v1", "prior_mean")), inverse)
                kernels.mean_update(updates, (inputs, outputs, 1), stacked, kl, products)
            results.append((arrays["mean"], arrays["rho"], kl))
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        assert not torch.equal(results[0][0], stack(experts, inputs * outputs)["mean"])


class TestLargeAndSmallSteps:
    @pytest.mark.parametrize("lr", [1e-5, 0.003, 0.1, 0.5])
    def test_the_kl_after_the_step_is_that_of_the_new_weights(self, kernels, lr):
        """It is not computed from the new sigmas when the steps are small."""
        n = 1000
        arrays = stack(1, n)
        arrays["rho"] = normals(1, n, seed=30, std=0.3, mean=-2)
        kl = torch.zeros(1)
        update = ExpertUpdate(0, adam_step(2, 0.1, lr), normals(n, seed=31), None, normals(n, seed=32))
        kernels.variational_update([update], 0, list(arrays.values()), [normals(n, seed=33)], kl)
        mean, rho, prior_mean, prior = (arrays[k].double() for k in ("mean", "rho", "prior_mean", "prior_log_sigma"))
        ratio = rho - prior
        expected = torch.expm1(2 * ratio) / 2 - ratio + (mean - prior_mean).square() * torch.exp(-2 * prior) / 2
        assert kl.item() == pytest.approx(expected.sum().item(), rel=1e-5)


class TestDistances:
    @pytest.mark.parametrize("experts", [2, 5])
    @pytest.mark.parametrize("n", [1, 1023, 1024, 3000])
    @pytest.mark.parametrize("exponentials", [False, True])
    def test_agree_with_the_formula_and_do_not_depend_on_which_are_asked_for(self, kernels, experts, n, exponentials):
        values = normals(experts, n, seed=40, std=0.3, mean=-1.0)
        seen = (values.exp() if exponentials else values).double()
        expected = 1 + 2.5 * torch.cdist(seen, seen).square()
        out = torch.ones(experts, experts, dtype=torch.float64)
        kernels.pair_distances(values, exponentials, 2.5, list(range(experts)), out)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
        part = torch.ones(experts, experts, dtype=torch.float64)
        kernels.pair_distances(values, exponentials, 2.5, [1], part)
        assert torch.equal(part[1], out[1])
        assert torch.equal(part[:, 1], out[:, 1])
        assert part[0, 0] == 1

    @pytest.mark.parametrize("n", [1, 1023, 3000])
    @pytest.mark.parametrize("exponentials", [False, True])
    def test_repel(self, kernels, n, exponentials):
        values = normals(5, n, seed=41, std=0.3, mean=-1.0)
        push = normals(5, 5, seed=42)
        push -= push.mean(1, keepdim=True)
        seen = (values.exp() if exponentials else values).double()
        expected = push.double() @ seen * (seen if exponentials else 1)
        for which in ([0, 2, 3], [4, 3, 2, 1, 0]):
            out = kernels.repel(push, values, exponentials, which)
            torch.testing.assert_close(out.double(), expected[which], rtol=1e-4, atol=1e-5)

    def test_identical_experts_are_not_pushed(self, kernels):
        values = normals(1, 700, seed=43, std=100.0).repeat(3, 1)
        push = torch.tensor([[2.0, -0.7, -1.3], [-0.7, 1.9, -1.2], [-1.3, -1.2, 2.5]])
        assert (kernels.repel(push, values, False, [0, 1, 2]) == 0).all()
