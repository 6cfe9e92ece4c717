"""Parsers on tiny files in the official formats, and the embedded digits."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hvcl.core.errors import DataError, UnknownNameError
from hvcl.streams.datasets import Dataset, known_datasets, load
from hvcl.streams.files import FILE_SETS, DataFile, FileSet

Provide = Callable[[str, dict[str, bytes]], None]


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Provide:
    """Write these files into the data folder, and let them count as the official files of the data set."""

    def provide(name: str, contents: dict[str, bytes]) -> None:
        files = []
        for path, content in contents.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(content)
            files.append(DataFile(path, len(content), hashlib.sha256(content).hexdigest()))
        monkeypatch.setitem(FILE_SETS, name, FileSet("http://127.0.0.1:0/", tuple(files)))

    return provide


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(magic: int, values: np.ndarray) -> bytes:
    return gzip.compress(
        struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes(), mtime=0
    )  # no clock: names of parametrised tests hold these bytes


TRAIN_IMAGES, TEST_IMAGES = pixels(1, 3, 4, 5), pixels(2, 2, 4, 5)
MNIST = {
    "mnist/train-images-idx3-ubyte.gz": idx(0x803, TRAIN_IMAGES),
    "mnist/train-labels-idx1-ubyte.gz": idx(0x801, np.array([7, 0, 9], dtype=np.uint8)),
    "mnist/t10k-images-idx3-ubyte.gz": idx(0x803, TEST_IMAGES),
    "mnist/t10k-labels-idx1-ubyte.gz": idx(0x801, np.array([1, 2], dtype=np.uint8)),
}


def records(labels: list[tuple[int, ...]], images: np.ndarray) -> bytes:
    return b"".join(bytes(label) + image.tobytes() for label, image in zip(labels, images, strict=True))


def assert_types(data: Dataset) -> None:
    assert data.train_x.dtype == data.test_x.dtype == torch.uint8
    assert data.train_y.dtype == data.test_y.dtype == torch.int64
    assert data.train_x.is_contiguous()


def test_mnist_gives_the_exact_pixels_and_labels(provide: Provide, tmp_path: Path) -> None:
    provide("mnist", MNIST)
    data = load("mnist", tmp_path)
    assert_types(data)
    assert data.name == "mnist"
    assert data.scale == 255
    assert data.train_x.shape == (3, 1, 4, 5)
    assert np.array_equal(data.train_x[:, 0].numpy(), TRAIN_IMAGES)
    assert np.array_equal(data.test_x[:, 0].numpy(), TEST_IMAGES)
    assert data.train_y.tolist() == [7, 0, 9]
    assert data.test_y.tolist() == [1, 2]
    assert data.number_of_classes == 10


def test_cifar10_joins_the_batches_in_order(provide: Provide, tmp_path: Path) -> None:
    images = pixels(3, 12, 3, 32, 32)
    labels = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    names = [*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]
    provide(
        "cifar10",
        {
            f"cifar-10-batches-bin/{name}.bin": records([(label,) for label in labels[i : i + 2]], images[i : i + 2])
            for name, i in zip(names, range(0, 12, 2), strict=True)
        },
    )
    data = load("cifar10", tmp_path)
    assert_types(data)
    assert data.scale == 255
    assert np.array_equal(data.train_x.numpy(), images[:10])
    assert np.array_equal(data.test_x.numpy(), images[10:])
    assert data.train_y.tolist() == labels[:10]
    assert data.test_y.tolist() == labels[10:]
    assert data.number_of_classes == 10


def test_cifar100_takes_the_fine_labels(provide: Provide, tmp_path: Path) -> None:
    images = pixels(4, 3, 3, 32, 32)
    provide(
        "cifar100",
        {
            "cifar-100-binary/train.bin": records([(11, 99), (0, 42)], images[:2]),
            "cifar-100-binary/test.bin": records([(19, 7)], images[2:]),
        },
    )
    data = load("cifar100", tmp_path)
    assert_types(data)
    assert np.array_equal(data.train_x.numpy(), images[:2])
    assert np.array_equal(data.test_x.numpy(), images[2:])
    assert data.train_y.tolist() == [99, 42]
    assert data.test_y.tolist() == [7]
    assert data.number_of_classes == 100


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("train-images-idx3-ubyte.gz", idx(0x801, TRAIN_IMAGES), "not an idx file of 3 dimensions"),
        ("t10k-labels-idx1-ubyte.gz", idx(0xD01, np.array([1, 2], dtype=np.uint8)), "does not begin with 0x00000801"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(b"\0\0", mtime=0), "not an idx file of 1 dimensions"),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(gzip.decompress(idx(0x803, TRAIN_IMAGES))[:-1], mtime=0),
            "holds 59 values, its header says 60",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            idx(0x801, np.array([7, 0], dtype=np.uint8)),
            "holds 2 labels for 3 images",
        ),
        ("train-images-idx3-ubyte.gz", b"plain text", "not a gzip file"),
        ("train-images-idx3-ubyte.gz", idx(0x803, TRAIN_IMAGES)[:-12], "not a gzip file"),
    ],
)
def test_idx_file_that_is_not_one_is_named(provide: Provide, tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    provide("mnist", MNIST | {f"mnist/{name}": content})
    with pytest.raises(DataError, match=complaint) as raised:
        load("mnist", tmp_path)
    assert str(raised.value).startswith(str(tmp_path / "mnist" / name))


@pytest.mark.parametrize("content", [b"", bytes(3073), bytes(2 * 3074 - 1)])
def test_cifar_file_of_wrong_length_is_named(provide: Provide, tmp_path: Path, content: bytes) -> None:
    provide("cifar100", {"cifar-100-binary/train.bin": bytes(3074), "cifar-100-binary/test.bin": content})
    with pytest.raises(DataError, match=f"has {len(content)} bytes") as raised:
        load("cifar100", tmp_path)
    assert str(raised.value).startswith(str(tmp_path / "cifar-100-binary" / "test.bin"))


@pytest.mark.parametrize("download", [True, False])
def test_files_are_verified_before_they_are_parsed(provide: Provide, tmp_path: Path, download: bool) -> None:
    provide("mnist", MNIST)
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(idx(0x801, np.array([2, 1], dtype=np.uint8)))  # well-formed, yet not the known file
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is damaged"):
        load("mnist", tmp_path, download=download)


def test_a_missing_file_is_downloaded_unless_told_otherwise(provide: Provide, tmp_path: Path) -> None:
    provide("mnist", MNIST)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is missing"):
        load("mnist", tmp_path, download=False)
    with pytest.raises(DataError, match="cannot download mnist"):  # nobody answers on port 0
        load("mnist", tmp_path)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
        load("minst")


def test_every_data_set_has_its_files_registered() -> None:
    assert known_datasets() == ("digits", "mnist", "cifar10", "cifar100") == tuple(FILE_SETS)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load("digits", tmp_path_factory.mktemp("empty"), download=False)


def test_digits_have_their_shapes_and_range(digits: Dataset) -> None:
    assert_types(digits)
    assert digits.train_x.shape[1:] == digits.test_x.shape[1:] == (1, 8, 8)
    assert len(digits.train_x) == len(digits.train_y) == 1442
    assert len(digits.test_x) == len(digits.test_y) == 355
    assert digits.train_x.min() == 0
    assert digits.train_x.max() == digits.scale == 16
    assert digits.number_of_classes == 10


def test_digits_are_split_into_disjoint_parts_that_cover_all(digits: Dataset) -> None:
    def rows(x: torch.Tensor, y: torch.Tensor) -> set[tuple[int, ...]]:
        return {(*image, label) for image, label in zip(x.flatten(1).tolist(), y.tolist(), strict=True)}

    train, test = rows(digits.train_x, digits.train_y), rows(digits.test_x, digits.test_y)
    original = load_digits()
    everything = rows(torch.tensor(original.data), torch.tensor(original.target))
    assert len(everything) == 1797  # all examples differ, so sets tell the whole story
    assert not train & test
    assert train | test == everything


def test_every_fifth_digit_of_each_class_is_a_test_example(digits: Dataset) -> None:
    original = load_digits()
    for label in range(10):
        of_class = original.images[original.target == label]
        assert np.array_equal(digits.test_x[digits.test_y == label, 0].numpy(), of_class[4::5])
        assert np.array_equal(digits.train_x[digits.train_y == label, 0].numpy(), np.delete(of_class, np.s_[4::5], axis=0))


@pytest.mark.parametrize("read_by", ["us", "scikit-learn"])
def test_digits_are_the_same_every_time(digits: Dataset, tmp_path: Path, read_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if read_by == "scikit-learn":
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    again = load("digits", tmp_path)
    for part in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(digits, part), getattr(again, part))
