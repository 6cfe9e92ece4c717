"""The exact linear model against dense Bayesian linear regression in float64."""

import copy
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from hvcl.core.errors import InputError, RunError
from hvcl.core.storage import load_state, save_state
from hvcl.posteriors import evidence, matrix_normal, panels
from hvcl.posteriors.evidence import factorise, root
from hvcl.posteriors.matrix_normal import MatrixNormal

TOLERANCE = 2e-4
"""Of every property, relative to the largest number: second moments of many features are sums in float32."""


def data(n=60, features=12, outputs=3, noise=0.5, seed=0, offset=0.3):
    """Correlated features around a mean that is not zero, linear targets around another one."""
    random = torch.Generator().manual_seed(seed)
    mix = torch.randn(features, features, generator=random) / features**0.5 + torch.eye(features)
    phi = torch.randn(n, features, generator=random) @ mix + offset
    weights = torch.randn(features, outputs, generator=random)
    y = (phi @ weights + noise * torch.randn(n, outputs, generator=random) + torch.arange(1.0, outputs + 1)).double()
    return phi, y


def learned(phi, y, ridge=None, batch=17):
    model = MatrixNormal(phi.shape[1], y.shape[1], ridge=ridge)
    for a, b in zip(phi.split(batch), y.split(batch), strict=True):
        model.add(a, b)
    return model


class Reference:
    """The textbook's formulas with the whole data set in memory."""

    def __init__(self, phi, y, ridge):
        phi, y = phi.double().numpy(), y.numpy()
        self.n, self.ridge = len(phi), ridge
        self.mean, self.intercept = phi.mean(0), y.mean(0)
        self.phi, self.y = phi - self.mean, y - self.intercept
        self.second = self.phi.T @ self.phi
        self.cov = np.linalg.inv(self.second + ridge * np.eye(phi.shape[1]))
        self.weights = self.cov @ self.phi.T @ self.y
        residual = self.y - self.phi @ self.weights
        self.noise = ((residual**2).sum(0) + ridge * (self.weights**2).sum(0)) / (self.n - 1)

    def predict(self, phi):
        return (phi.double().numpy() - self.mean) @ self.weights + self.intercept

    def variance(self, phi):
        centred = phi.double().numpy() - self.mean
        distance = np.einsum("bi,ij,bj->b", centred, self.cov, centred)
        return np.outer(1 + 1 / self.n + distance, self.noise)

    def profile(self):
        """The same, for a fine grid: by the determinant in feature space."""
        determinant = np.linalg.slogdet(np.eye(len(self.cov)) + self.second / self.ridge)[1] + np.log(self.n)
        return -0.5 * ((self.n - 1) * (np.log(2 * np.pi * self.noise) + 1) + determinant).sum()

    def evidence(self):
        """Marginal likelihood of the targets, each output a multivariate normal over all examples; the flat b integrated out.

        In an orthonormal basis of what b does not move; along b the integral is 1 / sqrt(n), whatever the target.
        """
        basis = np.linalg.svd(np.ones((1, self.n)))[2][1:]
        phi, y = basis @ self.phi, basis @ self.y
        kernel, zero = np.eye(self.n - 1) + phi @ phi.T / self.ridge, np.zeros(self.n - 1)
        every = [multivariate_normal.logpdf(y[:, c], zero, s * kernel) for c, s in enumerate(self.noise)]
        return sum(every) - 0.5 * len(every) * np.log(self.n)


def close(a, b, tolerance=TOLERANCE):
    a, b = np.asarray(a), np.asarray(b)
    np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), rtol=0, atol=tolerance * np.abs(b).max())


def same_posterior(a, b):
    a, b = a.posterior(), b.posterior()
    assert a.ridge == b.ridge
    assert a.count == b.count
    close(a.weights, b.weights)
    close(a.intercept, b.intercept)
    close(a.noise, b.noise)
    close(a.effective, b.effective)
    probe = torch.randn(5, len(a.weights), generator=torch.Generator().manual_seed(99))
    close(a.variance(probe), b.variance(probe))


