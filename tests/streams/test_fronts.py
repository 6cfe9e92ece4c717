"""Fixed features in the place of pictures."""

import pytest
import torch

from hvcl.core.errors import DataError
from hvcl.features import PatchFeatures, PrincipalDirections
from hvcl.streams.datasets import Dataset
from hvcl.streams.fronts import Front

FRONT = Front(filters=6, sizes=(3,), grid=2, directions=5, examples=20)


@pytest.fixture
def data():
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60, 3, 8, 8), generator=random, dtype=torch.uint8)
    y = torch.arange(60) % 4
    return Dataset("noise", x[:40], y[:40], x[40:], y[40:], 255.0)


@pytest.fixture
def first(data):
    return (data.train_y < 2).nonzero().flatten()


def test_features_are_principal_directions_of_patches_of_the_first_task(data, first, tmp_path):
    made = FRONT.apply("noise", data, first, tmp_path)
    shown = data.train_x[first[:20]] / 255
    patches = PatchFeatures((3, 8, 8), 6, sizes=(3,), grid=2, mirror=True)
    patches.fit(shown)
    directions = PrincipalDirections(patches.features, 5)
    directions.fit(patches(shown))
    torch.testing.assert_close(made.train_x, directions(patches(data.train_x / 255)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(made.test_x, directions(patches(data.test_x / 255)), rtol=1e-4, atol=1e-4)
    assert torch.equal(made.train_y, data.train_y)
    assert made.scale == 1


def test_they_are_computed_once_and_read_back(data, first, tmp_path, monkeypatch, capsys):
    made = FRONT.apply("noise", data, first, tmp_path)
    assert "noise: features of 60 pictures, once" in capsys.readouterr().err
    monkeypatch.setattr(PatchFeatures, "fit", lambda *_: pytest.fail("computed again"))
    again = FRONT.apply("noise", data, first, tmp_path)
    assert torch.equal(again.train_x, made.train_x)
    assert torch.equal(again.test_x, made.test_x)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("change", ["damaged", "truncated", "another front", "other pictures"])
def test_what_does_not_fit_is_made_anew(data, first, tmp_path, change):
    front = FRONT
    made = FRONT.apply("noise", data, first, tmp_path)
    (tensors,) = (tmp_path / "features").glob("*.safetensors")
    content = tensors.read_bytes()
    if change == "damaged":
        tensors.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif change == "truncated":
        tensors.write_bytes(content[:100])
    elif change == "another front":
        front = Front(filters=6, sizes=(3,), grid=2, directions=4, examples=20)
    else:
        first = first.flip(0)
    again = front.apply("noise", data, first, tmp_path)
    if change in ("damaged", "truncated"):
        assert torch.equal(again.train_x, made.train_x)
        assert next((tmp_path / "features").glob("*.safetensors")).stat().st_size == len(content)
    else:
        assert again.train_x.shape == (40, front.directions)
        assert not torch.equal(again.train_x[:, 0], made.train_x[:, 0])


def test_a_folder_that_cannot_be_written_is_named(data, first, tmp_path):
    (tmp_path / "features").write_text("a file in the way")
    with pytest.raises(DataError, match="HVCL_DATA"):
        FRONT.apply("noise", data, first, tmp_path)
