import numpy as np
import pytest

from hvcl.core.errors import InputError
from hvcl.rl import SumTree


@pytest.mark.parametrize("capacity", [1, 2, 3, 17, 1000])
def test_against_brute_force(capacity):
    random = np.random.default_rng(capacity)
    tree, weights = SumTree(capacity), np.zeros(capacity)
    for _ in range(30):
        leaves = random.integers(0, capacity, 20)
        values = random.random(20) * (random.random(20) < 0.7)  # some weights are 0
        tree.set(leaves, values)
        for leaf, value in zip(leaves, values, strict=True):  # of a leaf that is named twice the last counts
            weights[leaf] = value
        if not weights.sum():
            continue
        assert tree.total == pytest.approx(weights.sum(), rel=1e-14)
        np.testing.assert_array_equal(tree.get(np.arange(capacity)), weights)
        running = np.cumsum(weights)
        middles = (running - weights / 2)[weights > 0]  # far from the edges, where rounding decides
        np.testing.assert_array_equal(tree.find(middles), np.flatnonzero(weights))


def test_masses_at_the_end_find_a_leaf_with_weight():
    tree = SumTree(1000)
    tree.set(np.arange(300), np.random.default_rng(0).random(300))
    found = tree.find(np.array([tree.total, tree.total * (1 + 1e-12), np.nextafter(tree.total, 0)]))
    assert (found < 300).all()
    assert (tree.get(found) > 0).all()


def test_sums_hold_no_old_errors():
    tree = SumTree(8)
    for _ in range(100):
        tree.set(np.array([3]), np.array([1e16]))
        assert tree.total == 1e16
        tree.set(np.array([3, 5]), np.array([0.0, 0.1]))
        assert tree.total == 0.1


def test_clear_and_bad_capacity():
    tree = SumTree(5)
    tree.set(np.array([1]), np.array([2.0]))
    tree.clear()
    assert tree.total == 0
    with pytest.raises(InputError, match="capacity"):
        SumTree(0)


def test_compiled_and_plain_give_the_same_numbers(monkeypatch):
    random = np.random.default_rng(0)
    changes = [(random.integers(0, 700, 50), random.random(50) ** 3) for _ in range(20)]
    shares = random.random(300)

    def walk():
        tree = SumTree(1000)
        for leaves, weights in changes:
            tree.set(leaves, weights)
            yield tree.total, tree.find(shares * tree.total).tolist()

    ours = list(walk())
    monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    assert ours == list(walk())