def identical(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


@pytest.fixture(params=["whole", "panels", "single"])
def branch(request, monkeypatch):
    """All branches for large numbers of features, at small ones."""
    if request.param != "whole":
        monkeypatch.setattr(panels, "PANEL", 5)
    if request.param == "single":
        monkeypatch.setattr(matrix_normal, "DOUBLE", 4)
    return request.param


# -- the posterior ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_posterior_and_predictions_are_those_of_dense_bayesian_regression(branch, ridge):
    phi, y = data()
    posterior, reference = learned(phi, y, ridge).posterior(), Reference(phi, y, ridge)
    assert (posterior.count, posterior.ridge) == (60, ridge)
    close(posterior.weights, reference.weights)
    close(posterior.noise, reference.noise)
    close(posterior.intercept, reference.intercept)
    close(posterior.feature_mean, reference.mean)
    close(posterior.effective, np.trace(reference.second @ reference.cov))
    new = 2 * data(seed=1)[0]
    for kind in (torch.float32, torch.float64):
        assert posterior.mean(new.to(kind)).dtype == posterior.variance(new.to(kind)).dtype == kind
        close(posterior.mean(new.to(kind)), reference.predict(new))
        close(posterior.variance(new.to(kind)), reference.variance(new))


@pytest.mark.parametrize("ridge", [0.1, 4.0])
def test_evidence_is_the_marginal_likelihood(branch, ridge):
    phi, y = data(n=30, features=8)
    reference = Reference(phi, y, ridge)
    close(learned(phi, y, ridge).posterior().evidence, reference.evidence())
    close(reference.profile(), reference.evidence(), 1e-9)


@pytest.mark.parametrize("ridge", [0.1, 4.0, 100.0])
def test_slope_is_twice_the_derivative_of_the_evidence(ridge):
    phi, y = data(n=30, features=8)
    step = 1e-4
    up, down = (Reference(phi, y, ridge * np.exp(s)).evidence() for s in (step, -step))
    close(learned(phi, y, ridge).posterior().slope, 2 * (up - down) / (2 * step), tolerance=1e-3)


@pytest.mark.parametrize(
    ("n", "features", "noise"), [(60, 12, 0.5), (60, 12, 8.0), (40, 30, 1.0), (300, 5, 0.1), (25, 40, 5.0), (100, 250, 20.0)]
)
def test_the_ridge_is_the_power_of_two_beside_the_maximum_of_the_evidence(n, features, noise):
    phi, y = data(n, features, noise=noise)
    grid = np.arange(-20, 20, 0.1)
    evidence = [Reference(phi, y, 2.0**power).profile() for power in grid]
    posterior = learned(phi, y).posterior()
    power = np.log2(posterior.ridge)
    assert power == round(power)
    assert abs(power - grid[np.argmax(evidence)]) < 0.8
    assert posterior.evidence > max(evidence) - 0.5 * y.shape[1]


def test_the_scale_of_targets_does_not_matter():
    phi, y = data(outputs=2)
    plain = learned(phi, y).posterior()
    for factor in (1e-7, 1e7):
        scaled = learned(phi, factor * y).posterior()
        assert scaled.ridge == plain.ridge
        close(scaled.weights / factor, plain.weights)
        close(scaled.noise / factor**2, plain.noise)


def test_an_output_that_never_varied_predicts_its_constant_and_does_not_count():
    phi, y = data(outputs=2)
    constant = torch.cat([y, torch.full((60, 1), 0.1, dtype=torch.float64)], 1)
    without, with_it = learned(phi, y).posterior(), learned(phi, constant).posterior()
    assert with_it.ridge == without.ridge
    close(with_it.evidence, without.evidence)
    close(with_it.mean(phi)[:, 2], 0.1)
    close(with_it.mean(phi)[:, :2], without.mean(phi))
    alone = learned(phi, constant[:, 2:]).posterior()
    close(alone.mean(phi), 0.1)
    assert not alone.weights.any()


def test_several_maxima_the_same_one_is_taken_whatever_was_computed_on_the_way():
    # strong noise directions want a large ridge, weak signal directions a small one: the evidence has two maxima
    random = torch.Generator().manual_seed(0)
    strong, weak = 30 * torch.randn(100, 60, generator=random), 0.03 * torch.randn(100, 3, generator=random)
    phi, y = torch.cat([strong, weak], 1), (30 * weak.sum(1, keepdim=True) + 0.3 * torch.randn(100, 1, generator=random)).double()
    quiet = torch.cat([0 * strong, weak], 1)[:20]  # without the noise a small ridge is best
    ridges = []
    for often in (True, False):
        model = MatrixNormal(63, 1)
        model.add(quiet, y[:20])
        if often:
            ridges.append(model.posterior().ridge)
        model.add(phi, y)
        ridges.append(model.posterior().ridge)
    assert ridges[0] < 0.1
    assert ridges[1] == ridges[2] > 1000


def test_computing_the_posterior_often_or_once_gives_identical_numbers(branch):
    phi, y = data(200, 14, noise=2.0)
    often, once = MatrixNormal(14, 3), MatrixNormal(14, 3)
    for a, b in zip(phi.split(5), y.split(5), strict=True):
        often.add(a, b)
        once.add(a, b)
        often.posterior()
    a, b = often.posterior(), once.posterior()
    assert (a.ridge, a.evidence, a.slope, a.effective) == (b.ridge, b.evidence, b.slope, b.effective)
    assert torch.equal(a.weights, b.weights)
    assert torch.equal(a.factor.lower, b.factor.lower)


@pytest.fixture
def following(monkeypatch):
    """Factors are kept at a small number of features too."""
    monkeypatch.setattr(matrix_normal, "FOLLOWED", 4)
    monkeypatch.setattr(matrix_normal, "ON_TOP", 1.5)


@pytest.mark.parametrize("exact_trace", [2048, 5])
@pytest.mark.parametrize("ridge", [None, 0.5])
def test_examples_on_top_of_kept_factors_give_the_posterior_of_all(following, monkeypatch, exact_trace, ridge):
    # to 1e-6, and of one batch in turn, of several, and with an output that is new
    monkeypatch.setattr(evidence, "EXACT_TRACE", exact_trace)
    phi, y = data(300, 14, noise=2.0)
    y[:200, 2] = 0
    often, once = MatrixNormal(14, 2, ridge=ridge), MatrixNormal(14, 3, ridge=ridge)
    on_top = 0
    probe = data(50, 14, seed=1)[0].double()
    for number, (a, b) in enumerate(zip(phi.split(5), y.split(5), strict=True)):
        if number == 40:
            often.grow(3)
        often.add(a, b[:, : often.outputs])
        once.add(a, b)
        if number % 3:
            continue
        once._forget()
        one, two = often.posterior(), once.posterior()
        assert two.factor.added is None
        on_top += one.factor.added is not None
        assert one.ridge == two.ridge
        for name in ("noise", "weights"):
            close(getattr(one, name), getattr(two, name)[..., : often.outputs], 1e-6)
        close((one.effective, one.slope, one.evidence), (two.effective, two.slope, two.evidence), 1e-6)
        close(one.mean(probe), two.mean(probe)[:, : often.outputs], 1e-6)
        close(one.variance(probe), two.variance(probe)[:, : often.outputs], 1e-6)
    assert on_top > 6


def test_a_maximum_that_leaves_the_kept_ridges_is_found(following, monkeypatch):
    monkeypatch.setattr(matrix_normal, "NEAR", 100.0)
    monkeypatch.setattr(matrix_normal, "ON_TOP", 50.0)
    random = torch.Generator().manual_seed(0)
    phi, noise = torch.randn(400, 6, generator=random), torch.randn(400, 1, generator=random).double()
    model, whole = MatrixNormal(6, 1), MatrixNormal(6, 1)
    ridges = []
    for a, b in ((phi[:100], phi[:100, :1].double()), (phi[100:], 5 * noise[100:])):
        for some, targets in zip(a.split(10), b.split(10), strict=True):
            for each in (model, whole):
                each.add(some, targets)
            ridges.append(model.posterior().ridge)
            whole._forget()
            assert ridges[-1] == whole.posterior().ridge
    assert ridges[9] < 1 < 16 < ridges[-1]


def test_a_model_that_is_too_large_to_keep_factors_keeps_its_ridge_also_in_files(monkeypatch):
    monkeypatch.setattr(matrix_normal, "DOUBLE", 3)
    tried = []
    given = evidence.posterior_given
    monkeypatch.setattr(evidence, "posterior_given", lambda ridge, sums: (tried.append(ridge), given(ridge, sums))[1])
    phi, y = data(400, 14)
    model = learned(phi[:300], y[:300])
    first = model.posterior().ridge
    assert len(tried) > 2  # a search from n / 128
    again = MatrixNormal(phi.shape[1], y.shape[1])
    again.load_state_dict(model.state_dict())
    for each in (model, again):
        tried.clear()
        each.add(phi[300:], y[300:])
        assert each.posterior().ridge == learned(phi, y).posterior().ridge
        assert tried[0] == first
        assert tried[2] == 2.0 ** round(math.log2(400 / 128))  # after two, those of the new model
    old = {name: value for name, value in model.state_dict().items() if name != "search"}
    again.load_state_dict(old)
    with pytest.raises(RunError, match="search of the ridge"):
        again.load_state_dict(old | {"search": [3.0, math.nan]})


def test_saving_forgets_factors_so_that_both_go_on_identically(following):
    phi, y = data(120, 14)
    model = learned(phi[:100], y[:100])
    model.posterior()
    model.add(phi[100:105], y[100:105])
    assert model.posterior().factor.added is not None
    other = MatrixNormal(14)
    other.load_state_dict(model.state_dict())
    for some in (slice(105, 105), slice(105, 110), slice(110, 115)):
        for each in (model, other):
            each.add(phi[some], y[some])
        assert torch.equal(model.posterior().weights, other.posterior().weights)
    assert model.posterior().factor.added is not None
    for change in (lambda: model.remove(phi[:3], y[:3]), lambda: model.merge(learned(phi[:3], y[:3]))):
        change()
        assert model.posterior().factor.added is None
    same_posterior(model, learned(phi[:115], y[:115]))


def test_a_posterior_that_was_handed_out_does_not_change(following):
    phi, y = data(120, 14)
    model = learned(phi[:60], y[:60])
    handed_out = []
    for change in (
        lambda: model.add(phi[60:65], y[60:65]),
        lambda: model.add(phi[65:], y[65:]),
        lambda: model.grow(4),
        lambda: model.remove(phi[:10], torch.nn.functional.pad(y[:10], (0, 1))),
        lambda: model.merge(learned(phi[:20], y[:20])),
    ):
        posterior = model.posterior()
        handed_out.append((posterior, posterior.mean(phi), posterior.variance(phi), posterior.cross.clone()))
        change()
        model.posterior()
    for posterior, mean, variance, cross in handed_out:
        assert torch.equal(posterior.mean(phi), mean)
        assert torch.equal(posterior.variance(phi), variance)
        assert torch.equal(posterior.cross, cross)
    with pytest.raises(FrozenInstanceError):
        posterior.ridge = 1.0


def test_the_ridge_is_at_least_the_rounding_of_the_sums(branch):
    phi, y = data(60, 12)
    for scale in (1e-4, 1.0, 1e4):
        model = learned(scale * phi, y, 1e-300)
        posterior = model.posterior()
        largest = float((scale * (phi - model.centre)).double().square().sum())
        epsilon = 1.2e-7 if branch == "single" else 2.3e-16
        assert 1e-300 < posterior.ridge < 10 * epsilon * largest
        assert torch.isfinite(posterior.weights).all()


@pytest.mark.parametrize("mean", [10.0, 1000.0])
def test_far_from_the_origin_one_by_one(mean):
    # targets whose noise is a hundredth: what a Gram matrix around the origin cannot see
    random = torch.Generator().manual_seed(0)
    phi = mean + torch.randn(1500, 4, generator=random)
    noise = 0.01 * torch.randn(1500, 2, generator=random).double()
    y = phi.double() @ torch.randn(4, 2, generator=random).double() + noise
    posterior = learned(phi, y, batch=1).posterior()
    close(posterior.noise.sqrt(), 0.01, 0.05)
    for kind in (torch.float32, torch.float64):
        error = (posterior.mean(phi.to(kind)).double() - y).square().mean().sqrt()
        assert 0.009 < float(error) < 0.011


def test_the_posterior_is_kept_until_something_changes():
    phi, y = data()
    model = learned(phi, y)
    before = model.posterior()
    assert model.posterior() is before
    for change in (lambda: model.add(phi, y), lambda: model.remove(phi, y), lambda: model.merge(model), lambda: model.grow(4)):
        before = model.posterior()
        change()
        assert model.posterior() is not before


@pytest.mark.parametrize("start", [-50, -20, -3, 5, 6, 17, 40, 90])
@pytest.mark.parametrize(("zero", "power"), [(5.3, 5), (5.7, 6), (-7.2, -7), (99.0, 40), (-99.0, -20), (39.6, 40), (-19.6, -20)])
def test_the_search_ends_beside_the_zero_from_anywhere(start, zero, power):
    calls = []

    def slope(p):
        assert -20 <= p <= 40
        calls.append(p)
        return zero - p

    assert root(slope, start) == power
    assert len(set(calls)) <= 14


def test_few_examples_and_many_features():
    phi, y = data(n=9, features=40)
    posterior = learned(phi, y, 0.5).posterior()
    close(posterior.weights, Reference(phi, y, 0.5).weights)
    assert torch.isfinite(learned(phi, y).posterior().mean(phi)).all()


def test_rounding_does_not_make_errors_negative_where_examples_are_learned_by_heart():
    for seed in range(6):
        phi, y = data(n=9, features=40, seed=seed)
        for ridge in (2.0**-20, 2.0**-18, 2.0**-16):
            posterior = learned(phi, y, ridge).posterior()
            assert (posterior.noise * 8 >= ridge * posterior.weights.square().sum(0)).all()


def test_one_example_is_predicted_everywhere():
    phi, y = data(n=1)
    close(learned(phi, y).posterior().mean(data(seed=3)[0]), y.expand(60, -1))


def test_moments_that_rounding_made_indefinite_can_be_factorised():
    for kind in (torch.float32, torch.float64):
        moments = torch.diag(torch.tensor([4.0, 2.0, -1e-7], dtype=kind))
        factor = factorise([moments], 1e-9)
        assert 1e-7 < factor.ridge < 4e-7
        whole = moments.double() + factor.ridge * torch.eye(3)
        torch.testing.assert_close((factor.lower @ factor.lower.T).double(), whole, rtol=0, atol=1e-6)
    phi, y = data(features=4)
    twice = torch.cat([phi, phi], 1)  # no ridge to speak of, exactly collinear
    posterior = learned(twice, y, 1e-12).posterior()
    close(posterior.mean(twice), Reference(phi, y, 1e-9).predict(phi), tolerance=1e-2)


def test_estimated_trace_is_near_the_exact_one_and_always_the_same(monkeypatch):
    phi, y = data(n=150, features=100)
    exact = learned(phi, y, 20.0).posterior()
    monkeypatch.setattr(evidence, "EXACT_TRACE", 10)
    estimates = [learned(phi, y, 20.0).posterior().effective for _ in range(2)]
    assert estimates[0] == estimates[1] != exact.effective
    assert estimates[0] == pytest.approx(exact.effective, rel=0.05)


def test_float32_storage_and_factor_at_thousands_of_features():
    # the dual form in float64 as reference: weights = phi^T (phi phi^T + ridge)^-1 y
    n, features, ridge = 200, 4100, 8.0
    assert features > matrix_normal.DOUBLE
    random = torch.Generator().manual_seed(0)
    phi = torch.randn(n, 40, generator=random) @ torch.randn(40, features, generator=random) / 6 + 0.2
    phi += 0.3 * torch.randn(n, features, generator=random)
    y = torch.nn.functional.one_hot(torch.arange(n) % 3).double()
    posterior = learned(phi, y, ridge, batch=100).posterior()
    assert posterior.factor.lower.dtype == torch.float32
    centred = (phi.double() - phi.double().mean(0)).numpy()
    weights = centred.T @ np.linalg.solve(centred @ centred.T + ridge * np.eye(n), (y - y.mean(0)).numpy())
    assert np.abs(posterior.weights.numpy() - weights).max() < 1e-4 * np.abs(weights).max()
    close(posterior.mean(phi), centred @ weights + y.mean(0).numpy())


# -- order, merging, unlearning --------------------------------------------------------------------------------------


def test_any_order_and_any_batches_give_the_same_posterior(branch):
    phi, y = data(200, 14)
    for seed, batch in ((0, 200), (1, 1), (2, 33)):
        order = torch.randperm(200, generator=torch.Generator().manual_seed(seed))
        same_posterior(learned(phi[order], y[order], batch=batch), learned(phi, y))


@pytest.mark.parametrize("shards", [2, 10])
def test_merged_shards_equal_one_model_of_all(branch, shards):
    phi, y = data(200, 14)
    first, *others = [learned(phi[i::shards], y[i::shards]) for i in range(shards)]
    for other in others:
        before = copy.deepcopy(other.state_dict())
        first.merge(other)
        assert identical(other.state_dict(), before)
    same_posterior(first, learned(phi, y))


def test_merge_puts_outputs_where_they_are_given():
    phi, y = data(100, 6, 3)
    a, b = learned(phi[:50], y[:50, :1]), learned(phi[50:], y[50:, 1:])
    a.merge(b, [3, 1])
    whole = torch.zeros(100, 4, dtype=torch.float64)
    whole[:50, 0], whole[50:, 3], whole[50:, 1] = y[:50, 0], y[50:, 1], y[50:, 2]
    assert a.outputs == 4
    same_posterior(a, learned(phi, whole))
    centred = whole - whole.mean(0)
    torch.testing.assert_close(a.target_square, centred.T @ centred)


@pytest.mark.parametrize("outputs", [[0], [0, 0], [0, -1], [0, 1, 2]])
def test_merge_refuses_outputs_that_are_not_one_each(outputs):
    phi, y = data(outputs=2)
    a = learned(phi, y)
    before = copy.deepcopy(a.state_dict())
    with pytest.raises(InputError, match="2 different outputs"):
        a.merge(learned(phi, y), outputs)
    with pytest.raises(InputError, match="12 and 11 features"):
        a.merge(learned(phi[:, 1:], y))
    assert identical(before, a.state_dict())


def test_new_outputs_were_zero_before():
    phi, y = data(100, 6, 3)
    y[:60, 2] = 0
    model = learned(phi[:60], y[:60, :2])
    model.grow(3)
    model.grow(1)
    model.add(phi[60:], y[60:])
    assert model.outputs == 3
    same_posterior(model, learned(phi, y))


def test_what_was_removed_was_never_seen(branch):
    phi, y = data(200, 14)
    model = learned(phi, y)
    for i in torch.randperm(80, generator=torch.Generator().manual_seed(0)).split(11):
        model.remove(phi[i], y[i])
    assert model.count == 120
    same_posterior(model, learned(phi[80:], y[80:]))


def test_removing_everything_leaves_nothing():
    phi, y = data(100, 6)
    model = learned(phi, y, batch=7)
    model.remove(phi, y)
    empty = MatrixNormal(6, 3).state_dict()
    assert identical(model.state_dict(), empty)
    with pytest.raises(InputError, match="before the first example"):
        model.posterior()
    model.add(phi[:40], y[:40])
    same_posterior(model, learned(phi[:40], y[:40]))


@pytest.mark.parametrize("constant", [False, True])
def test_features_that_are_computed_again_may_differ_by_their_rounding(branch, constant):
    # as those of a map do when examples come in batches of another size
    phi, y = data(60, 30)
    if constant:
        phi[:, :29] = phi[0, :29]
    error = 1 + 1e-6 * torch.randn(60, 30, generator=torch.Generator().manual_seed(3))
    model = learned(phi, y)
    for i in range(50):
        model.remove((phi * error)[i : i + 1], y[i : i + 1])
    close(model.posterior().mean(phi[50:]), learned(phi[50:], y[50:]).posterior().mean(phi[50:]), 1e-2)
    for i in range(50, 60):
        model.remove((phi * error)[i : i + 1], y[i : i + 1])
    assert model.count == 0


def test_targets_of_others_and_the_same_example_twice_are_noticed():
    phi, y = data(20, 30)
    model = learned(phi, y)
    with pytest.raises(InputError, match="cannot remove"):
        model.remove(phi[:2], y[1:3])
    model.remove(phi[:2], y[:2])
    with pytest.raises(InputError, match="cannot remove"):
        model.remove(phi[:1], y[:1])


def test_most_can_be_removed_bit_by_bit():
    # what is left is small beside the rounding of what was there
    phi, y = data(20_000, 6, offset=3.0)
    model = learned(phi, y, batch=100)
    for start, end in ((0, 19_980), (19_980, 19_990), (19_990, 19_995), (19_995, 20_000)):
        model.remove(phi[start:end], y[start:end])
    assert model.count == 0


# -- weights ---------------------------------------------------------------------------------------------------------


def weighted_reference(phi, y, weights, ridge):
    """Weights of ridge regression around weighted means, and their noise."""
    phi, y, weights = phi.double(), y.double(), weights.double()
    mean, intercept = weights @ phi / weights.sum(), weights @ y / weights.sum()
    a, b = weights.sqrt().unsqueeze(1) * (phi - mean), weights.sqrt().unsqueeze(1) * (y - intercept)
    coefficients = torch.linalg.solve(a.T @ a + ridge * torch.eye(phi.shape[1], dtype=torch.float64), a.T @ b)
    noise = ((b - a @ coefficients).square().sum(0) + ridge * coefficients.square().sum(0)) / (weights.sum() - 1)
    return coefficients, intercept - mean @ coefficients, noise


def test_whole_weights_are_repetitions(branch):
    phi, y = data(80, 14)
    times = torch.arange(80) % 4 + 1
    weighted = MatrixNormal(14, 3)
    for part in torch.arange(80).split(13):
        weighted.add(phi[part], y[part], times[part].double())
    same_posterior(weighted, learned(phi.repeat_interleave(times, 0), y.repeat_interleave(times, 0)))
    assert weighted.count == int(times.sum())


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_fractions_are_those_of_weighted_regression_and_of_merged_parts(size):
    phi, y = data(80, 14)
    weights = size * torch.rand(80, generator=torch.Generator().manual_seed(1)) + size / 10
    whole, one, other = (MatrixNormal(14, 3, ridge=2.0) for _ in range(3))
    whole.add(phi, y, weights)
    one.add(phi[:30], y[:30], weights[:30])
    other.add(phi[30:], y[30:], weights[30:])
    one.merge(other)
    coefficients, rest, noise = weighted_reference(phi, y, weights, 2.0)
    for model in (whole, one):
        posterior = model.posterior()
        close(posterior.weights, coefficients)
        close(posterior.mean(phi.double()), phi.double() @ coefficients + rest)
        if size >= 1:
            close(posterior.noise, noise)


def test_examples_go_with_the_weights_they_came_with():
    phi, y = data(80, 14)
    weights = torch.rand(80, generator=torch.Generator().manual_seed(1)) + 0.1
    model, part = MatrixNormal(14, 3), MatrixNormal(14, 3)
    model.add(phi, y, weights)
    model.remove(phi[:20], y[:20], weights[:20])
    part.add(phi[20:40], y[20:40], weights[20:40])
    model.subtract(part)
    without = MatrixNormal(14, 3)
    without.add(phi[40:], y[40:], weights[40:])
    same_posterior(model, without)
    before = copy.deepcopy(model.state_dict())
    for times, words in ((3, "cannot all have been learned"), (100, "only")):
        with pytest.raises(InputError, match=words):
            model.remove(phi[40:45], y[40:45], times * weights[40:45])
    with pytest.raises(InputError, match="cannot all have been learned"):
        model.subtract(part)
    assert identical(before, model.state_dict())
    model.remove(phi[40:], y[40:], weights[40:])
    assert model.count == 0  # rounding of the sums of fractions is nothing


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1, 1]])
def test_weights_that_are_none_are_refused(weights):
    phi, y = data(2)
    model = MatrixNormal(12, 3)
    with pytest.raises(InputError, match="weights must be"):
        model.add(phi, y, torch.tensor(weights))
    assert model.count == 0


