"""The files of one seed, each checked against what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.core.files import is_sealed, read_json
from hvcl.core.manifest import REMEDY, Manifest, is_finished, note_unchecked
from hvcl.report.fields import Fields, parse_fields, parse_lines, read_bytes


class SeedFiles:
    """The files of one seed, done or not; a `RunError` names one that is not what was written.

    Of a seed that is not done, the log counts up to the last checkpoint: what comes after it is logged again when the run goes
    on. Folders from before there were checksums are read as they are.

    Args:
        folder: of the seed; it need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.finished = is_finished(folder)
        self._manifest = Manifest.read(folder) if self.finished else None
        if self.finished and self._manifest is None:
            note_unchecked(folder)
        for name in self._manifest.checksums if self._manifest is not None else ():
            if not name.startswith("checkpoint") and not (folder / name).is_file():
                raise RunError(f"{folder / name} is missing. {REMEDY}")

    def result(self) -> Fields | None:
        """The summary, if the seed is done."""
        return self._fields("result.json") if self.finished else None

    def environment(self) -> Fields | None:
        """What else the numbers depend on, if that was written."""
        return self._fields("environment.json")

    def log(self) -> Iterator[Fields]:
        """The records of the log."""
        path = self.folder / "metrics.jsonl"
        known = None if self.finished else self._known()  # read before the log, which may be growing
        if not path.is_file():
            if known is not None and known[0]:
                raise RunError(f"{path} is missing. {REMEDY}")
            return iter(())
        content = self._content(path)
        if known is not None:
            size, checksum = known
            content = content[:size]
            if len(content) < size or hashlib.sha256(content).hexdigest() != checksum:
                raise RunError(f"{path} is damaged: it is not what was logged before the checkpoint. {REMEDY}")
        return parse_lines(content, path)

    def pictures(self) -> Iterator[tuple[Path, bytes]]:
        """What generators made, in the order of names."""
        for path in sorted((self.folder / "pictures").glob("*.png")):
            yield path, self._content(path)

    def _known(self) -> tuple[int, str] | None:
        """Length and checksum of the log at the last checkpoint; None if nobody has written them down."""
        checkpoint, environment = self.folder / "checkpoint.json", self.folder / "environment.json"
        if not checkpoint.is_file():
            return (0, hashlib.sha256().hexdigest()) if is_sealed(environment) else None
        document = read_json(checkpoint)
        if not is_sealed(checkpoint):
            note_unchecked(self.folder)
            return None
        try:
            return int(document["state"]["metrics_size"]), str(document["state"]["metrics_sha256"])
        except (KeyError, TypeError, ValueError):
            raise RunError(f"{checkpoint} is not the checkpoint of a run. {REMEDY}") from None

    def _fields(self, name: str) -> Fields | None:
        path = self.folder / name
        return parse_fields(self._content(path), path) if path.is_file() else None

    def _content(self, path: Path) -> bytes:
        content = read_bytes(path)
        if self._manifest is not None:
            self._manifest.check(path, content)
        return content
