"""The manifest of a folder: a checksum of each of its files, written last. Needs no torch.

A folder whose manifest is there is finished, and what it holds can be checked: a file that is read back either is what was
written, or is said to be damaged. Folders from before there were manifests are read as they are, and one warning says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.core.files import checksum, file_checksum, is_sealed, read_json, write_json

MANIFEST = "manifest.json"
REMEDY = "Restore it from a copy, or start the run anew with --force"

_log = logging.getLogger("hvcl")
_noted = False


@dataclass(frozen=True)
class Manifest:
    """What a folder held when its manifest was written."""

    folder: Path
    checksums: dict[str, str]
    """By path, relative to the folder."""

    @classmethod
    def write(cls, folder: Path) -> None:
        """The manifest of all that is in `folder` now; names that begin with a dot are of files under way."""
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        found = {path.relative_to(folder).as_posix(): file_checksum(path) for path in paths if path.name != MANIFEST}
        write_json(folder / MANIFEST, {"format": 1, "files": found}, sealed=True)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest of `folder`, if it has one; `RunError` if that is damaged."""
        path = folder / MANIFEST
        if not path.exists():
            return None
        document = read_json(path, sealed=True)
        if not isinstance(document, dict) or document.get("format") != 1 or not isinstance(document.get("files"), dict):
            raise RunError(f"{path} is damaged, or was written by a newer version of hvcl")
        return cls(folder, document["files"])

    def check(self, path: Path, content: bytes) -> None:
        """Raise a `RunError` unless `content` is what `path` held."""
        if self.checksums.get(path.relative_to(self.folder).as_posix()) != checksum(content):
            raise RunError(f"{path} is damaged, or was changed: it is not what {self.folder / MANIFEST} says. {REMEDY}")


def is_finished(folder: Path) -> bool:
    """Whether the seed of a run in `folder` has come to its end: its result is there, and so is its manifest.

    Where there never was a manifest, the result alone says so; a checkpoint with a seal tells that there should be one.
    """
    if not (folder / "result.json").exists():
        return False
    return (folder / MANIFEST).exists() or not is_sealed(folder / "checkpoint.json")


def note_unchecked(path: Path) -> None:
    """Warn, once in a process, that something was written before there were checksums."""
    global _noted
    if not _noted:
        _noted = True
        _log.warning("hvcl: %s was written before hvcl kept checksums of it: whether it is damaged cannot be checked", path)