# -- parts -----------------------------------------------------------------------------------------------------------


def test_a_part_is_taken_out_as_it_was_merged(branch):
    phi, y = data(200, 14)
    model, part = learned(phi, y), learned(phi[50:120], y[50:120, [2, 0, 1]])
    model.subtract(part, [2, 0, 1])
    rest = [*range(50), *range(120, 200)]
    same_posterior(model, learned(phi[rest], y[rest]))
    model.subtract(learned(phi[rest], y[rest]))
    assert model.count == 0
    with pytest.raises(InputError, match="12 and 11 features"):
        learned(*data()).subtract(learned(data()[0][:, 1:], data()[1]))
    with pytest.raises(InputError, match="4 outputs"):
        learned(*data()).subtract(learned(*data(10)), [0, 1, 3])


def test_a_model_of_sums_and_a_factor_is_that_of_the_examples(branch):
    phi, y = data(60, 14)
    phi, y = phi.double() + 3, y.double()
    factor = torch.linalg.qr(torch.cat([phi - phi.mean(0), y - y.mean(0)], 1), mode="r")[1]
    made = MatrixNormal.of_sums(60, phi.sum(0), y.sum(0), factor[:, :14], factor[:, 14:])
    same_posterior(made, learned(phi, y))
    made.subtract(learned(phi[:20], y[:20]))
    same_posterior(made, learned(phi[20:], y[20:]))
    assert MatrixNormal.of_sums(0, torch.zeros(14), torch.zeros(3), factor[:0, :14], factor[:0, 14:]).count == 0


