"""Features that are remembered are those that would be computed, number by number, and no more of them than there is room for."""

import gc

import pytest
import torch

from hvcl.features import FeatureCache, PatchFeatures, RandomFeatures, remembering
from hvcl.features.cache import active_cache


def pictures(n=12, seed=0):
    return torch.randn(n, 2, 9, 10, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def features():
    found = PatchFeatures((2, 9, 10), filters=7, sizes=(3, 4), seed=1)
    found.fit(pictures())
    if not found.is_rowwise(pictures()):
        pytest.skip("without compiled code nothing is remembered")
    return found


def counted(features, monkeypatch):
    """How many inputs features are computed for."""
    seen, compute = [], features._compute
    monkeypatch.setattr(features, "_compute", lambda x: seen.append(len(x)) or compute(x))
    return seen


def test_what_comes_again_is_not_computed_again_and_is_the_same(features, monkeypatch):
    x = pictures(20, seed=3)
    expected = features(x)
    computed = counted(features, monkeypatch)
    with remembering(FeatureCache()) as cache:
        first, order = features(x[:8]), torch.randperm(20, generator=torch.Generator().manual_seed(0))
        mixed = features(x[order])
    assert torch.equal(first, expected[:8])
    assert torch.equal(mixed, expected[order])
    assert computed == [8, 12]
    assert cache.hits == 8
    assert len(cache) == 20


def test_answers_are_not_the_cache_itself(features):
    x = pictures(4, seed=3)
    expected = features(x)
    with remembering(FeatureCache()):
        features(x).zero_()
        features(x).zero_()
        assert torch.equal(features(x), expected)


def test_an_input_twice_in_a_batch(features):
    x = pictures(3, seed=3)[[0, 1, 0]]
    with remembering(FeatureCache()) as cache:
        assert torch.equal(features(x), features(x))
        assert len(cache) == 2


def test_no_more_than_there_is_room_for_and_the_oldest_goes_first(features, monkeypatch):
    x = pictures(6, seed=3)
    row = features(x[:1]).nbytes
    computed = counted(features, monkeypatch)
    with remembering(FeatureCache(largest=3 * row)) as cache:
        features(x[:3])
        features(x[:1])  # used last
        features(x[3:4])  # instead of x[1]
        assert len(cache) == 3
        features(x[:1])
        features(x[1:2])
    assert computed == [3, 1, 1]


def test_two_maps_have_their_own(features):
    other = PatchFeatures((2, 9, 10), filters=7, sizes=(3, 4), seed=2)
    other.fit(pictures())
    x = pictures(5, seed=3)
    expected = features(x), other(x)
    with remembering(FeatureCache()):
        for _ in range(2):
            assert torch.equal(features(x), expected[0])
            assert torch.equal(other(x), expected[1])


def test_a_map_that_is_gone_leaves_nothing_to_one_at_its_place(features):
    x, cache = pictures(5, seed=3), FeatureCache()
    with remembering(cache):
        for seed in range(20):  # tensors that come and go have each other's addresses
            made = PatchFeatures((2, 9, 10), filters=7, sizes=(3, 4), seed=seed)
            made.fit(pictures())
            found = made(x)
            assert torch.equal(found, made._standardised(x))
            del made, found
            gc.collect(1)


def test_maps_whose_numbers_depend_on_the_batch_are_never_remembered(monkeypatch):
    features = RandomFeatures((5,), 8)
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    features.fit(x)
    with remembering(FeatureCache()) as cache:
        features(x)
        features(x)
    assert len(cache) == 0
    assert cache.hits == 0


def test_the_cache_is_that_of_the_block():
    outer, inner = FeatureCache(), FeatureCache()
    with remembering(outer):
        with remembering(inner):
            assert active_cache() is inner
        assert active_cache() is outer
    assert active_cache() is None
