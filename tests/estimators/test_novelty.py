"""How unlike the learned rows a row is."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.estimators.novelty import Novelty


def learned(inputs=4, count=2000, seed=0):
    x = torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed))
    classes = torch.arange(count) % 2
    x[classes == 1] += 6
    model = Novelty(inputs, 0)
    model.add(x, classes)
    return model, x, classes


def test_by_hand_in_one_dimension():
    model = Novelty(1, 0)
    x = torch.tensor([[-1.0], [1.0]]).repeat(50_000, 1)
    model.add(x, torch.zeros(100_000, dtype=torch.long))
    # variance one, but for the floor of 0.05
    assert model(torch.tensor([[3.0]]))[0] == pytest.approx(9 / 1.05, rel=1e-3)


@pytest.mark.parametrize("inputs", [4, 100])
def test_ordinary_rows_have_about_one_and_gaps_between_classes_more(inputs):
    model, x, _ = learned(inputs)
    assert 0.8 < model(x).mean() < 1.2
    assert model(torch.full((1, inputs), 3.0))[0] > 3 * np.quantile(model(x), 0.9)


@pytest.mark.parametrize(("inputs", "batch"), [(2, 50), (2, 4000), (10, 50), (10, 4000), (32, 4000)])
def test_the_share_beyond_is_uniform_on_new_rows(inputs, batch):
    """Also in many dimensions, where rows that were learned look more ordinary than new ones, and within the bins.

    After a warm-up of 256 rows; with 4,000 rows 5 % are known to +- 0.35 %.
    """
    model = Novelty(inputs, 0)
    _, x, classes = learned(inputs, count=4000)
    for some, labels in zip((x[:256], *x[256:].split(batch)), (classes[:256], *classes[256:].split(batch)), strict=True):
        model.add(some, labels)
    _, fresh, _ = learned(inputs, count=20_000, seed=1)
    share = model.share_beyond(model(fresh))
    for level in (0.01, 0.05, 0.2, 0.5):
        assert (share <= level).mean() == pytest.approx(level, abs=0.002 + 0.1 * level)
    assert model.share_beyond(np.array([1e9]))[0] == pytest.approx(1 / 4001)


def test_a_row_counts_as_if_it_were_new():
    """Leaving it out of the sums: the floor of the covariance hides no more than a hundredth."""
    model, x, classes = learned(3, count=40)
    novelty, nearest = model._nearest(model.reduce(x))
    found = model._as_new(novelty, nearest, np.ones(40))
    for row in range(0, 40, 7):
        others = torch.arange(40) != row
        without = Novelty(3, 0)
        without.add(x[others], classes[others])
        assert float(found[row]) == pytest.approx(float(without(x[row : row + 1])[0]), rel=0.01)


def test_trust_is_whole_for_ordinary_rows_and_falls_with_the_distance():
    model, x, _ = learned()
    assert (model.trust(model(x)) == 1).mean() > 0.99
    near, far = model.trust(model(torch.tensor([[40.0] * 4, [400.0] * 4])))
    assert far < near / 50
    assert near < 0.2


def test_removing_leaves_what_would_have_been_learned_without():
    model, x, classes = learned()
    without = Novelty(4, 0)
    without.add(x[500:], classes[500:])
    model.remove(x[:500], classes[:500])
    assert torch.allclose(model.total, without.total)
    assert model(x) == pytest.approx(without(x), rel=1e-6)
    with pytest.raises(InputError, match="more than were learned"):
        model.remove(x, classes)