def test_a_given_centre_stays_so_that_no_example_does():
    phi, y = data(30, 5)
    model = MatrixNormal(5, 3, centre=torch.zeros(5))
    for row in range(30):
        model.add(phi[row : row + 1], y[row : row + 1])
    assert not model.centre.any()
    same_posterior(model, learned(phi, y))
    empty = MatrixNormal(5, 3, centre=torch.zeros(5))
    empty.merge(learned(phi, y))
    assert not empty.centre.any()
    same_posterior(empty, learned(phi, y))
    with pytest.raises(InputError, match="5 finite numbers"):
        MatrixNormal(5, centre=torch.zeros(4))


@pytest.mark.parametrize("case", ["too many", "never seen", "twice", "all others", "fewer, larger"])
def test_what_was_never_learned_cannot_be_removed_and_nothing_changes(branch, case):
    phi, y = data(40, 12)
    others = data(40, 12, seed=5)
    model = learned(phi, y)
    posterior, before = model.posterior(), copy.deepcopy(model.state_dict())
    gone = {
        "too many": (torch.cat([phi, phi]), torch.cat([y, y])),
        "never seen": (others[0][:30], others[1][:30]),
        "twice": (phi[:1].expand(20, -1), y[:1].expand(20, -1)),
        "all others": (0.5 * phi, y),
        "fewer, larger": (9 * phi[:5], y[:5]),
    }[case]
    with pytest.raises(InputError, match="cannot remove"):
        model.remove(*gone)
    assert identical(model.state_dict(), before)
    assert torch.equal(model.posterior().weights, posterior.weights)
    model.remove(phi[:20], y[:20])
    same_posterior(model, learned(phi[20:], y[20:]))


