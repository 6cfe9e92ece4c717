import math

import pytest
import torch

from hvcl.core.errors import InputError, RunError
from hvcl.core.storage import load_state, save_state
from hvcl.gates import GenerativeGate


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def task(number, n, dim=20, seed=0, labels=2):
    """Correlated, skewed features with means that depend on task and label."""
    fixed = random(1000)
    mixing = torch.randn(dim, dim, generator=fixed) / math.sqrt(dim) + torch.eye(dim)
    means = torch.randn(50, labels, dim, generator=fixed)
    draw = random(seed * 100 + number + 1)
    y = torch.randint(0, labels, (n,), generator=draw)
    skewed = torch.distributions.Exponential(1.0)
    noise = -torch.rand(n, dim, generator=draw).clamp_min(1e-9).log() - skewed.mean
    return means[number, y] + noise @ mixing, y


def standardised(dim, **settings):
    """A gate that takes the features as they are, so that formulas apply to them."""
    gate = GenerativeGate(dim, growing=False, **settings)
    gate.standardise(0.0, 1.0)
    return gate


def learned(covariance, n=60, dim=3):
    gate = standardised(dim, covariance=covariance, mean_precision=0.5, shrinkage=4.0, scale=0.7)
    z, y = task(0, n, dim=dim)
    experts = torch.arange(n) % 3
    gate.learn(z, experts, y)
    return gate, z.double(), experts, y


def test_diagonal_predictive_has_the_moments_of_the_normal_inverse_gamma_posterior():
    gate, z, experts, y = learned("diagonal")
    x = torch.randn(5, 3, generator=random(), dtype=torch.float64)
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for m in range(3):
        parts = []
        for label in range(2):
            mine = z[(experts == m) & (y == label)]
            n, kappa, a, b = len(mine), 0.5, 1 + 4.0 / 2, 0.7**2 * 4.0 / 2
            mean, a_n, kappa_n = mine.sum(0) / (n + kappa), a + n / 2, n + kappa
            # the textbook's form of b_n, with the prior mean 0
            centred = (mine - mine.mean(0)).square().sum(0)
            b_n = b + centred / 2 + kappa * n / (2 * kappa_n) * mine.mean(0).square()
            variance = b_n / (a_n - 1) * (1 + 1 / kappa_n)
            weight = math.log(n / int((experts == m).sum()))
            parts.append(weight + torch.distributions.Normal(mean, variance.sqrt()).log_prob(x).sum(1))
        expected[:, m] = torch.stack(parts).logsumexp(0)
    torch.testing.assert_close(gate.log_likelihood(x), expected)


def test_tied_predictive_has_the_moments_of_the_normal_inverse_wishart_posterior():
    gate, z, experts, y = learned("tied")
    x = torch.randn(5, 3, generator=random(), dtype=torch.float64)
    scatter = 4.0 * 0.7**2 * torch.eye(3, dtype=torch.float64)
    for m in range(3):
        for label in range(2):
            mine = z[(experts == m) & (y == label)]
            centred, n = mine - mine.mean(0), len(mine)
            scatter += centred.T @ centred + 0.5 * n / (0.5 + n) * torch.outer(mine.mean(0), mine.mean(0))
    # degrees of freedom d + 1 + shrinkage + n, minus d + 1: the mean of the inverse Wishart
    covariance = scatter / (4.0 + len(z))
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for m in range(3):
        parts = []
        for label in range(2):
            mine = z[(experts == m) & (y == label)]
            n = len(mine)
            density = torch.distributions.MultivariateNormal(mine.sum(0) / (n + 0.5), covariance * (1 + 1 / (n + 0.5)))
            parts.append(math.log(n / int((experts == m).sum())) + density.log_prob(x))
        expected[:, m] = torch.stack(parts).logsumexp(0)
    torch.testing.assert_close(gate.log_likelihood(x), expected)


