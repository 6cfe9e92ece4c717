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


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON, written atomically. Numbers survive exactly; NaN and infinity are refused."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or a `RunError` that names it."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged and cannot be read ({error})") from None