# -- the rest --------------------------------------------------------------------------------------------------------


def test_second_moments_are_kept_below_the_diagonal_only_of_many_features_in_single_precision(monkeypatch):
    monkeypatch.setattr(panels, "PANEL", 5)
    phi, y = data(50, 12)
    centred = phi.double() - phi.double().mean(0)
    for limit, kind in ((12, torch.float64), (11, torch.float32)):
        monkeypatch.setattr(matrix_normal, "DOUBLE", limit)
        model = learned(phi, y)
        assert [tuple(panel.shape) for panel in model.panels] == [(5, 5), (5, 10), (2, 12)]
        second = (centred.T @ centred).to(kind)
        for i, panel in enumerate(model.panels):
            expected = second[5 * i : 5 * i + len(panel), : panel.shape[1]]
            torch.testing.assert_close(panel.tril(5 * i), expected.tril(5 * i))


def test_goes_on_from_a_file_bit_identically(branch, tmp_path):
    phi, y = data(100, 14)
    whole, first = learned(phi, y, batch=10), learned(phi[:50], y[:50], batch=10)
    save_state(tmp_path / "state.json", first.state_dict())
    second = MatrixNormal(14)
    second.load_state_dict(load_state(tmp_path / "state.json"))
    first.add(phi[50:60], y[50:60])  # the one that was saved goes its own way
    for a, b in zip(phi[50:].split(10), y[50:].split(10), strict=True):
        second.add(a, b)
    assert identical(whole.state_dict(), second.state_dict())
    assert torch.equal(whole.posterior().weights, second.posterior().weights)