def test_probabilities_follow_bayes_rule_with_the_experts_counts():
    gate = GenerativeGate(3, growing=False)
    z, y = task(0, 90, dim=3)
    gate.learn(z, (torch.arange(90) % 9 > 5).long(), y)
    x = torch.randn(4, 3)
    joint = gate.log_likelihood(x).exp() * torch.tensor([60.0, 30.0])
    torch.testing.assert_close(gate.probabilities(x), joint / joint.sum(1, keepdim=True))
    torch.testing.assert_close(gate.log_probabilities(x).exp(), gate.probabilities(x))
    gate.temperature = 2.0
    tempered = gate.log_likelihood(x).exp().sqrt() * torch.tensor([60.0, 30.0])
    torch.testing.assert_close(gate.probabilities(x), tempered / tempered.sum(1, keepdim=True))


@pytest.mark.parametrize("covariance", ["diagonal", "tied"])
def test_order_and_division_of_the_examples_do_not_matter(covariance):
    gate, z, experts, y = learned(covariance)
    shuffled = gate.empty_copy()
    order = torch.randperm(len(z), generator=random())
    for rows in order.split(7):
        shuffled.learn(z[rows], experts[rows], y[rows])
    first, second = (gate.empty_copy() for _ in "ab")
    first.learn(z[:20], experts[:20], y[:20])
    second.learn(z[20:], experts[20:], y[20:])
    first.merge(second)
    x = torch.randn(9, 3)
    torch.testing.assert_close(shuffled.log_likelihood(x), gate.log_likelihood(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(first.log_likelihood(x), gate.log_likelihood(x), rtol=1e-10, atol=1e-10)


def test_merging_with_an_offset_appends_the_others_experts():
    first = GenerativeGate(20, growing=False)
    first.observe(*task(0, 200))
    second = first.empty_copy()
    second.observe(*task(1, 200))
    first.merge(second, first.experts)
    assert first.experts == 2
    assert (first.probabilities(task(0, 50, seed=3)[0]).argmax(1) == 0).double().mean() > 0.9
    z, _ = task(1, 50, seed=3)
    assert (first.probabilities(z).argmax(1) == 1).double().mean() > 0.9
    with pytest.raises(InputError, match="equal settings"):
        first.merge(GenerativeGate(20, covariance="diagonal"))
    other = GenerativeGate(20, growing=False)
    other.observe(*task(1, 200))
    before = first.counts
    with pytest.raises(InputError, match="empty_copy"):
        first.merge(other)
    assert torch.equal(first.counts, before)
    empty = GenerativeGate(20, growing=False)
    empty.merge(other)
    assert torch.equal(empty.log_likelihood(z), other.log_likelihood(z))


@pytest.mark.parametrize("covariance", ["diagonal", "tied"])
def test_removed_examples_leave_no_trace_and_foreign_ones_are_refused(covariance):
    gate, z, experts, y = learned(covariance)
    never = gate.empty_copy()
    never.learn(z[:40], experts[:40], y[:40])
    x = torch.randn(9, 3)
    before = gate.log_likelihood(x)
    for bad in [
        (z[:5] + 100, experts[:5], y[:5]),
        (z[:5], experts[:5] + 7, y[:5]),
        (z.repeat(2, 1), experts.repeat(2), y.repeat(2)),
    ]:
        with pytest.raises(InputError, match="cannot remove"):
            gate.remove(*bad)
        assert torch.equal(gate.log_likelihood(x), before)
    gate.remove(z[40:], experts[40:], y[40:])
    torch.testing.assert_close(gate.log_likelihood(x), never.log_likelihood(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("batch", "epochs"), [(256, 60), (64, 10), (20, 4), (1, 1)])
def test_a_stream_of_one_task_never_opens_a_second_expert(batch, epochs):
    z, y = task(0, 4000 if batch > 1 else 1500)
    gate = GenerativeGate(20, covariance="diagonal")
    for epoch in range(epochs):
        for rows in torch.randperm(len(z), generator=random(epoch)).split(batch):
            assert (gate.observe(z[rows], y[rows]) == 0).all()
    assert gate.experts == 1


@pytest.mark.parametrize("covariance", ["diagonal", "tied"])
@pytest.mark.parametrize("labelled", [True, False])
def test_opens_one_expert_a_task_at_the_shift_and_finds_back(covariance, labelled):
    gate = GenerativeGate(200, covariance=covariance, sketch=32)
    for number in [0, 1, 2, 3, 0, 2, 1]:
        for seed in range(5):
            z, y = task(number, 256, dim=200, seed=seed)
            experts = gate.observe(z, y if labelled else None)
            assert (experts == number).all()
    assert gate.experts == 4
    for number in range(4):
        z, _ = task(number, 200, dim=200, seed=9)
        assert (gate.probabilities(z).argmax(1) == number).double().mean() > 0.97


@pytest.mark.parametrize("batch", [1, 16, 50])
def test_small_batches_find_the_shift_within_a_window_or_so(batch):
    gate = GenerativeGate(20)
    found = []
    for number in [0, 1, 0, 2]:
        z, y = task(number, 400, seed=number)
        found.append(torch.cat([gate.observe(*part) for part in zip(z.split(batch), y.split(batch), strict=True)]))
    assert gate.experts == 3
    for experts, number in zip(found, [0, 1, 0, 2], strict=True):
        assert (experts[150:] == number).all()


def test_a_batch_that_mixes_tasks_is_taken_apart():
    gate = GenerativeGate(20)
    for seed in range(10):
        gate.observe(*task(0, 256, seed=seed))

    def mixed(a, b, n, seed):
        (za, ya), (zb, yb) = task(a, n, seed=seed), task(b, 256 - n, seed=seed)
        order = torch.randperm(256, generator=random(seed))
        truth = torch.cat([torch.full((n,), a), torch.full((256 - n,), b)])[order]
        return gate.observe(torch.cat([za, zb])[order], torch.cat([ya, yb])[order]), truth

    # a third of the batch is a new task: a new expert for this third only
    experts, truth = mixed(0, 1, 170, seed=20)
    assert gate.experts == 2
    assert (experts == truth).double().mean() > 0.95
    # both are known now
    for seed in range(21, 26):
        experts, truth = mixed(0, 1, 128, seed=seed)
        assert (experts == truth).double().mean() > 0.95
    assert gate.experts == 2


@pytest.mark.parametrize("size", [10.0, 1e6])
def test_outliers_do_not_open_an_expert(size):
    gate = GenerativeGate(20)
    for seed in range(8):
        gate.observe(*task(0, 200, seed=seed))
    outlier = size * torch.randn(1, 20, generator=random())
    assert gate.observe(outlier, torch.tensor([0])).tolist() == [0]
    z, y = task(0, 256, seed=30)
    gate.observe(torch.cat([z, outlier]), torch.cat([y, y[:1]]))
    for seed in range(40, 44):
        gate.observe(*task(0, 20, seed=seed))
    assert gate.experts == 1


def test_a_change_of_spread_alone_is_seen():
    gate = GenerativeGate(20)
    for seed in range(5):
        gate.observe(torch.randn(200, 20, generator=random(seed)))
    assert (gate.observe(2 * torch.randn(200, 20, generator=random(9))) == 1).all()


def test_labels_never_seen_are_evidence():
    gate = GenerativeGate(20)
    for seed in range(5):
        gate.observe(*task(0, 200, seed=seed))
    z, y = task(0, 200, seed=8)
    assert (gate.observe(z, y + 2) == 1).all()  # the same inputs with other labels: another question
    z, y = task(0, 200, seed=9)
    y[:3] = 7  # a rare class
    assert (gate.observe(z, y) == 0).all()  # three examples of a rare class are not a new task


def test_new_labels_of_wide_spread_all_go_to_the_new_expert():
    """Class-IL: two new classes, one of them far more spread out than anything known."""
    gate = GenerativeGate(20)
    for seed in range(5):
        gate.observe(*task(0, 256, seed=seed))
    for seed in range(5):
        z, y = task(1, 256, seed=seed)
        z[y == 1] *= 6
        assert (gate.observe(z, y + 2) == 1).all()


def test_known_boundaries_open_experts_and_nothing_else_does():
    gate = GenerativeGate(20, growing=False)
    for number in range(3):
        gate.new_expert()
        for shift in range(3):
            z, y = task(number + 10 * shift, 100)
            assert (gate.observe(z, y) == number).all()
    gate.new_expert()
    assert gate.experts == 3  # opened by the next examples, not before
    assert gate.counts.tolist() == [300, 300, 300]


def test_novelty_tells_known_from_unknown():
    gate = GenerativeGate(20)
    gate.observe(*task(0, 1000))
    assert (gate.novelty(task(0, 100, seed=1)[0]) < 0).double().mean() > 0.95  # heavy tails
    assert (gate.novelty(30 + task(1, 100, seed=1)[0]) > 0).all()


@pytest.mark.parametrize("covariance", ["diagonal", "tied"])
@pytest.mark.parametrize("batch", [30, 200])
def test_resumes_bit_identically_through_files(covariance, batch, tmp_path):
    parts = [part for number in (0, 1, 0) for part in zip(*(v.split(batch) for v in task(number, 600)), strict=True)]
    whole, first, second = (GenerativeGate(20, covariance=covariance, sketch=8) for _ in range(3))
    straight = [whole.observe(*part) for part in parts]
    before = [first.observe(*part) for part in parts[: len(parts) // 2]]
    save_state(tmp_path / "gate.json", first.state_dict())
    second.load_state_dict(load_state(tmp_path / "gate.json"))
    after = [second.observe(*part) for part in parts[len(parts) // 2 :]]
    assert all(torch.equal(a, b) for a, b in zip(straight, before + after, strict=True))
    x = torch.randn(5, 20)
    assert torch.equal(whole.probabilities(x), second.probabilities(x))
    with pytest.raises(RunError, match="does not fit"):
        GenerativeGate(21, covariance=covariance).load_state_dict(first.state_dict())
    old = {name: value for name, value in first.state_dict().items() if name != "centre"}
    with pytest.raises(RunError, match="no centre"):
        GenerativeGate(20, covariance=covariance, sketch=8).load_state_dict(old)


def test_bad_input_is_named_and_changes_nothing():
    gate = GenerativeGate(3)
    with pytest.raises(InputError, match="no experts"):
        gate.probabilities(torch.randn(2, 3))
    gate.observe(torch.randn(10, 3, generator=random()), torch.zeros(10, dtype=torch.long))
    x = torch.randn(2, 3)
    before = gate.log_likelihood(x)
    cases = [
        ((torch.randn(2, 4),), "shape"),
        ((torch.randn(0, 3),), "at least one"),
        ((torch.full((2, 3), torch.nan),), "finite"),
        ((torch.randn(2, 3), torch.zeros(3, dtype=torch.long)), "labels"),
        ((torch.randn(2, 3), torch.tensor([0, -1])), "labels"),
    ]
    for arguments, words in cases:
        with pytest.raises(InputError, match=words):
            gate.observe(*arguments)
    with pytest.raises(InputError, match="experts"):
        gate.learn(torch.randn(2, 3), torch.tensor([0]))
    assert torch.equal(gate.log_likelihood(x), before)
    for settings, words in [
        ({"covariance": "full"}, "covariance"),
        ({"concentration": 0.0}, "concentration"),
        ({"window": 1}, "window"),
    ]:
        with pytest.raises(InputError, match=words):
            GenerativeGate(3, **settings)


# -- how many experts ----------------------------------------------------------------------------------------------------------


def drift(batches, size=128, dim=5, step=0.1):
    """A mean that moves by a tenth of a deviation from batch to batch, in every column."""
    draw = random(5)
    return [step * i + torch.randn(size, dim, generator=draw, dtype=torch.float64) for i in range(batches)]


@pytest.mark.parametrize(("batch", "merging"), [(128, False), (128, True), (32, False), (32, True)])
def test_there_are_never_more_experts_than_the_bound(batch, merging):
    free, bounded = GenerativeGate(5), GenerativeGate(5, max_experts=3, merging=merging)
    for z in torch.cat(drift(40)).split(batch):
        free.observe(z)
        experts = bounded.observe(z)
        assert set(experts.tolist()) <= set(bounded.open)
        assert len(bounded.open) <= 3
    assert free.experts > 5
    assert float(bounded.counts.sum()) == 40 * 128 - bounded._held.examples
    assert bounded.experts > 3 if merging else bounded.open == [0, 1, 2]
    p = bounded.probabilities(drift(40)[-1])
    assert p.shape == (128, bounded.experts)
    assert p[:, bounded.open].sum(1).allclose(torch.ones(128, dtype=torch.float64))
    if merging:  # the last of the drift is told from its beginning, whose experts are one now
        late = p.argmax(1).mode()[0]
        assert (bounded.probabilities(drift(40)[0]).argmax(1) != late).all()
        assert set(bounded.merged) == set(range(bounded.experts)) - set(bounded.open)
        assert set(bounded.merged.values()) <= set(bounded.open)


def test_a_known_boundary_beyond_the_bound_opens_nothing():
    gate = GenerativeGate(20, growing=False, max_experts=1)
    gate.observe(*task(0, 200))
    gate.new_expert()
    assert (gate.observe(*task(1, 200)) == 0).all()


@pytest.mark.parametrize("covariance", ["diagonal", "tied"])
def test_experts_that_have_become_one_are_joined_and_others_are_not(covariance):
    gate = GenerativeGate(20, covariance=covariance, merging=True)
    whole = GenerativeGate(20, covariance=covariance)
    parts = [task(0, 300, seed=seed) for seed in range(3)] + [task(1, 600)]
    z, y = (torch.cat(values) for values in zip(*parts, strict=True))
    experts = torch.tensor([0] * 300 + [1] * 600 + [2] * 600)  # a boundary where there was none
    for each in (gate, whole):
        each.learn(z[:300], experts[:300], y[:300])
    gate.learn(z[300:], experts[300:], y[300:])
    whole.learn(z[300:], torch.tensor([0] * 600 + [2] * 600), y[300:])
    gate.current = 1
    more = task(0, 200, seed=9)
    assert (gate.observe(*more) == 1).all()
    whole.learn(more[0], torch.zeros(200, dtype=torch.long), more[1])
    assert gate.merged == {0: 1}
    assert gate.follow(torch.tensor([0, 1, 2])).tolist() == [1, 1, 2]
    assert gate.counts.tolist() == [0, 1100, 600]
    # by addition: as if there had been one from the beginning
    x, _ = task(0, 20, seed=4)
    torch.testing.assert_close(gate.probabilities(x)[:, 1:], whole.probabilities(x)[:, [0, 2]], rtol=1e-9, atol=1e-12)
    gate.remove(z[:300], experts[:300], y[:300])  # under the number that they were learned with
    assert gate.counts.tolist() == [0, 800, 600]


@pytest.mark.parametrize("covariance", ["diagonal", "tied"])
def test_experts_that_are_not_used_any_more_expire_if_asked_to(covariance):
    gate, keeping = GenerativeGate(20, covariance=covariance, expiry=1000), GenerativeGate(20, covariance=covariance)
    for number in (0, 1, 2, 1, 2, 1):
        for each in (gate, keeping):
            each.observe(*task(number, 300, seed=number))
    assert keeping.open == [0, 1, 2]
    assert gate.open == [1, 2]
    assert gate.counts.tolist() == [0, 900, 600]
    z, _ = task(1, 50, seed=7)
    assert gate.probabilities(z)[:, 0].max() == 0.0
    assert (gate.probabilities(z).argmax(1) == 1).double().mean() > 0.9
    assert (gate.observe(*task(0, 300)) == 3).all()  # a new one: its number is not given again
    for settings in ({"expiry": 0}, {"max_experts": 0}):
        with pytest.raises(InputError, match="at least 1"):
            GenerativeGate(3, **settings)


@pytest.mark.parametrize("batch", [30, 200])
def test_bounded_gates_resume_bit_identically(batch, tmp_path):
    settings = {"max_experts": 3, "merging": True, "expiry": 900}
    parts = torch.cat(drift(24)).split(batch)
    whole, first, second = (GenerativeGate(5, **settings) for _ in range(3))
    for z in parts:
        whole.observe(z)
    for z in parts[: len(parts) // 2]:
        first.observe(z)
    save_state(tmp_path / "gate.json", first.state_dict())
    second.load_state_dict(load_state(tmp_path / "gate.json"))
    for z in parts[len(parts) // 2 :]:
        second.observe(z)
    assert second.merged == whole.merged
    assert torch.equal(second.probabilities(parts[-1]), whole.probabilities(parts[-1]))
    assert torch.equal(second.novelty_p_value(parts[-1]), whole.novelty_p_value(parts[-1]))


# -- novelty and columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Gaussian", "skewed", "heavy tails", "two clusters"])
@pytest.mark.parametrize("batch", [20, 256])
def test_p_values_of_novelty_have_the_stated_false_alarm_rate(kind, batch):
    """2,560 examples learned, 2,000 others tested: the rate is within 0.01 of 0.01, 0.02 of 0.05 and 0.1, and 0.05 of 0.5."""
    draw = random(11)

    def sample(n):
        e = torch.randn(n, 6, generator=draw, dtype=torch.float64)
        if kind == "skewed":
            return e.exp()
        if kind == "heavy tails":
            return e / torch.randn(n, 1, 3, generator=draw, dtype=torch.float64).square().mean(2).sqrt()
        return e + 8 * (torch.rand(n, 1, generator=draw) < 0.3) if kind == "two clusters" else e

    gate = GenerativeGate(6)
    for z in sample(2560).split(batch):
        gate.observe(z)
    assert gate.experts == 1
    p = gate.novelty_p_value(sample(2000))
    for level, tolerance in ((0.01, 0.01), (0.05, 0.02), (0.1, 0.02), (0.5, 0.05)):
        assert abs((p <= level).double().mean() - level) < tolerance
    assert gate.novelty_p_value(torch.full((1, 6), 1e6, dtype=torch.float64)) < 0.002


def test_p_values_know_all_experts_and_do_not_count_the_examples_that_open_them():
    gate = GenerativeGate(20)
    for number in (0, 1):
        for seed in range(6):
            gate.observe(*task(number, 256, seed=seed))
    assert gate.experts == 2
    for number in (0, 1):
        assert abs((gate.novelty_p_value(task(number, 1000, seed=9)[0]) <= 0.05).double().mean() - 0.05) < 0.03
    assert (gate.novelty_p_value(task(5, 200, seed=9)[0] + 5) <= 0.01).all()
    young = GenerativeGate(3)
    young.observe(torch.randn(5, 3, generator=random()))
    assert young.novelty_p_value(torch.randn(2, 3)).tolist() == [1.0, 1.0]  # nothing to compare with yet


@pytest.mark.parametrize("covariance", ["diagonal", "tied"])
def test_column_shifts_name_the_columns_that_moved(covariance):
    """Shifts are within 4 standard errors of the truth; column 2 moves by 1.5 for label 0 only, column 4 by -2 for both."""
    draw = random(2)
    gate = GenerativeGate(6, covariance=covariance)
    scale = torch.tensor([1.0, 10.0, 0.1, 1.0, 1e3, 1.0], dtype=torch.float64)
    for number in (0, 1):
        z = torch.randn(1024, 6, generator=draw, dtype=torch.float64)
        y = torch.randint(0, 2, (1024,), generator=draw)
        z[:, 4] -= 2.0 * number
        z[:, 2] += 1.5 * number * (y == 0)
        for part in zip((50 + scale * z).split(256), y.split(256), strict=True):
            assert (gate.observe(*part) == number).all()
    found = gate.column_shift(1, 0)
    assert found.labels.tolist() == [0, 1]
    expected = torch.tensor([[0, 0, 1.5, 0, -2, 0], [0, 0, 0, 0, -2, 0]]).double()
    assert found.error.allclose(torch.full((2,), (2 / 512) ** 0.5, dtype=torch.float64), rtol=0.15)
    assert ((found.shift - expected).abs() < 4 * found.error[:, None]).all()
    assert ((found.mean - expected.mean(0)).abs() < 4 * found.mean_error + 0.05).all()  # labels are not quite equally frequent
    torch.testing.assert_close(gate.column_shift(0, 1).shift, -found.shift)
    with pytest.raises(InputError, match="not open"):
        gate.column_shift(0, 2)


def test_experts_without_a_label_in_common_are_compared_as_a_whole():
    gate = GenerativeGate(20)
    z, y = task(0, 1000)
    gate.learn(z, torch.zeros_like(y), y)
    gate.learn(z + 3, torch.ones_like(y), y + 2)
    found = gate.column_shift(1, 0)
    assert found.labels.tolist() == [-1]
    torch.testing.assert_close(found.shift[0], 3 / z.double().std(0), rtol=0.02, atol=0)
