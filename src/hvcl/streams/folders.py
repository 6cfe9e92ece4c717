"""Folders of pictures, a folder a class, as data sets: what torchvision calls an ImageFolder."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hvcl.core.errors import DataError, InputError
from hvcl.streams.datasets import Dataset
from hvcl.streams.own import GREY, HELD_OUT, picture
from hvcl.streams.tasks import held_out_rows

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Of files that are pictures; others are passed over."""

TEST_FOLDERS = ("test", "val")
"""Beside "train", the first that is there holds the test pictures."""

SPLIT_SEED = 0
"""Of the pictures that are test data where there is no folder of them: the same for all runs."""

MOST_BYTES = 4 * 10**9
"""Pixels that are kept in memory, at most."""


@dataclass(frozen=True, eq=False)
class PictureFolder:
    """The pictures of a folder, whole in memory."""

    data: Dataset
    classes: tuple[str, ...]
    """Names of the classes, in the order of their labels: sorted."""


def read_folder(folder: Path, size: int | None = None) -> PictureFolder:
    """Read DIR/train/CLASS/... and DIR/test/CLASS/... (or val), or DIR/CLASS/... without such folders.

    Where there is no test folder, a fifth of the pictures of each class, drawn with the fixed seed 0, are test data. If all
    pictures are grey they have one channel, else three. The orientation that cameras note in a file is obeyed.

    Args:
        folder: DIR.
        size: side in pixels that pictures are resized to, whatever their proportions; None: all must have one size, and keep it.

    Raises:
        DataError: there is no such folder, there are no pictures in it, or one cannot be read; names the file.
        InputError: the pictures are of different sizes and no size is given, or they do not fit into memory.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is {'a file' if folder.exists() else 'missing'}: give a folder that has a folder a class")
    if size is not None and not 1 <= size <= 4096:
        raise InputError(f"size must lie between 1 and 4096 pixels, got {size}")
    if importlib.util.find_spec("PIL") is None:
        raise InputError("reading pictures needs Pillow: pip install 'hvcl[pictures]'")
    train = folder / "train" if (folder / "train").is_dir() else folder
    test = next((folder / name for name in TEST_FOLDERS if train != folder and (folder / name).is_dir()), None)
    classes = _classes(train)
    files = _files(train, classes)
    test_files = []
    if test is not None:
        unknown = [name for name in _classes(test) if name not in classes]
        if unknown:
            raise DataError(f"{test / unknown[0]} is a class that {train} does not have")
        test_files = _files(test, [name for name in classes if (test / name).is_dir()])
    everything = [path for path, _ in files + test_files]
    pictures = _pictures(everything, size)
    place = {name: label for label, name in enumerate(classes)}
    labels = torch.tensor([place[name] for _, name in files + test_files])
    if test is not None:
        is_test = torch.arange(len(labels)) >= len(files)
    else:
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        is_test[held_out_rows(labels, HELD_OUT, SPLIT_SEED, names=classes)] = True
    parts = (pictures[~is_test], labels[~is_test], pictures[is_test], labels[is_test])
    return PictureFolder(Dataset(folder.name, *parts, 255.0), tuple(classes))


def _classes(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise DataError(f"{folder} has no folders in it: there must be one for each class, with its pictures")
    return found


def _files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, str]]:
    """Every picture with its class."""
    found = []
    for name in classes:
        inside = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
        if not inside:
            raise DataError(f"{folder / name} holds no pictures ({', '.join(ENDINGS)})")
        found += [(path, name) for path in inside]
    return found


def _pictures(files: Sequence[Path], size: int | None) -> Tensor:
    """All pictures ``[N, 1 or 3, height, width]``, bytes."""
    first: tuple[int, int] | None = None
    found: list[Tensor] = []
    kept = 0
    for path in files:
        tensor = _read(path, size)
        shape = (tensor.shape[2], tensor.shape[1])
        first = first or shape
        if shape != first:
            sizes = f"{files[0]} has {first[0]} x {first[1]} pixels, {path} {shape[0]} x {shape[1]}"
            raise InputError(f"the pictures are of different sizes ({sizes}): say what they are to be resized to, e.g. --size 32")
        kept += tensor.numel()
        if kept > MOST_BYTES:
            raise InputError(
                f"the pictures have more than {MOST_BYTES / 1e9:.0f} GB of pixels, all kept in memory: give a smaller --size"
            )
        found.append(tensor)
    channels = max(tensor.shape[0] for tensor in found)
    return torch.stack([tensor.expand(channels, -1, -1) for tensor in found])


def _read(path: Path, size: int | None) -> Tensor:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual but readable files
            with Image.open(path) as file:
                image = ImageOps.exif_transpose(file)
                if size is not None:
                    # a palette's numbers have no mean: colours first
                    plain = image.convert("L" if image.mode in GREY else "RGB")
                    image = plain.resize((size, size), Image.Resampling.BILINEAR)
                return picture(image)
    except UnidentifiedImageError:
        raise DataError(f"{path} cannot be read: it is no picture, or it is damaged") from None
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
