"""A generative gate and its features, made from the first examples."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.storage import load_state, save_state
from hvcl.features import InputFeatures, PatchFeatures
from hvcl.gates import GenerativeGate
from hvcl.learners.conjugate import SharedExperts
from hvcl.learners.feature_gate import FeatureGate, FeatureGateConfig


def batch(place, n=50, seed=0):
    random = torch.Generator().manual_seed(seed)
    return place + torch.randn(n, 4, generator=random), torch.arange(n) % 2


def gate(**settings):
    return FeatureGate((4,), FeatureGateConfig(**{"warmup": 100, "window": 40, **settings}), 3)


def test_features_and_gate_are_made_when_the_warm_up_is_over():
    made = gate()
    assert made.observe(*batch(0.0)).tolist() == [0] * 50
    assert made.gate is None
    assert made.num_parameters == 0
    assert made.probabilities(batch(0.0)[0]).tolist() == [[1.0]] * 50
    made.observe(*batch(0.0, seed=1))
    assert isinstance(made.features, InputFeatures)
    assert made.gate is not None
    assert made.gate.counts.tolist() == [100.0]
    assert made.observe(*batch(8.0, seed=2)).tolist() == [1] * 50
    assert made.probabilities(batch(8.0)[0]).argmax(1).tolist() == [1] * 50


def test_a_known_boundary_ends_the_warm_up_and_opens_an_expert():
    made = gate()
    made.observe(*batch(0.0))
    made.new_expert()
    assert made.observe(*batch(0.0, seed=1)).tolist() == [1] * 50


def test_examples_that_features_cannot_be_made_from_are_not_kept():
    made = FeatureGate((4,), FeatureGateConfig(features="patches", warmup=60), 3)
    made.observe(*batch(0.0))
    for _ in range(2):
        with pytest.raises(InputError, match="patches need inputs"):
            made.observe(*batch(0.0, seed=1))
        assert len(made.warmup.targets) == 50


def test_pictures_get_patches_unless_the_inputs_are_chosen():
    smooth = torch.nn.functional.interpolate(
        torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0)), 16, mode="bilinear"
    )
    y = torch.arange(60) % 2
    for setting, expected in (("auto", PatchFeatures), ("inputs", InputFeatures)):
        made = FeatureGate((1, 16, 16), FeatureGateConfig(features=setting, filters=4, warmup=60), 3)
        made.observe(smooth, y)
        assert type(made.features) is expected


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resumes_bit_identically_through_files_with_any_seed(stop, tmp_path):
    batches = [batch(place, seed=seed) for seed, place in enumerate((0.0, 0.0, 8.0, 0.0))]
    whole, first, second = gate(), gate(), FeatureGate((4,), FeatureGateConfig(warmup=100, window=40), 9)
    expected = [whole.observe(*each).tolist() for each in batches]
    before = [first.observe(*each).tolist() for each in batches[:stop]]
    save_state(tmp_path / "state.json", first.state_dict())
    second.load_state_dict(load_state(tmp_path / "state.json"))
    assert before + [second.observe(*each).tolist() for each in batches[stop:]] == expected
    assert torch.equal(second.probabilities(batches[0][0]), whole.probabilities(batches[0][0]))


def test_shared_experts_follow_the_gate_when_it_joins_experts():
    """Three places and room for two: the regression's columns of joined experts answer under one number."""
    features = InputFeatures((4,))
    features.fit(batch(0.0, 200)[0])
    shared = SharedExperts(features, lambda dim, covariance: GenerativeGate(dim, max_experts=2, merging=True), None)
    for place in (0.0, 4.0, 40.0):
        shared.learn(*batch(place, 300, seed=int(place)), None)
    assert shared.gate.merged == {1: 0}
    p = shared.expert_probabilities(features(batch(4.0)[0]))
    assert p.shape == (50, 3)
    assert p[:, 1].max() == 0.0
    torch.testing.assert_close(p.sum(1), torch.ones(50, dtype=p.dtype))
    x, y = batch(4.0, 300, seed=4)
    shared.remove(x, y, torch.ones_like(y))  # under the number that they were learned with
    assert shared.gate.counts.tolist() == [300, 0, 300]
