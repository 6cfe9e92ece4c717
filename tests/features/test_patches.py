"""Patch features against loops over patches in float64."""

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.features import PatchFeatures, patches
from hvcl.features.patches import _sample


def images(n=12, channels=2, height=9, width=10, seed=0):
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, channels, height + 2, width + 2, generator=random)
    return torch.nn.functional.avg_pool2d(noise, 3, stride=1) * 2 + 0.5


def fitted(x, **settings):
    features = PatchFeatures(tuple(x.shape[1:]), **{"filters": 7, "sizes": (3, 4), "seed": 1, **settings})
    features.fit(x)
    return features


def naive(features, x):
    """Before standardising: one patch, one filter, one cell after another."""
    grid, out = features.grid, np.zeros((len(x), 2, features.grid**2, features.filters))
    first = 0
    for size in features.sizes:
        weights, offset = features.filters_of(size).double().numpy(), features.state[f"offset{size}"].double().numpy()
        constant = float(features.state[f"constant{size}"])
        for b, image in enumerate(x.double().numpy()):
            sides = [image, image[:, :, ::-1]] if features.mirror else [image]
            step = features.stride
            down, across = (image.shape[1] - size) // step + 1, (image.shape[2] - size) // step + 1
            number = np.zeros(grid**2)
            for mirrored, side in enumerate(sides):
                for r in range(down):
                    for c in range(across):
                        # the patches of the mirror image are those of the image, mirrored
                        left = image.shape[2] - size - step * (across - 1 - c) if mirrored else step * c
                        patch = side[:, step * r : step * r + size, left : left + size].reshape(-1)
                        normal = (patch - patch.mean()) / np.sqrt(patch.var() + constant)
                        v = normal @ weights + offset
                        cell = (r * grid // down) * grid + c * grid // across
                        number[cell] += 1
                        part = out[b, :, cell, first : first + len(v)]
                        part += [np.maximum(v - features.threshold, 0), np.maximum(-v - features.threshold, 0)]
            out[b, :, :, first : first + len(offset)] /= number[:, None]
        first += len(offset)
    return (np.sqrt(out) if features.root else out).reshape(len(x), -1)


SETTINGS = [
    {},
    {"mirror": False},
    {"root": False, "grid": 3},
    {"grid": 1, "threshold": 0.0},
    {"sizes": (5,), "threshold": 0.6},
    {"stride": 2},
    {"kept": 1.0},
    {"kept": 0.5, "mirror": False},
    {"stride": 3, "grid": 1, "mirror": False},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("compiled", [True, False])
def test_features_are_those_of_a_loop_over_patches(settings, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    monkeypatch.setattr(patches, "BLOCK", 2)
    x = images()
    features = fitted(x, **settings)
    assert features.features == 2 * features.grid**2 * 7
    raw = naive(features, x)
    actual = features(x).double().numpy() / features.state["scale"].double().numpy() + features.state["shift"].double().numpy()
    np.testing.assert_allclose(actual, raw, rtol=0, atol=2e-4 if features.root else 2e-5)
    np.testing.assert_allclose(features.state["shift"], raw.mean(0), atol=2e-4)


def test_mirror_images_have_the_same_features():
    x = images()
    features, plain = fitted(x), fitted(x, mirror=False)
    new = images(seed=5)
    torch.testing.assert_close(features(new), features(new.flip(3)), rtol=0, atol=1e-3)
    assert (plain(new) - plain(new.flip(3))).abs().mean() > 0.1
    assert (features(new) - features(new.flip(2))).abs().mean() > 0.1


def test_any_batch_any_layout_any_type_give_the_same_numbers():
    x = images(20)
    features = fitted(x)
    whole = features(x)
    torch.testing.assert_close(torch.cat([features(part) for part in x.split(3)]), whole)
    strided = x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    assert not strided.is_contiguous()
    torch.testing.assert_close(features(strided), whole)
    torch.testing.assert_close(features(x.double()), whole)


def test_brightness_and_contrast_hardly_matter():
    x = images()
    features = fitted(x)
    raw = naive(features, x)
    np.testing.assert_allclose(naive(features, x + 10), raw, rtol=0, atol=1e-5)
    # c keeps flat patches from being blown up: sqrt(c) is three tenths of the typical deviation
    for size in (3, 4):
        every = x.unfold(2, size, 1).unfold(3, size, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 2 * size * size)
        typical = every.var(1, correction=0).mean()
        assert float(features.state[f"constant{size}"]) == pytest.approx(0.09 * float(typical), rel=0.1)


def test_filters_are_unit_directions_of_whitened_patches():
    x = images(60, channels=1)
    features = fitted(x, filters=40, sizes=(3,), whitening=0.05, mirror=False, kept=1.0)
    weights, constant = features.filters_of(3).double(), float(features.state["constant3"])
    torch.testing.assert_close(weights.sum(0), torch.zeros(40, dtype=torch.float64), rtol=0, atol=1e-5)
    every = x.unfold(2, 3, 1).unfold(3, 3, 1).reshape(-1, 9).double()
    normal = (every - every.mean(1, keepdim=True)) / (every.var(1, correction=0, keepdim=True) + constant).sqrt()
    covariance = torch.cov(normal.T, correction=0)
    regular = covariance + 0.05 * covariance.trace() / 9 * torch.eye(9, dtype=torch.float64)
    # v_k = z . z_k / |z_k|: the norm in the regularised metric is one, and its variance what whitening leaves of it
    torch.testing.assert_close((weights * (regular @ weights)).sum(0), torch.ones(40, dtype=torch.float64), rtol=0.1, atol=0)
    v = normal @ weights + features.state["offset3"].double()
    torch.testing.assert_close(v.mean(0), torch.zeros(40, dtype=torch.float64), rtol=0, atol=0.05)
    # each filter is the direction of a whitened patch
    values, vectors = torch.linalg.eigh(regular)
    z = (normal - normal.mean(0)) @ (vectors * values.rsqrt()) @ vectors.T
    cosine = v / z.norm(dim=1, keepdim=True)
    torch.testing.assert_close(cosine.max(0).values, torch.ones(40, dtype=torch.float64), rtol=0, atol=0.05)


def test_whitening_for_mirrored_patches_is_that_of_patches_and_their_mirror_images():
    """z of all patches, both ways: mean zero, and the variance that the regular part of whitening leaves of each direction."""
    x = images(60, channels=2)
    features = fitted(x, filters=4, sizes=(4,), whitening=0.05, kept=1.0)
    basis, even, constant = features.state["basis4"].double(), int(features.state["even4"]), float(features.state["constant4"])
    assert basis.shape == (32, 31)  # that of the patch's mean has no variance
    flipped = basis.view(2, 4, 4, -1).flip(2).view_as(basis)
    torch.testing.assert_close(flipped[:, :even], basis[:, :even])
    torch.testing.assert_close(flipped[:, even:], -basis[:, even:])
    both = torch.cat([x, x.flip(3)])
    every = both.unfold(2, 4, 1).unfold(3, 4, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 32).double()
    normal = (every - every.mean(1, keepdim=True)) / (every.var(1, correction=0, keepdim=True) + constant).sqrt()
    # directions are those of the sample's covariance, which is all of these up to the patches that were drawn twice or not
    found = torch.cov((normal @ basis).T, correction=0)
    spread = found.diagonal().sqrt().clamp_min(0.05)
    assert (found / spread / spread.unsqueeze(1) - torch.eye(31)).abs().max() < 0.1


def test_only_directions_that_matter_are_kept():
    x = images(60)
    number = {kept: features_kept(x, kept) for kept in (0.3, 0.9, 1.0)}
    assert number[0.3] < number[0.9] < number[1.0] == 17  # of 18: all but the patch's mean
    many, few = (fitted(x, filters=40, sizes=(3,), kept=kept)(x[:4]) for kept in (1.0, 0.98))
    assert torch.corrcoef(torch.stack([many.flatten(), few.flatten()]))[0, 1] > 0.97


def features_kept(x, kept):
    return len(fitted(x, filters=40, sizes=(3,), kept=kept).state["weights3"])


@pytest.mark.parametrize("kept", [0.0, 1.1, float("nan")])
def test_what_is_no_share_is_refused(kept):
    with pytest.raises(InputError, match="share of variance"):
        PatchFeatures((1, 8, 8), 4, sizes=(3,), kept=kept)


def test_more_filters_than_patches_come_twice():
    features = fitted(images(1, 1, 4, 4), filters=9, sizes=(3,), grid=1)
    assert torch.equal(features.state["weights3"][:, :4], features.state["weights3"][:, 4:8])


def test_samples_are_patches_of_the_images(monkeypatch):
    monkeypatch.setattr(patches, "SAMPLE", 50)
    x = torch.arange(2 * 3 * 5 * 6).float().view(2, 3, 5, 6)
    rows = _sample(x, 3, torch.Generator().manual_seed(0))
    assert rows.shape == (24, 27)
    rows = _sample(x.repeat(3, 1, 1, 1), 3, torch.Generator().manual_seed(0))
    assert rows.shape == (50, 27)
    known = {
        tuple(p.flatten().tolist())
        for image in x
        for p in image.unfold(1, 3, 1).unfold(2, 3, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    }
    assert {tuple(row.tolist()) for row in rows} <= known
    assert len({tuple(row.tolist()) for row in rows}) > 15


def test_seeds_and_states():
    x = images()
    a, b, c = fitted(x), fitted(x), fitted(x, seed=2)
    assert a.same_as(b)
    assert not a.same_as(c)
    d = PatchFeatures((2, 9, 10), 7, sizes=(3, 4))
    d.load_state_dict(a.state_dict())
    assert torch.equal(a(x), d(x))


def test_flat_images_stay_finite():
    features = fitted(torch.ones(4, 2, 9, 10))
    assert torch.isfinite(features(images())).all()


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((20,), {}),
        ((1, 6, 20), {}),
        ((1, 20, 20), {"sizes": ()}),
        ((1, 20, 20), {"sizes": (1,)}),
        ((1, 20, 20), {"sizes": (5, 5)}),
        ((1, 20, 20), {"sizes": (20,), "grid": 2}),
        ((1, 20, 20), {"filters": 1}),
        ((1, 20, 20), {"grid": 0}),
        ((1, 20, 20), {"threshold": -0.1}),
        ((1, 20, 20), {"whitening": 0.0}),
    ],
)
def test_bad_settings_are_refused(shape, settings):
    with pytest.raises(InputError, match=r"patches|filters"):
        PatchFeatures(shape, **settings)
