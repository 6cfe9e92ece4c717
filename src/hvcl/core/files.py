"""Files that are there whole or not at all. Needs no torch."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hvcl.core.errors import RunError

TEMPORARY = ".tmp"
"""How names of files end that are being written; they begin with a dot."""


def write_atomically(path: Path, *parts: bytes | memoryview | str) -> None:
    """Write where `path` points to: beside it without a name, flushed to disk, moved into place; text is encoded as UTF-8.

    Whatever happens, `path` holds either what it held before or all of `content`, and no temporary file is left behind. A link
    stays what it is, and the file that it names is written; a terminal or a pipe is written to; anything else that is no file
    raises an `OSError`.
    """
    target = Path(os.path.realpath(path))
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    if stat.S_ISCHR(kind) or stat.S_ISFIFO(kind):
        with path.open("wb", buffering=0) as stream:
            _write(stream, parts)
        return
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "it is neither a file nor a terminal nor a pipe", str(path))
    with _new_file(target.parent) as (file, place):
        _write(file, parts)
        file.flush()
        os.fsync(file.fileno())
        place(target)


def _write(file: IO[bytes], parts: Sequence[bytes | memoryview | str]) -> None:
    for part in parts:
        content = memoryview(part.encode() if isinstance(part, str) else part)
        while content:  # a pipe takes what it has room for
            content = content[file.write(content) :]


@contextmanager
def _new_file(folder: Path) -> Iterator[tuple[IO[bytes], Callable[[Path], None]]]:
    """A file to be written, and what gives it its name at the end; whatever happens before, nothing of it is left.

    On Linux it has no name until then, so that even a process that is killed leaves nothing behind.
    """
    temporary = folder / f".{secrets.token_hex(8)}{TEMPORARY}"
    nameless = _open_nameless(folder)

    def place(target: Path) -> None:
        if nameless is not None:
            here = os.open(folder, os.O_RDONLY)
            try:
                os.link(f"/proc/self/fd/{nameless.fileno()}", temporary.name, dst_dir_fd=here, follow_symlinks=True)
            finally:
                os.close(here)
        temporary.replace(target)

    try:
        with nameless or temporary.open("xb") as file:
            yield file, place
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _open_nameless(folder: Path) -> IO[bytes] | None:
    """None where the system or the file system has no such files."""
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    except OSError:
        return None


def remove_temporary(folder: Path) -> None:
    """Remove what a process that was killed may have left in `folder`, to which no other process writes."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def checksum(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_checksum(path: Path) -> str:
    """That of a file, which need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SEAL = "seal"
"""Key of a JSON document's checksum of all the rest of it."""


def write_json(path: Path, value: Any, *, sealed: bool = False) -> None:
    """`value` as indented JSON, written atomically. Numbers survive exactly; NaN and infinity are refused.

    An object can be `sealed`: `read_json` then notices if a single character of its content has changed.
    """
    if sealed:
        plain = json.loads(json.dumps(value, allow_nan=False))  # keys become texts, as they will be read
        value = plain | {SEAL: _seal(plain)}
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path, *, sealed: bool = False) -> Any:
    """The content of a JSON file, without its seal, or a `RunError` that names it.

    A seal must fit wherever there is one; with `sealed` there must be one.
    """
    try:
        return unsealed(json.loads(path.read_bytes()), path, required=sealed)
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged and cannot be read ({error})") from None


def is_sealed(path: Path) -> bool:
    """Whether a JSON file is there, can be read, and has a seal, whether or not that fits."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and SEAL in document


def unsealed(document: Any, path: Path, *, required: bool = False) -> Any:
    """The content of a JSON file without its seal; a `RunError` if the seal does not fit."""
    if isinstance(document, dict) and SEAL in document:
        content = {key: value for key, value in document.items() if key != SEAL}
        if document[SEAL] != _seal(content):
            raise RunError(
                f"{path} is damaged, or was changed by hand: its checksum does not match. Restore it from a copy, or make it anew"
            )
        return content
    if required:
        raise RunError(f"{path} is damaged: its checksum is missing")
    return document


def _seal(content: dict[str, Any]) -> str:
    return checksum(json.dumps(content, sort_keys=True).encode())
