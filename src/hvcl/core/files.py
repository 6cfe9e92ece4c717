"""Files that are there whole or not at all. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from hvcl.core.errors import RunError


def write_atomically(path: Path, *parts: bytes | memoryview | str) -> None:
    """Write to a temporary name beside `path`, flush to disk, move into place; text is encoded as UTF-8.

    Whatever happens, `path` holds either what it held before or all of `content`, and no temporary file is left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def checksum(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


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
            raise RunError(f"{path} is damaged, or was changed by hand: its checksum does not match")
        return content
    if required:
        raise RunError(f"{path} is damaged: its checksum is missing")
    return document


def _seal(content: dict[str, Any]) -> str:
    return checksum(json.dumps(content, sort_keys=True).encode())