def test_a_loaded_state_is_not_shared():
    phi, y = data()
    a, b = learned(phi, y), MatrixNormal(12)
    b.load_state_dict(a.state_dict())
    before = copy.deepcopy(a.state_dict())
    b.add(phi, y)
    assert identical(a.state_dict(), before)


def test_sums_of_other_features_are_refused():
    with pytest.raises(RunError, match="not of 5 features"):
        MatrixNormal(5).load_state_dict(MatrixNormal(6).state_dict())


def test_bad_input_is_refused_and_nothing_changes():
    phi, y = data()
    model = learned(phi, y)
    before = copy.deepcopy(model.state_dict())
    nan, infinite, huge = phi.clone(), phi.clone(), phi.clone()
    nan[3, 2], infinite[1, 1], huge[0, 0] = torch.nan, -torch.inf, 1e30
    cases = [
        ((nan, y), "features hold NaN"),
        ((infinite, y), "features hold NaN"),
        ((huge, y), "too large"),
        ((phi, y / 0), "targets hold NaN"),
        ((phi[:, 1:], y), "features must be"),
        ((phi[0], y), "features must be"),
        ((phi, y[:, 1:]), "targets must be"),
        ((phi, y[1:]), "targets must be"),
    ]
    for arguments, words in cases:
        for action in (model.add, model.remove):
            with pytest.raises(InputError, match=words):
                action(*arguments)
    assert identical(model.state_dict(), before)


