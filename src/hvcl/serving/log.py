"""A write-ahead log: what is acknowledged stands here, flushed to the disk, until the next snapshot holds it.

One JSON object a line, after the first sixteen digits of its SHA-256. A process that is killed while it writes leaves a last line
that is cut short or whose checksum does not match: it was never acknowledged, and is cut off. A line in the middle that does not
match is damage, and is never passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvcl.core.errors import RunError
from hvcl.core.files import checksum

Entry = dict[str, Any]

_DIGITS = 16


class Log:
    """An open log.

    Args:
        path: of the file; it is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        """What stood in the file when it was opened."""
        content = path.read_bytes() if path.exists() else b""
        self.entries, self.size = _parsed(path, content)
        """Bytes of whole lines."""
        self._file = path.open("ab", buffering=0)
        if self.size < len(content):
            self._file.truncate(self.size)
        self.sound = True
        """Whether the file holds exactly the lines that were appended; False after a failure."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Write lines and flush them to the disk, all of them or none.

        Raises:
            OSError: they are not written; the log takes no more, until a snapshot begins another.
        """
        if not self.sound:
            raise OSError("the log could not be written before")
        content = b"".join(_line(entry) for entry in entries)
        try:
            written = 0
            while written < len(content):
                written += self._file.write(content[written:])
            os.fsync(self._file.fileno())
        except OSError:
            self.sound = False
            try:
                self._file.truncate(self.size)
                os.fsync(self._file.fileno())
            except OSError:
                pass  # the next start cuts off what is not whole; nothing of it was acknowledged
            raise
        self.size += len(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(entry: Entry) -> bytes:
    text = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode()
    return checksum(text)[:_DIGITS].encode() + b" " + text + b"\n"


def _parsed(path: Path, content: bytes) -> tuple[list[Entry], int]:
    """The entries, and the bytes of all whole lines."""
    entries: list[Entry] = []
    size = 0
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        digest, _, text = line.removesuffix(b"\n").partition(b" ")
        if not line.endswith(b"\n") or checksum(text)[:_DIGITS].encode() != digest:
            if size + len(line) < len(content):
                raise RunError(f"{path} is damaged in line {number}, and lines follow it: restore it from a copy")
            break
        entries.append(json.loads(text))
        size += len(line)
    return entries, size
