"""Labelled images, whole in memory, as the streams take them.

Files are verified by checksum before they are parsed, and nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hvcl.core.errors import DataError, UnknownNameError
from hvcl.streams.files import data_folder, fetch, verify

Bytes = npt.NDArray[np.uint8]
Labelled = tuple[Bytes, Bytes]
"""Images [N, C, H, W] and labels [N]."""


@dataclass(frozen=True, eq=False)  # comparing tensors gives tensors, not a truth value
class Dataset:
    """Images and labels, split into training and test examples."""

    name: str
    train_x: Tensor
    """uint8 [N, C, H, W]; float32 [N, D] where fixed features take the place of pictures"""
    train_y: Tensor
    """int64 [N], classes counted from 0"""
    test_x: Tensor
    """likewise [M, ...]"""
    test_y: Tensor
    """int64 [M]"""
    scale: float
    """The largest value a pixel can have: divide by it to land in [0, 1]."""

    @property
    def number_of_classes(self) -> int:
        """How many classes the training examples have."""
        return int(self.train_y.max()) + 1


def known_datasets() -> tuple[str, ...]:
    """The names that `load` takes."""
    return tuple(_READERS)


def load(name: str, folder: Path | None = None, download: bool = True) -> Dataset:
    """Read a data set into memory.

    - "digits": 8 x 8 grey digits, embedded in scikit-learn, needs no files. It has no official split: here every fifth
      example of each class, in the order of the file, is a test example (the 5th, 10th, 15th, ...).
    - "mnist": 28 x 28 grey digits. "cifar10", "cifar100": 32 x 32 colour photographs; of CIFAR-100 the 100 fine labels.

    :param folder: the data folder, `hvcl.streams.files.data_folder()` unless given.
    :param download: fetch missing files; without it a missing file raises `DataError`, as a damaged one always does.
    """
    if name not in _READERS:
        raise UnknownNameError("data set", name, _READERS)
    folder = folder or data_folder()
    if download:
        fetch(name, folder)
    else:
        verify(name, folder)
    read, scale = _READERS[name]
    (train_x, train_y), (test_x, test_y) = read(folder)
    return Dataset(name, _images(train_x), _labels(train_y), _images(test_x), _labels(test_y), scale)


def _images(images: Bytes) -> Tensor:
    return torch.from_numpy(np.array(images, order="C"))


def _labels(labels: Bytes) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _digits(_: Path) -> tuple[Labelled, Labelled]:
    table = _digits_table()
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    is_test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        is_test[np.flatnonzero(labels == label)[4::5]] = True
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def _digits_table() -> Bytes:
    """A digit in each row, its label last: read from scikit-learn's file, because importing scikit-learn takes a second."""
    spec = importlib.util.find_spec("sklearn")
    path = Path(spec.origin if spec and spec.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        return np.loadtxt(path, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits  # wherever this version has it

    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.uint8)


def _mnist(folder: Path) -> tuple[Labelled, Labelled]:
    def part(prefix: str) -> Labelled:
        images = _read_idx(folder / "mnist" / f"{prefix}-images-idx3-ubyte.gz", dimensions=3)
        path = folder / "mnist" / f"{prefix}-labels-idx1-ubyte.gz"
        labels = _read_idx(path, dimensions=1)
        if len(labels) != len(images):
            raise DataError(f"{path} holds {len(labels)} labels for {len(images)} images")
        return images[:, None], labels

    return part("train"), part("t10k")


def _cifar10(folder: Path) -> tuple[Labelled, Labelled]:
    folder = folder / "cifar-10-batches-bin"
    batches = [_read_cifar(folder / f"data_batch_{batch}.bin", label_bytes=1) for batch in range(1, 6)]
    images, labels = zip(*batches, strict=True)
    return (np.concatenate(images), np.concatenate(labels)), _read_cifar(folder / "test_batch.bin", label_bytes=1)


def _cifar100(folder: Path) -> tuple[Labelled, Labelled]:
    folder = folder / "cifar-100-binary"
    return _read_cifar(folder / "train.bin", label_bytes=2), _read_cifar(folder / "test.bin", label_bytes=2)


def _read_idx(path: Path, dimensions: int) -> Bytes:
    """Parse a gzipped idx file of bytes: magic number and sizes as big-endian 32-bit integers, then the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a gzip file: {error}") from error
    magic = 0x800 + dimensions  # 8: unsigned bytes
    header_bytes = 4 * (1 + dimensions)
    if len(content) < header_bytes or int.from_bytes(content[:4], "big") != magic:
        raise DataError(f"{path} is not an idx file of {dimensions} dimensions: it does not begin with {magic:#010x}")
    sizes = [int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4)]
    if len(content) - header_bytes != math.prod(sizes):
        raise DataError(f"{path} holds {len(content) - header_bytes} values, its header says {math.prod(sizes)}")
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(sizes)


def _read_cifar(path: Path, label_bytes: int) -> Labelled:
    """Parse CIFAR's binary records: the labels, of which the last is the finest, then 3 x 32 x 32 pixels."""
    content = np.fromfile(path, dtype=np.uint8)
    record_bytes = label_bytes + 3 * 32 * 32
    if not len(content) or len(content) % record_bytes:
        raise DataError(f"{path} has {len(content)} bytes, which is not a number of records of {record_bytes} bytes")
    records = content.reshape(-1, record_bytes)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


_READERS: dict[str, tuple[Callable[[Path], tuple[Labelled, Labelled]], float]] = {
    "digits": (_digits, 16.0),
    "mnist": (_mnist, 255.0),
    "cifar10": (_cifar10, 255.0),
    "cifar100": (_cifar100, 255.0),
}
"""How each data set is read from the data folder, and its scale."""