def test_bad_settings_are_refused():
    for arguments in ((0, 1), (3, -1)):
        with pytest.raises(InputError, match="at least one feature"):
            MatrixNormal(*arguments)
    for ridge in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="ridge"):
            MatrixNormal(3, ridge=ridge)
    with pytest.raises(InputError, match="before the first example"):
        MatrixNormal(3, 1).posterior()


@pytest.mark.parametrize("features", [20, 600])
@pytest.mark.parametrize("asked", ["before", "after", "never"])
def test_a_snapshot_stays_what_it_was_whatever_happens_to_the_model(features, asked):
    """Whether its posterior is asked for before the model goes on, or only then; and the model goes on as without one."""
    random = torch.Generator().manual_seed(0)
    phi = torch.randn(400, features, generator=random).double()
    y = phi[:, :2] + 0.1 * torch.randn(400, 2, generator=random).double()
    model, alone, same = (MatrixNormal(features, 2) for _ in range(3))
    for each in (model, alone, same):
        each.add(phi[:150], y[:150])
    made = model.snapshot()
    assert model.snapshot() is made
    expected = same.posterior()
    if asked == "before":
        assert torch.equal(made.posterior().weights, expected.weights)
        assert model.posterior() is made.posterior()  # what one has computed is the other's
        alone.posterior()
    changes = [
        lambda each: each.add(phi[150:200], y[150:200]),
        lambda each: each.remove(phi[10:20], y[10:20]),
        lambda each: each.merge(same),
        lambda each: each.grow(3),
        lambda each: each.blank(torch.tensor([False, True, False])),
        lambda each: each.add(phi[200:220], torch.nn.functional.pad(y[200:220], (0, 1))),
        lambda each: each.state_dict(),
    ]
    for change in changes:
        model.snapshot()
        for each in (model, alone):
            change(each)
    assert torch.equal(model.posterior().weights, alone.posterior().weights)
    model.load_state_dict(same.state_dict())
    model.add(phi[:5], y[:5])
    if asked != "never":
        posterior = made.posterior()
        for name in ("weights", "intercept", "noise", "target_sum"):
            torch.testing.assert_close(getattr(posterior, name), getattr(expected, name), rtol=1e-9, atol=1e-12)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(made.panels, same.panels, strict=True)) or asked == "before"


def test_outputs_that_are_joined_are_those_of_targets_that_were_added():
    random = torch.Generator().manual_seed(0)
    phi = torch.randn(200, 8, generator=random).double()
    y = torch.nn.functional.one_hot(torch.randint(4, (200,), generator=random), 4).double()
    joined, other = MatrixNormal(8, 4), MatrixNormal(8, 3)
    for part in (slice(0, 120), slice(120, 200)):
        joined.add(phi[part], y[part])
        other.add(phi[part], torch.stack([y[part, 1], y[part, 0] + y[part, 2], y[part, 3]], 1))
    joined.join([1, 0, 1, 2])
    for name in ("cross", "target_sum", "target_square"):
        torch.testing.assert_close(getattr(joined, name), getattr(other, name))
    torch.testing.assert_close(joined.posterior().weights, other.posterior().weights)
    for outputs in ([0, 0], [0, 2, 2], [-1, 0, 1]):
        with pytest.raises(InputError, match="must become one of"):
            joined.join(outputs)
