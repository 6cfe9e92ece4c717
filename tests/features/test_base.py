import pytest
import torch

from hvcl.core.errors import InputError, RunError
from hvcl.features import FeatureMap, RandomFeatures


class Plain(FeatureMap):
    """The inputs themselves, times three."""

    def __init__(self, input_shape, features):
        super().__init__(input_shape, features)
        self.prepared = []

    def _prepare(self, x):
        self.prepared.append(len(x))
        self.state["factor"] = torch.tensor(3.0)

    def _compute(self, x):
        return self.state["factor"] * x.float().flatten(1)


def data(n=50):
    return torch.randn(n, 2, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.01]) + 7


def test_features_have_mean_zero_and_variance_one_on_the_first_examples_but_hardly_varying_ones_are_not_blown_up():
    features, x = Plain((2, 3), 6), data()
    assert not features.fitted
    features.fit(x)
    assert features.fitted
    assert features.prepared == [50]
    phi = features(x)
    torch.testing.assert_close(phi.mean(0), torch.zeros(6), rtol=0, atol=1e-3)
    deviation = phi.std(0, correction=0)
    torch.testing.assert_close(deviation[[0, 1, 3, 4]], torch.ones(4), rtol=1e-4, atol=0)
    typical = 3 * x.flatten(1).std(0, correction=0)
    torch.testing.assert_close(deviation[[2, 5]], (typical / (0.1 * typical.mean()))[[2, 5]], rtol=1e-2, atol=0)


def test_a_map_is_fitted_once_and_depends_on_nothing_that_comes_later():
    features, x = Plain((2, 3), 6), data()
    with pytest.raises(InputError, match="not fitted"):
        features(x)
    features.fit(x[:20])
    before = features(x)
    with pytest.raises(InputError, match="fitted already"):
        features.fit(x)
    torch.testing.assert_close(torch.cat([features(part) for part in x.split(7)]), before)
    assert not features(x.clone().requires_grad_()).requires_grad


def test_constant_inputs_stay_finite():
    features = Plain((3,), 3)
    features.fit(torch.ones(4, 3))
    assert (features(torch.ones(2, 3)) == 0).all()


def test_bad_input_is_refused():
    features, x = Plain((2, 3), 6), data()
    nan, infinite = x.clone(), x.clone()
    nan[3, 1, 2], infinite[0, 0, 0] = torch.nan, torch.inf
    cases = [(nan, "NaN"), (infinite, "NaN or infinite"), (x[:, :1], r"shape \(batch, 2, 3\)"), (x[0], "shape"), (x[:0], "empty")]
    for bad, words in cases:
        with pytest.raises(InputError, match=words):
            features.fit(bad)
    assert not features.fitted
    features.fit(x)
    for bad, words in cases:
        with pytest.raises(InputError, match=words):
            features(bad)
    with pytest.raises(InputError, match="not finite"):
        features(torch.full((1, 2, 3), 3e38))
    with pytest.raises(InputError, match="at least 1 feature"):
        Plain((3,), 0)


def test_broken_features_do_not_fit():
    features = Plain((3,), 3)
    with pytest.raises(InputError, match="not finite"):
        features.fit(torch.full((4, 3), 3e38))
    assert not features.fitted


def test_saved_maps_give_the_same_numbers_and_are_not_shared():
    x = data()
    a, b = Plain((2, 3), 6), Plain((2, 3), 6)
    assert a.state_dict() == {}
    b.load_state_dict({})
    assert not b.fitted
    a.fit(x)
    assert not a.same_as(b)
    b.load_state_dict(a.state_dict())
    assert a.same_as(b)
    assert torch.equal(a(x), b(x))
    assert all(a.state[name] is not b.state[name] for name in a.state)
    b.load_state_dict(a.state_dict())


def test_what_does_not_fit_is_refused():
    x = data()
    a, b, other = Plain((2, 3), 6), Plain((2, 3), 6), Plain((2, 3), 5)
    a.fit(x)
    b.fit(x + 1)
    with pytest.raises(RunError, match="does not fit"):
        other.load_state_dict(a.state_dict())
    with pytest.raises(RunError, match="does not fit"):
        other.load_state_dict({"factor": torch.tensor(3.0)})
    with pytest.raises(RunError, match="fitted already"):
        b.load_state_dict(a.state_dict())
    assert not a.same_as(b)
    random = RandomFeatures((2, 3), 6)
    with pytest.raises(RunError, match="does not fit"):
        random.load_state_dict(a.state_dict())
    assert not random.fitted
