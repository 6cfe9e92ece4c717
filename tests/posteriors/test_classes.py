"""Classes by regression: leave one out by refitting, probabilities by the formula with all data in memory, calibration."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t

from hvcl.core.errors import InputError
from hvcl.evaluation.scores import score
from hvcl.posteriors import ClassHead, classes
from hvcl.posteriors.classes import FREEDOM, TEMPER

TOLERANCE = 1e-4
"""Of every property, in probabilities."""


def clouds(n=120, features=10, classes=3, apart=1.0, seed=0, frequency=None):
    """Gaussian classes with a shared covariance that is not round."""
    random = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(1000)
    centres = apart * torch.randn(classes, features, generator=fixed)
    mix = torch.eye(features) + torch.randn(features, features, generator=fixed) / features**0.5
    weights = torch.ones(classes) if frequency is None else torch.tensor(frequency)
    y = torch.multinomial(weights, n, replacement=True, generator=random)
    y[:classes] = torch.arange(classes)
    return centres[y] + torch.randn(n, features, generator=random) @ mix, y


def learned(phi, y, ridge=None, batch=25):
    head = ClassHead(phi.shape[1], ridge=ridge)
    for a, b in zip(phi.split(batch), y.split(batch), strict=True):
        head.add(a, b)
    return head


def fit(phi, y, classes, ridge):
    """Ridge regression on indicators with a free intercept, in float64."""
    phi, targets = phi.double().numpy(), np.eye(classes)[y.numpy()]
    centred = phi - phi.mean(0)
    weights = np.linalg.solve(centred.T @ centred + ridge * np.eye(phi.shape[1]), centred.T @ (targets - targets.mean(0)))
    return lambda x: (x.double().numpy() - phi.mean(0)) @ weights + targets.mean(0)


def same_probabilities(a, b, probe):
    np.testing.assert_allclose(a.log_probabilities(probe).exp(), b.log_probabilities(probe).exp(), rtol=0, atol=TOLERANCE)


def test_scores_are_the_regression_on_indicators_and_sum_to_one():
    phi, y = clouds()
    scores = learned(phi, y, 2.0).scores(phi)
    np.testing.assert_allclose(scores, fit(phi, y, 3, 2.0)(phi), atol=1e-5)
    torch.testing.assert_close(scores.sum(1), torch.ones(len(phi)))


def test_mean_leverage_turns_learned_residuals_into_those_of_new_examples():
    # the formula behind the class's docstring: leaving one out multiplies its residual by 1 / (1 - h), h = 1/n + phi^T U phi
    phi, y = clouds(n=60)
    targets = np.eye(3)[y.numpy()]
    ridge = 3.0
    residual = targets - fit(phi, y, 3, ridge)(phi)
    left_out = np.stack(
        [
            targets[i] - fit(torch.cat([phi[:i], phi[i + 1 :]]), torch.cat([y[:i], y[i + 1 :]]), 3, ridge)(phi[i : i + 1])[0]
            for i in range(60)
        ]
    )
    head = learned(phi, y, ridge)
    posterior = head.model.posterior()
    leverage = (posterior.variance(phi.double())[:, 0] / posterior.noise[0] - 1).numpy()
    np.testing.assert_allclose(residual / (1 - leverage)[:, None], left_out, atol=1e-4)
    mean = (posterior.effective + 1) / 60
    assert leverage.mean() == pytest.approx(mean, rel=1e-4)
    # so the class means and the spread that the head uses are nearly those of the left-out scores
    scores = targets - left_out
    means, whiten = head.reading().means, head.reading().whiten
    centres = np.stack([scores[y == c].mean(0) for c in range(3)])
    np.testing.assert_allclose(means, centres, atol=0.02)
    spread = scores - centres[y]
    covariance = spread.T @ spread / 60
    white = whiten.T.numpy() @ covariance @ whiten.numpy()
    np.testing.assert_allclose(white, np.eye(2), atol=0.15)


@pytest.mark.parametrize("frequency", [None, [5.0, 1.0, 2.0]])
def test_probabilities_are_bayes_rule_with_tempered_student_clouds(frequency):
    phi, y = clouds(n=90, frequency=frequency)
    ridge, n = 2.0, 90
    head = learned(phi, y, ridge)
    counts = np.bincount(y)
    scores = fit(phi, y, 3, ridge)
    rest = 1 - (head.model.posterior().effective + 1) / n
    inner = np.stack([scores(phi[y == c]).mean(0) for c in range(3)])
    means = np.eye(3) - (np.eye(3) - inner) / rest
    spread = scores(phi) - inner[y]
    # scores sum to one: the first two of three say everything
    covariance = (spread.T @ spread / n / rest**2)[:2, :2]
    probe = clouds(n=50, seed=3)[0]
    density = [multivariate_t.logpdf(scores(probe)[:, :2], means[c, :2], covariance, df=FREEDOM) for c in range(3)]
    logits = np.log(counts) + TEMPER * np.stack(density, 1)
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    actual = head.log_probabilities(probe).exp()
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)
    assert actual.dtype == torch.float64


@pytest.mark.parametrize(("n", "features", "apart"), [(1500, 20, 0.05), (400, 100, 0.15)])
def test_probabilities_are_calibrated_on_new_examples(n, features, apart, monkeypatch):
    # 4,000 new examples of Gaussian classes; with 400 of 100 features, what fits the learned examples fits new ones much worse
    phi, y = clouds(n, features, classes=4, apart=apart)
    head = learned(phi, y, batch=500)
    probe, truth = clouds(4000, features, classes=4, apart=apart, seed=7)
    p = head.log_probabilities(probe).exp()
    right = (p.argmax(1) == truth).double().mean()
    assert 0.4 < right < 0.95
    # tempered for pictures, it is too careful about true Gaussians, never too sure
    assert p.max(1).values.mean() < right + 0.02
    assert score(p.float(), truth).calibration_error < 0.2
    monkeypatch.setattr(classes, "TEMPER", 1.0)
    monkeypatch.setattr(classes, "FREEDOM", 1e6)
    assert score(head.log_probabilities(probe).exp().float(), truth).calibration_error < 0.06


def test_more_frequent_classes_are_more_likely_and_unknown_ones_impossible():
    phi, y = clouds(apart=0.0, n=400, frequency=[8.0, 1.0, 1.0])
    head = learned(phi, y)
    p = head.log_probabilities(clouds(apart=0.0, seed=2)[0]).exp().mean(0)
    assert p[0] > 0.7
    gap = learned(phi[y != 1], y[y != 1])
    assert gap.classes == 3
    assert gap.log_probabilities(phi).isneginf()[:, 1].all()
    torch.testing.assert_close(gap.log_probabilities(phi).exp().sum(1), torch.ones(400, dtype=torch.float64))


def test_one_class_is_certain():
    phi, _ = clouds()
    head = learned(phi, torch.zeros(120, dtype=torch.long))
    torch.testing.assert_close(head.log_probabilities(5 * phi), torch.zeros(120, 1, dtype=torch.float64))


def test_classes_may_appear_at_any_time_and_in_any_order():
    phi, y = clouds(300, 12, classes=5)
    probe = clouds(40, 12, classes=5, seed=5)[0]
    by_class = y.argsort()
    head = ClassHead(12)
    seen = []
    for i in by_class.split(30):
        head.add(phi[i], y[i])
        seen.append(head.classes)
        head.log_probabilities(probe)
    assert seen[0] == 1
    assert seen[-1] == 5
    assert torch.equal(head.counts, torch.bincount(y).double())
    same_probabilities(head, learned(phi, y), probe)
    same_probabilities(learned(phi[by_class.flip(0)], y[by_class.flip(0)], batch=7), learned(phi, y), probe)


def test_merged_heads_equal_one_of_all_also_with_other_numbers_of_classes():
    phi, y = clouds(300, 12, classes=4)
    probe = clouds(40, 12, classes=4, seed=5)[0]
    a, b = learned(phi[y < 2], y[y < 2]), learned(phi[y >= 2], y[y >= 2] - 2)
    a.merge(b, [2, 3])
    same_probabilities(a, learned(phi, y), probe)
    c, d = learned(phi[::2], y[::2]), learned(phi[1::2], y[1::2])
    c.merge(d)
    same_probabilities(c, learned(phi, y), probe)


def test_removed_examples_and_classes_were_never_seen():
    phi, y = clouds(300, 12, classes=4)
    probe = clouds(40, 12, classes=4, seed=5)[0]
    gone = (y == 3) | (torch.arange(300) % 3 == 0)
    head = learned(phi, y)
    for i in gone.nonzero().flatten().split(23):
        head.remove(phi[i], y[i])
    left = learned(phi[~gone], y[~gone])
    p = head.log_probabilities(probe).exp()
    assert (p[:, 3] == 0).all()
    np.testing.assert_allclose(p[:, :3], left.log_probabilities(probe).exp(), rtol=0, atol=TOLERANCE)
    head.add(phi[gone], y[gone])
    same_probabilities(head, learned(phi, y), probe)


def test_what_cannot_have_been_learned_cannot_be_removed():
    phi, y = clouds()
    head = learned(phi, y)
    before = copy.deepcopy(head.state_dict())
    few = (y == 2).nonzero().flatten()
    cases = [
        (phi[: len(few) + 1], torch.full((len(few) + 1,), 2)),  # more of a class than there were
        (phi[:1], torch.tensor([3])),  # a class that there is not
        (10 * phi[:3], y[:3]),  # counts fit, moments do not
    ]
    for arguments in cases:
        with pytest.raises(InputError, match="cannot remove"):
            head.remove(*arguments)
    after = head.state_dict()
    before["panels"], after["panels"] = torch.cat(before["panels"]), torch.cat(after["panels"])
    assert all(torch.equal(torch.as_tensor(before[k]), torch.as_tensor(after[k])) for k in before)


def test_bad_input_is_refused_and_opens_no_class():
    head = ClassHead(10)
    phi, y = clouds()
    cases = [
        ((phi / 0, y + 5), "features hold NaN"),
        ((phi[:, 1:], y + 5), "features must be"),
        ((phi, y - 1), "at least 0"),
        ((phi, y[1:] + 5), "classes must be 120 integers"),
        ((phi, y.float() + 5), "classes must be 120 integers"),
        ((phi[:0], y[:0]), "classes must be 0 integers"),
    ]
    for arguments, words in cases:
        for action in (head.add, head.remove):
            with pytest.raises(InputError, match=words):
                action(*arguments)
    assert head.classes == head.model.count == 0
    head.add(phi, y.int())
    assert head.classes == 3


def test_a_loaded_head_answers_the_same():
    phi, y = clouds()
    a, b = learned(phi, y), ClassHead(10)
    b.load_state_dict(a.state_dict())
    assert torch.equal(a.log_probabilities(phi), b.log_probabilities(phi))


def test_weights_count_parts_of_examples_and_the_last_part_of_a_class_leaves_nothing():
    phi, y = clouds(150)
    times = torch.arange(150) % 3 + 1
    weighted = ClassHead(10)
    weighted.add(phi, y, times.double())
    same_probabilities(weighted, learned(phi.repeat_interleave(times, 0), y.repeat_interleave(times)), phi)
    weights = torch.rand(150, generator=torch.Generator().manual_seed(0)) + 0.01
    head, part = ClassHead(10), ClassHead(10)
    head.add(phi, y, weights)
    assert (head.log_probabilities(phi).argmax(1) == y).float().mean() > 0.8
    rare = (y == 2).nonzero().flatten()
    head.remove(phi[rare[:10]], y[rare[:10]], weights[rare[:10]])
    part.add(phi[rare[10:]], y[rare[10:]], weights[rare[10:]])
    head.subtract(part.model)
    assert float(head.counts[2]) == 0
    assert not head.log_probabilities(phi)[:, 2].exp().any()
    with pytest.raises(InputError, match="more than were learned"):
        head.remove(phi[rare[:1]], y[rare[:1]], weights[rare[:1]])
    with pytest.raises(InputError, match="more than were learned"):
        head.subtract(part.model)
    with pytest.raises(InputError, match="more than were learned"):
        ClassHead(10).subtract(part.model)
