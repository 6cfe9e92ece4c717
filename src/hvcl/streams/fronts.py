"""Fixed features of a data set's pictures in the place of the pictures: a front that every method has alike."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from hvcl.core.errors import DataError, RunError
from hvcl.core.files import checksum
from hvcl.core.storage import load_state, save_state
from hvcl.features import PatchFeatures, PrincipalDirections
from hvcl.streams.datasets import Dataset
from hvcl.streams.files import data_folder

VERSION = 1
"""Of the features' arithmetic: raised where other numbers come out, so that kept ones are made anew."""

CHUNK = 500
"""Pictures whose features are computed at a time."""


@dataclass(frozen=True)
class Front:
    """Principal directions of patch features, fitted to the first pictures of the first task, without their labels.

    It is a part of the benchmark, as the permutations of permuted-mnist are: the same for every method and every seed.
    """

    filters: int = 500
    """Filters of `PatchFeatures`."""
    sizes: tuple[int, ...] = (5, 8)
    """Sizes of their patches in pixels."""
    grid: int = 2
    """Cells across and down that responses are pooled over."""
    mirror: bool = True
    """Pool over a picture and its mirror image."""
    directions: int = 1000
    """Principal directions of these features."""
    examples: int = 2000
    """Pictures that patches and directions are fitted to."""

    def apply(self, name: str, data: Dataset, first: Tensor, folder: Path | None = None) -> Dataset:
        """The data set with features ``[N, directions]`` in the place of pictures.

        They are computed once and kept in `features/` of the data folder (four kilobytes a picture), which may be deleted at any
        time: what is missing, damaged or of another front is made anew.

        Args:
            name: of the benchmark, and of the files.
            first: rows of the first task's training pictures.
            folder: the data folder, `data_folder()` unless given.
        """
        shown = data.train_x[first[: self.examples]]
        made = {"version": VERSION, "front": asdict(self), "data": data.name, "fitted to": checksum(shown.numpy().tobytes())}
        made = json.loads(json.dumps(made))  # as it reads back from its file
        path = (folder or data_folder()) / "features" / f"{name}.json"
        kept = _kept(path, made)
        if kept is None:
            patches, directions = self._fit(shown / data.scale)
            pictures = torch.cat([data.train_x, data.test_x])
            chunks = _shown(f"{name}: features of {len(pictures):,} pictures, once", pictures.split(CHUNK))
            features = torch.cat([directions(patches(chunk / data.scale)) for chunk in chunks])
            kept = {"made": made, "train": features[: len(data.train_x)], "test": features[len(data.train_x) :]}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                save_state(path, kept)
            except OSError as error:
                raise DataError(
                    f"cannot keep features in {path.parent} ({error.strerror}): make room, or set HVCL_DATA"
                ) from None
        return replace(data, train_x=kept["train"], test_x=kept["test"], scale=1.0)

    def _fit(self, x: Tensor) -> tuple[PatchFeatures, PrincipalDirections]:
        patches = PatchFeatures(tuple(x.shape[1:]), self.filters, sizes=self.sizes, grid=self.grid, mirror=self.mirror)
        patches.fit(x)
        directions = PrincipalDirections(patches.features, self.directions)
        directions.fit(patches(x))
        return patches, directions


def _kept(path: Path, made: Any) -> Any:
    """What was saved there, if it was made in this way and is whole."""
    if not path.exists():
        return None
    try:
        kept = load_state(path)
    except RunError:
        return None
    return kept if kept.get("made") == made else None


def _shown(what: str, chunks: Any) -> Any:
    """The chunks, with a bar on a terminal, and else a line."""
    if sys.stderr.isatty():
        return track(chunks, what, console=Console(stderr=True), transient=True)
    print(what, file=sys.stderr, flush=True)
    return chunks
