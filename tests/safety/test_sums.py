"""The exact head on random data of any scale, far from the origin, with duplicates, constant and collinear columns.

Whatever is drawn: one example at a time or one batch, in any order, in parts that are merged, with others that are removed again,
the posterior is the same, and probabilities are finite and sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.posteriors import ClassHead, MatrixNormal

TOLERANCE = 1e-6
"""Of predictions, relative to the spread of the targets, for a ridge that is given: sums are in double precision."""


def fuzz(examples):
    """The same examples every time: a failure is a failure of this code, not of this day."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    phases = [Phase.explicit, Phase.generate]
    return settings(
        max_examples=examples, phases=phases, derandomize=True, deadline=None, database=None, suppress_health_check=checks
    )


@dataclass
class Case:
    """Features, targets, classes, and an order."""

    phi: Tensor
    y: Tensor
    classes: Tensor
    order: Tensor
    scale: float

    @property
    def ridge(self) -> float:
        return 0.1 * self.scale**2


@st.composite
def cases(draw, least=1):
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    n, features, outputs = draw(st.integers(least, 24)), draw(st.integers(1, 8)), draw(st.integers(1, 3))
    scale = 10.0 ** draw(st.integers(-6, 6))
    phi = torch.randn(n, features, generator=random, dtype=torch.float64)
    noise = torch.randn(n, outputs, generator=random, dtype=torch.float64)
    y = phi @ torch.randn(features, outputs, generator=random, dtype=torch.float64) + 0.3 * noise
    if draw(st.booleans()):  # duplicates
        phi[n // 2 :], y[n // 2 :] = phi[: n - n // 2].clone(), y[: n - n // 2].clone()
    if draw(st.booleans()):
        phi[:, 0] = 1
    if draw(st.booleans()):
        phi[:, -1] = 2 * phi[:, 0] - phi[:, features // 2]
    phi = scale * (phi + draw(st.sampled_from([0.0, 1.0, -30.0, 1e3, 1e6])))
    y = 10.0 ** draw(st.integers(-6, 6)) * (y + draw(st.sampled_from([0.0, 1.0, 1e3])))
    classes = torch.randint(draw(st.integers(1, 3)), (n,), generator=random)
    if draw(st.booleans()):
        phi = phi.float()
    return Case(phi, y, classes, torch.randperm(n, generator=random), scale)


def learned(case, rows, ridge, batch=1000):
    model = MatrixNormal(case.phi.shape[1], case.y.shape[1], ridge=ridge)
    for some in rows.split(batch):
        model.add(case.phi[some], case.y[some])
    return model


def same(a, b, case):
    """Posteriors: predictions, and their variances relative to the noise."""
    a, b = a.posterior(), b.posterior()
    assert a.count == b.count
    phi = case.phi.double()
    unit = float((case.y - case.y.mean(0)).abs().max()) + 1e-9 * float(case.y.abs().max())
    np.testing.assert_allclose(a.mean(phi), b.mean(phi), rtol=0, atol=TOLERANCE * unit)
    np.testing.assert_allclose(a.noise, b.noise, rtol=0, atol=TOLERANCE * unit**2)
    centred = phi - a.feature_mean
    np.testing.assert_allclose(a.factor.distance(centred), b.factor.distance(centred), rtol=TOLERANCE, atol=TOLERANCE)


class TestPosterior:
    @fuzz(40)
    @given(cases())
    def test_is_that_of_centred_data_in_memory(self, case):
        posterior = learned(case, case.order, case.ridge).posterior()
        phi, y = case.phi.double() - case.phi[0].double(), case.y - case.y[0]
        phi, y = phi - phi.mean(0), y - y.mean(0)
        weights = torch.linalg.solve(phi.T @ phi + case.ridge * torch.eye(phi.shape[1]), phi.T @ y)
        expected = phi @ weights + case.y.mean(0)
        atol = TOLERANCE * (float(y.abs().max()) + 1e-9 * float(case.y.abs().max()))
        np.testing.assert_allclose(posterior.mean(case.phi.double()), expected, rtol=0, atol=atol)

    @fuzz(40)
    @given(cases())
    def test_does_not_depend_on_batches_or_order(self, case):
        forwards = torch.arange(len(case.phi))
        whole = learned(case, forwards, case.ridge)
        same(learned(case, forwards, case.ridge, batch=1), whole, case)
        same(learned(case, case.order, case.ridge, batch=5), whole, case)

    @fuzz(40)
    @given(cases(least=2), st.integers(1, 23))
    def test_merged_parts_are_the_whole(self, case, at):
        at = min(at, len(case.phi) - 1)
        first, second = (learned(case, rows, case.ridge, batch=3) for rows in (case.order[:at], case.order[at:]))
        first.merge(second)
        same(first, learned(case, case.order, case.ridge), case)

    @fuzz(50)
    @given(cases(least=2), st.integers(1, 23), st.sampled_from([1, 4, 100]))
    def test_what_was_removed_was_never_there(self, case, keep, batch):
        keep = min(keep, len(case.phi) - 1)
        model = learned(case, torch.arange(len(case.phi)), case.ridge, batch=3)
        for rows in case.order[keep:].split(batch):
            model.remove(case.phi[rows], case.y[rows])
        same(model, learned(case, case.order[:keep], case.ridge), case)
        for rows in case.order[:keep].split(batch):
            model.remove(case.phi[rows], case.y[rows])
        empty = MatrixNormal(case.phi.shape[1], case.y.shape[1]).state_dict()
        for name, value in model.state_dict().items():
            for a, b in zip(value, empty[name], strict=True) if name == "panels" else [(value, empty[name])]:
                assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), name

    @fuzz(50)
    @given(cases())
    def test_the_search_ends_in_finite_numbers(self, case):
        posterior = learned(case, case.order, None, batch=7).posterior()
        assert posterior.ridge > 0
        numbers = (posterior.weights, posterior.noise, posterior.mean(case.phi), posterior.variance(case.phi.double()))
        assert all(bool(value.isfinite().all()) for value in numbers)
        assert bool((posterior.noise >= 0).all())
        assert 0 <= posterior.effective <= min(len(case.phi) - 1, case.phi.shape[1])


class TestClasses:
    @fuzz(40)
    @given(cases(), st.sampled_from([1, 5, 100]))
    def test_probabilities_are_finite_and_sum_to_one(self, case, batch):
        head = ClassHead(case.phi.shape[1])
        for rows in case.order.split(batch):
            head.add(case.phi[rows], case.classes[rows])
        p = head.log_probabilities(torch.cat([case.phi, -3 * case.phi])).exp()
        assert bool(p.isfinite().all())
        torch.testing.assert_close(p.sum(1), torch.ones(len(p), dtype=p.dtype))
        assert bool((p[:, head.counts == 0] == 0).all())
        for rows in case.order.flip(0).split(batch):
            head.remove(case.phi[rows], case.classes[rows])
        assert head.model.count == 0

    @fuzz(30)
    @given(cases(least=4), st.sampled_from([1.0, 1024.0, 2.0**-10]))
    def test_units_of_two_to_the_ten_do_not_matter(self, case, unit):
        ordinary, scaled = ClassHead(case.phi.shape[1]), ClassHead(case.phi.shape[1])
        phi = case.phi.double() / case.scale
        phi = phi - phi.mean(0)
        ordinary.add(phi, case.classes)
        scaled.add(unit * phi, case.classes)
        np.testing.assert_allclose(
            ordinary.log_probabilities(phi).exp(), scaled.log_probabilities(unit * phi).exp(), rtol=0, atol=TOLERANCE
        )

    def test_classes_of_one_point_each_are_told_apart(self):
        phi = torch.tensor([[0.0, 1.0], [2.0, -1.0], [5.0, 0.0]])
        head = ClassHead(2)
        head.add(phi.repeat(4, 1), torch.arange(3).repeat(4))
        assert head.log_probabilities(phi).argmax(1).tolist() == [0, 1, 2]

    def test_features_without_any_variance_leave_the_frequencies(self):
        head = ClassHead(3)
        head.add(torch.full((8, 3), 1e5), torch.tensor([0, 0, 0, 1, 0, 1, 0, 0]))
        torch.testing.assert_close(head.log_probabilities(torch.randn(4, 3)).exp()[:, 0], torch.full((4,), 0.75).double())


def streams():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=random)
    angle = 3.14 * torch.rand(400, generator=random)
    y = torch.arange(400) % 2
    banana = torch.stack([angle.cos() + y, (1 - 2 * y) * angle.sin()], 1) + 0.02 * torch.randn(400, 2, generator=random)
    return {
        "banana": (banana, y),
        "three features": (x, (x[:, 0] > 0).long()),
        "very different scales": (x * torch.tensor([1e-4, 1.0, 1e6]) + torch.tensor([1.0, 0, 1e7]), (x[:, 2] > 0).long()),
        "one point": (torch.ones(400, 3), y),
        "one class": (x, torch.zeros(400, dtype=torch.long)),
        "two points": (y.float().unsqueeze(1).expand(-1, 3), y),
    }


@pytest.mark.parametrize("name", streams())
@pytest.mark.parametrize("features", [20, 150])
def test_a_learner_answers_at_every_moment_of_a_legal_stream(name, features):
    x, y = streams()[name]
    learner = create("exact", Problem((x.shape[1],), 2), seed=1, gate=False, random_features=features, warmup=32)
    for a, b in zip(x.split(40), y.split(40), strict=True):
        learner.observe(a, b)
        p = learner.predict(x)
        assert bool(p.isfinite().all())
        torch.testing.assert_close(p.sum(1), torch.ones(400))


def test_a_learner_unlearns_one_by_one_what_it_learned_one_by_one():
    x, y = (part[:32] for part in streams()["three features"])
    for seed in range(4):
        learner = create("exact", Problem((3,), 2), seed=seed, gate=False, random_features=40, warmup=2)
        fresh = learner.predict(x)
        for i in range(32):
            learner.observe(x[i : i + 1], y[i : i + 1])
        order = torch.randperm(32, generator=torch.Generator().manual_seed(seed)).tolist()
        for i in order:
            learner.remove(x[i : i + 1], y[i : i + 1])
        assert torch.equal(learner.predict(x), fresh)
