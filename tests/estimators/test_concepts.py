"""The filter over concepts: what is believed as of now."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.estimators.concepts import BLOCK, HALF_LIVES, MOST, ConceptFilter


def rows(seed, count, concept=0):
    """Rows of six features; concept 1 is concept 0 with flipped labels, others ask for another feature."""
    random = torch.Generator().manual_seed(seed)
    phi = torch.cat([torch.ones(count, 1), torch.randn(count, 5, generator=random)], 1).double()
    y = phi[:, 1] > 0 if concept == 0 else phi[:, 1] <= 0 if concept == 1 else phi[:, concept] > 0
    return phi, torch.nn.functional.one_hot(y.long(), 2).double()


def nothing_known(phi):
    return np.full((len(phi), 2), 0.5)


def learned(*concepts, count=2000, classes=True):
    made = ConceptFilter(6, 2, classes)
    for seed, concept in enumerate(concepts):
        phi, targets = rows(seed, count, concept)
        made.learn(phi, targets, nothing_known(phi))
    return made


def accuracy(made, concept, seed=99):
    phi, targets = rows(seed, 1000, concept)
    return float((made.mixture(phi, nothing_known(phi)).argmax(1) == targets.numpy().argmax(1)).mean())


def test_nothing_is_believed_but_everything_before_the_first_label():
    made = ConceptFilter(6, 2, True)
    phi, _ = rows(0, 5)
    given = np.random.default_rng(0).dirichlet([1, 1], 5)
    assert made.alone
    assert made.mixture(phi, given) is given


def test_flipped_labels_are_followed_within_ten_blocks_and_found_once():
    made = learned(0)
    assert accuracy(made, 0) > 0.97
    assert made.changes == []
    phi, targets = rows(7, 10 * BLOCK, 1)
    (change,) = made.learn(phi, targets, nothing_known(phi))
    assert not change.known
    assert change.expert == made.expert == 1
    assert 2000 < change.row <= 2000 + 5 * BLOCK
    assert accuracy(made, 1) > 0.95


def test_a_concept_that_comes_back_is_known():
    made = learned(0, 1, 0, 1, 0)
    assert [(change.expert, change.known) for change in made.changes] == [(1, False), (0, True), (1, True), (0, True)]
    assert len(made.experts) == 2
    # the rows of a concept are with its expert, but for the blocks in which concepts met
    assert made.experts[0].count == pytest.approx(6000, abs=5 * BLOCK)
    assert made.experts[1].count == pytest.approx(4000, abs=4 * BLOCK)


def test_a_stationary_stream_changes_nothing():
    """No false alarm in eight streams of 3,200 rows whose labels are a tenth noise."""
    alarms = 0
    for seed in range(8):
        made = ConceptFilter(6, 2, True)
        phi, targets = rows(seed, 3200, 2)
        noisy = torch.rand(3200, generator=torch.Generator().manual_seed(seed)) < 0.1
        targets[noisy] = targets[noisy].flip(1)
        made.learn(phi, targets, nothing_known(phi))
        alarms += len(made.changes)
    assert alarms == 0


def test_how_rows_are_cut_into_calls_makes_no_difference():
    one, many = ConceptFilter(6, 2, True), ConceptFilter(6, 2, True)
    for concept in (0, 1):
        phi, targets = rows(concept, 500, concept)
        one.learn(phi, targets, nothing_known(phi))
        for size in (1, 2, 60, 437):
            part, phi_rest = phi[:size], phi[size:]
            many.learn(part, targets[:size], nothing_known(part))
            phi, targets = phi_rest, targets[size:]
    assert one.changes == many.changes
    np.testing.assert_allclose(one.believed, many.believed, rtol=1e-6)
    torch.testing.assert_close(one.experts[-1].second, many.experts[-1].second)


def test_the_model_of_everything_is_believed_where_it_is_right():
    made = ConceptFilter(6, 2, True)
    phi, _ = rows(0, 2000)
    # a relation that no linear model of the features has
    y = (phi[:, 1] * phi[:, 2] > 0).long()
    targets = torch.nn.functional.one_hot(y, 2).double()
    made.learn(phi, targets, 0.9 * targets.numpy() + 0.05)
    assert made.believed[0] > 0.8
    assert made.changes == []


@pytest.mark.parametrize("plain", ["", "1"])
def test_a_model_that_was_right_is_believed_while_labels_say_nothing(plain, monkeypatch):
    """Switches lead to it; if they led to any model, hardly more than a fifth would be left of it."""
    monkeypatch.setenv("HVCL_NO_KERNELS", plain)
    made = ConceptFilter(6, 2, True)
    likely = np.ones((3000, made._members))
    likely[:2000, 3] = 2.0
    made._believe(likely[:2000])
    assert made.believed[3] > 0.9
    made._believe(likely[2000:])
    assert made.believed[3] > 0.6
    np.testing.assert_allclose([*made.weights.sum(1), *made.usual.sum(1), made.rates.sum()], 1)


def test_experts_are_bounded():
    made = ConceptFilter(6, 2, True)
    for seed in range(12):
        random = torch.Generator().manual_seed(seed)
        direction = torch.randn(6, generator=random).double()
        phi, _ = rows(seed, 640)
        targets = torch.nn.functional.one_hot((phi @ direction > 0).long(), 2).double()
        made.learn(phi, targets, nothing_known(phi))
    assert made.opened > MOST
    assert len(made.experts) == len(made.numbers) == len(set(made.numbers)) == MOST
    assert made.believed.shape == (1 + len(HALF_LIVES) + MOST,)
    assert made.believed.sum() == pytest.approx(1)


def test_rows_without_order_are_known_at_once_and_change_no_answer():
    made = ConceptFilter(6, 2, True)
    phi, targets = rows(0, 2000)
    made.begin(phi, targets)
    shuffled = ConceptFilter(6, 2, True)
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    shuffled.begin(phi[order], targets[order])
    assert made.alone
    for a, b in zip(made.pools, shuffled.pools, strict=True):
        torch.testing.assert_close(a.weights, b.weights)
        assert a.count <= a.half_life / np.log(2) + 1e-9
    phi, targets = rows(1, 5 * BLOCK, 1)
    (change,) = made.learn(phi, targets, nothing_known(phi))
    assert not change.known


def test_a_label_that_comes_later_has_room():
    made = learned(0, count=500)
    made.grow(3)
    phi, _ = rows(5, 320)
    targets = torch.nn.functional.one_hot(torch.full((320,), 2), 3).double()
    made.learn(phi, targets, np.full((320, 3), 1 / 3))
    p = made.mixture(phi, np.full((320, 3), 1 / 3))
    assert (p.argmax(1) == 2).all()
    np.testing.assert_allclose(p.sum(1), 1)


def test_numbers_are_followed_with_a_variance_that_is_theirs():
    random = torch.Generator().manual_seed(0)
    made = ConceptFilter(3, 1, False)
    for slope in (1.0, -1.0):
        phi = torch.cat([torch.ones(2000, 1), torch.randn(2000, 2, generator=random)], 1).double()
        y = slope * phi[:, 1:2] + 0.1 * torch.randn(2000, 1, generator=random).double()
        made.learn(phi, y, np.zeros((2000, 1)))
    assert len(made.changes) == 1
    phi, y = phi[-500:], y[-500:].numpy()
    mean, variance = made.moments(phi, np.zeros((500, 1)), np.ones((500, 1)))
    assert float(((mean - y) ** 2).mean() ** 0.5) < 0.13
    assert float((np.abs(mean - y) < 1.96 * np.sqrt(variance)).mean()) == pytest.approx(0.95, abs=0.04)


def test_weights_are_repetitions():
    phi, targets = rows(0, BLOCK)
    twice, heavy = ConceptFilter(6, 2, True), ConceptFilter(6, 2, True)
    twice.learn(phi.repeat_interleave(2, 0), targets.repeat_interleave(2, 0), nothing_known(phi.repeat_interleave(2, 0)))
    heavy.learn(phi, targets, nothing_known(phi), torch.full((BLOCK,), 2.0))
    torch.testing.assert_close(twice.experts[0].second, heavy.experts[0].second)
    torch.testing.assert_close(twice.experts[0].cross, heavy.experts[0].cross)


def test_a_restart_leaves_nothing_of_the_rows():
    made = learned(0, 1)
    made.restart()
    assert made.alone
    assert all(
        not model.second.any() and not model.cross.any() and not model.weights.any() for model in made.pools + made.experts
    )
    assert not made.pending
    assert not made.block_second.any()


def test_sites_merge_their_pools():
    a, b = learned(0, count=960), learned(0, count=640)
    before, kept = a.pools[0].second.clone(), 1 + len(a.pools)
    expected = (a.weights[:, :kept] + b.weights[:, :kept]) / 2
    a.merge(b, [1, 0])
    torch.testing.assert_close(a.pools[0].second, before + b.pools[0].second)
    assert a.rows == 1600
    # the mean is believed, and the experts' share goes to the second pool
    assert np.delete(a.weights[:, :kept], 2, 1) == pytest.approx(np.delete(expected, 2, 1))
    assert a.weights.sum(1) == pytest.approx(1.0)
    new = ConceptFilter(6, 2, True)
    new.merge(ConceptFilter(6, 2, True), [0, 1])
    assert new.alone


def test_a_filter_goes_on_bit_identically_from_its_state():
    made, again = learned(0, 1, count=1010), ConceptFilter(6, 2, True)
    again.load_state_dict(made.state_dict())
    phi, targets = rows(9, 333, 2)
    assert made.learn(phi, targets, nothing_known(phi)) == again.learn(phi, targets, nothing_known(phi))
    assert made.changes == again.changes
    np.testing.assert_array_equal(made.mixture(phi, nothing_known(phi)), again.mixture(phi, nothing_known(phi)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("rates", torch.ones(3)), ("weights", torch.full((2, 6), torch.nan)), ("current", 5), ("noise", torch.ones(2, 2))],
)
def test_a_state_that_does_not_fit_is_refused(name, value):
    state = learned(0, count=100).state_dict() | {name: value}
    with pytest.raises(RunError, match="does not fit"):
        ConceptFilter(6, 2, True).load_state_dict(state)


def wide(seed, count, sign=1.0, features=200):
    """Rows of a constant, two columns and many features of no meaning; the labels ask for the columns alone."""
    random = torch.Generator().manual_seed(seed)
    phi = torch.cat([torch.ones(count, 1), torch.randn(count, features, generator=random)], 1).double()
    return phi, torch.nn.functional.one_hot((sign * (phi[:, 1] + phi[:, 2]) > 0).long(), 2).double()


def followed(linear):
    """Accuracy of the first eight blocks after a flip of all labels."""
    made = ConceptFilter(201, 2, True, linear)
    phi, targets = wide(0, 1600)
    made.learn(phi, targets, nothing_known(phi))
    right = []
    phi, targets = wide(1, 8 * BLOCK, -1.0)
    for block in range(8):
        part = slice(BLOCK * block, BLOCK * (block + 1))
        answer = made.mixture(phi[part], nothing_known(phi[part])).argmax(1)
        right.append(float((answer == targets[part].numpy().argmax(1)).mean()))
        made.learn(phi[part], targets[part], nothing_known(phi[part]))
    return np.array(right)


def test_linear_pools_follow_a_simple_relation_much_sooner():
    """Three weights are known after a block or two, 201 are not (seeds fixed; measured: 0.93 and 0.71)."""
    with_them, without = followed(2)[2:], followed(0)[2:]
    assert with_them.mean() > 0.9
    assert with_them.mean() > without.mean() + 0.1


def test_linear_pools_raise_no_alarm():
    made = ConceptFilter(201, 2, True, 2)
    phi, targets = wide(0, 3200)
    made.learn(phi, targets, nothing_known(phi))
    linear = made.believed[1 + len(HALF_LIVES) : 1 + len(made.pools)]
    assert linear.sum() > 0.8
    assert made.changes == []


def test_modest_probabilities_are_sharpened_and_honest_ones_are_not():
    """The plane without noise is known for sure; where a quarter of the labels is noise, the answer says so."""
    sure = ConceptFilter(6, 2, True, 5)
    phi, targets = rows(0, 2000)
    sure.learn(phi, targets, nothing_known(phi))
    noisy = ConceptFilter(6, 2, True, 5)
    turned = torch.rand(2000, generator=torch.Generator().manual_seed(5)) < 0.25
    targets[turned] = targets[turned].flip(1)
    noisy.learn(phi, targets, nothing_known(phi))
    new, wanted = rows(9, 1000)
    certain, doubtful = (made.mixture(new, nothing_known(new)) for made in (sure, noisy))
    assert float((certain * wanted.numpy()).sum(1).mean()) > 0.9
    assert float(doubtful.max(1).mean()) < 0.8
    assert (sure.powers[1:] > 1).any()


def test_weighing_first_and_adding_later_is_learning():
    one, two = ConceptFilter(6, 2, True, 5), ConceptFilter(6, 2, True, 5)
    for concept in (0, 1):
        phi, targets = rows(concept, 5 * BLOCK, concept)
        one.learn(phi, targets, nothing_known(phi))
        for first in range(0, len(phi), BLOCK):
            part = slice(first, first + BLOCK)
            for row in range(first, first + BLOCK):
                answers = two.answers(phi[row : row + 1], nothing_known(phi[row : row + 1]))
                two.weigh(answers, targets[row : row + 1].numpy())
            two.learn(phi[part], targets[part], None)
    assert one.rows == two.rows
    assert one.changes == two.changes
    np.testing.assert_allclose(one.believed, two.believed, rtol=1e-6)
    np.testing.assert_allclose(one.sharp, two.sharp, rtol=1e-6)
    torch.testing.assert_close(one.pools[-1].weights, two.pools[-1].weights)
