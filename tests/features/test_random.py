import math

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.features import RandomFeatures
from hvcl.features.random import _windows


def inputs(n=400, seed=0):
    """Images that vary much in one corner, hardly in another, around a mean."""
    strength = torch.linspace(0.1, 2, 36).view(1, 6, 6)
    return strength * torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed)) + 3


def raw(features, x):
    """Before standardising, by the formula, in float64."""
    return torch.cos(x.double().flatten(1) @ features.state["weights"].double() + features.state["offset"].double())


def test_features_are_standardised_cosines_of_projections():
    features, x = RandomFeatures((1, 6, 6), 50), inputs()
    features.fit(x)
    phi = features(x)
    assert phi.shape == (400, 50)
    assert phi.dtype == torch.float32
    expected = (raw(features, x) - features.state["shift"].double()) * features.state["scale"].double()
    torch.testing.assert_close(phi.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(phi.mean(0), torch.zeros(50), rtol=0, atol=1e-4)
    torch.testing.assert_close(phi.square().mean(0), torch.ones(50), rtol=1e-3, atol=0)


def test_projections_have_the_deviation_omega_and_follow_the_data():
    features, x = RandomFeatures((1, 6, 6), 500, frequency=0.7), inputs()
    features.fit(x)
    centred = x.flatten(1) - x.flatten(1).mean(0)
    torch.testing.assert_close((centred @ features.state["weights"]).square().mean(0).sqrt(), torch.full((500,), 0.7))
    size = features.state["weights"].square().mean(1).sqrt()
    deviation = centred.square().mean(0).sqrt()
    # weights vary as the data do, plus a tenth of the typical deviation everywhere
    expected = (deviation.square() + (0.1 * centred.square().mean().sqrt()) ** 2).sqrt()
    torch.testing.assert_close(size / size.mean(), expected / expected.mean(), rtol=0.2, atol=0)


def test_phases_are_uniform():
    features, x = RandomFeatures((1, 6, 6), 2000), inputs()
    features.fit(x)
    phase = features.state["offset"] + x.flatten(1).mean(0) @ features.state["weights"]
    assert phase.min() > -0.01
    assert phase.max() < 2 * math.pi + 0.01
    assert torch.histc(phase, 8, 0, 2 * math.pi).sub(250).abs().max() < 60  # four standard deviations


def test_receptive_fields_are_squares_of_all_channels():
    windows = _windows((2, 5, 7), 3, 400, torch.Generator().manual_seed(0)).view(2, 5, 7, 400)
    assert torch.equal(windows[0], windows[1])
    assert (windows.sum((0, 1, 2)) == 18).all()
    rows, columns = windows[0].amax(1), windows[0].amax(0)
    assert (rows.sum(0) == 3).all()
    assert (columns.sum(0) == 3).all()
    assert torch.equal(windows[0], rows[:, None] * columns[None])
    # every place is used, none left the image
    assert len({(int(r), int(c)) for r, c in zip(rows.argmax(0), columns.argmax(0), strict=True)}) == 3 * 5
    features = RandomFeatures((1, 6, 6), 30, field=2)
    features.fit(inputs())
    assert ((features.state["weights"] != 0).sum(0) == 4).all()


def test_seeds():
    a, b, c = (RandomFeatures((1, 6, 6), 20, seed=seed) for seed in (1, 1, 2))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for features in (a, b, c):
        features.fit(inputs())
    assert torch.equal(torch.get_rng_state(), before)
    assert a.same_as(b)
    assert not a.same_as(c)


def test_inputs_without_variation_stay_finite():
    features = RandomFeatures((4,), 10)
    features.fit(torch.ones(3, 4))
    assert torch.isfinite(features(torch.zeros(2, 4))).all()


def test_bad_settings_are_refused():
    for settings in ({"field": 7}, {"field": 0}, {"frequency": 0.0}, {"frequency": float("nan")}):
        with pytest.raises(InputError, match=r"field|frequency"):
            RandomFeatures((1, 6, 6), 10, **settings)
    with pytest.raises(InputError, match="field"):
        RandomFeatures((36,), 10, field=2)
