import numpy as np
import pytest

from hvcl.core.errors import InputError
from hvcl.core.storage import load_state, save_state
from hvcl.rl import PrioritizedReplay, Transitions
from hvcl.rl.replay import EPSILON


def row(*values):
    return np.array([values], np.float32)


def transitions(count, first=0):
    numbers = np.arange(first, first + count, dtype=np.float32)
    wide = numbers[:, None]
    return Transitions(
        wide + row(0.1, 0.2), wide + row(0.3), numbers, wide + row(0.4, 0.5), np.zeros(count, "f"), np.ones((count, 1), "f")
    )


def test_a_batch_holds_whole_rows():
    replay = PrioritizedReplay(10, 2, 1, 0.6, 0)
    replay.add(transitions(10))
    batch = replay.sample(50, 0.5)
    for row, place in enumerate(batch.places):
        np.testing.assert_allclose(batch.pair[row], place + np.array([0.1, 0.2, 0.3]), rtol=1e-6)
        np.testing.assert_allclose(batch.next_observation[row], place + np.array([0.4, 0.5]), rtol=1e-6)
        assert batch.reward[row] == place


def test_the_oldest_make_room():
    replay = PrioritizedReplay(4, 2, 1, 0.6, 0)
    for first in range(0, 10, 2):
        replay.add(transitions(2, first))
    assert len(replay) == 4
    assert set(replay.sample(200, 1.0).reward.tolist()) == {6, 7, 8, 9}


def test_draws_follow_the_priorities_and_weights_undo_them():
    alpha, beta = 0.7, 0.5
    replay = PrioritizedReplay(5, 2, 1, alpha, 1)
    replay.add(transitions(5))
    errors = np.array([0.1, 1.0, 2.0, 4.0, 8.0], np.float32)
    replay.reprioritize(np.arange(5), errors)
    probabilities = (errors + EPSILON) ** alpha
    probabilities /= probabilities.sum()
    batch = replay.sample(20_000, beta)
    counts = np.bincount(batch.places, minlength=5)
    # one draw from each of equal slices: every count is within 1 of its expectation
    np.testing.assert_allclose(counts, 20_000 * probabilities, atol=1.01)
    weights = (5 * probabilities) ** -beta
    np.testing.assert_allclose(batch.weight, (weights / weights.max())[batch.places], rtol=1e-5)


def test_new_transitions_have_the_highest_priority_seen():
    replay = PrioritizedReplay(3, 2, 1, 1.0, 0)
    replay.add(transitions(2))
    replay.reprioritize(np.array([0, 1]), np.array([9.0, 1.0], np.float32))
    replay.add(transitions(1, 2))
    counts = np.bincount(replay.sample(19_000, 1.0).places, minlength=3)
    np.testing.assert_allclose(counts / 1000, [9, 1, 9], atol=0.02)


def test_alpha_zero_is_uniform():
    replay = PrioritizedReplay(4, 2, 1, 0.0, 0)
    replay.add(transitions(4))
    replay.reprioritize(np.array([0]), np.array([100.0], np.float32))
    batch = replay.sample(4000, 0.4)
    assert (np.bincount(batch.places) == 1000).all()
    assert (batch.weight == 1).all()


def test_goes_on_bit_identically_from_a_file(tmp_path):
    one, other = (PrioritizedReplay(6, 2, 1, 0.6, seed) for seed in (3, 4))
    one.add(transitions(8))
    one.reprioritize(np.array([1, 2]), np.array([3.0, 0.2], np.float32))
    one.sample(5, 0.4)
    save_state(tmp_path / "replay.json", one.state_dict())
    other.load_state_dict(load_state(tmp_path / "replay.json"))
    for replay in (one, other):
        replay.add(transitions(1, 50))
    a, b = one.sample(64, 0.9), other.sample(64, 0.9)
    assert all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(a, b, strict=True))


def test_bad_use():
    with pytest.raises(InputError, match="empty"):
        PrioritizedReplay(3, 2, 1, 0.5, 0).sample(1, 0.4)
    with pytest.raises(InputError, match="alpha"):
        PrioritizedReplay(3, 2, 1, 1.5, 0)
    with pytest.raises(InputError, match="rows of shape"):
        PrioritizedReplay(3, 2, 1, 0.5, 0).load_state_dict(PrioritizedReplay(3, 4, 1, 0.5, 0).state_dict())
