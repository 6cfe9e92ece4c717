"""A model in one file: safetensors, with everything that is no tensor as JSON in its header.

The header's metadata hold two texts: "hvcl", a JSON document with the version of this format, what kind of thing was saved, how
to build it, and its state without the tensors; and "sha256", a checksum of the rest of the header and of all tensors. Nothing is
unpickled, and any program that reads safetensors can read the tensors.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from hvcl.core.errors import RunError
from hvcl.core.files import write_atomically
from hvcl.core.state import State, join_tensors, split_tensors

FORMAT = 1
"""Version of the document in the header."""

_METADATA, _DOCUMENT, _CHECKSUM = "__metadata__", "hvcl", "sha256"


def write_saved(path: Path, kind: str, description: dict[str, Any], state: State) -> None:
    """Write a model to `path`, atomically: at every moment there is the old file there, or the new one, whole.

    Args:
        path: of the file; its folder must exist.
        kind: of the model: "learner", "agent".
        description: plain values from which it can be built.
        state: what it remembers.
    """
    plain, tensors = split_tensors(state)
    document = {"format": FORMAT, "kind": kind, "version": importlib.metadata.version("hvcl"), **description, "state": plain}
    try:
        text = json.dumps(document, allow_nan=False)
    except ValueError:
        raise RunError(f"the {kind} is not saved: its state holds NaN or infinite numbers, it has diverged") from None
    header, data = _parse(save(tensors, {_DOCUMENT: text}))
    header[_METADATA][_CHECKSUM] = _checksum(header, data)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors begin at a multiple of eight bytes
    try:
        write_atomically(path, len(encoded).to_bytes(8, "little") + encoded, data)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror})") from None


def read_saved(path: Path, kind: str) -> tuple[dict[str, Any], State]:
    """The description and the state that `write_saved` wrote.

    Raises:
        RunError: the file is missing, damaged, of another kind, or of a newer version; says which.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from None
    try:
        header, data = _parse(content)
        document = json.loads(header[_METADATA][_DOCUMENT])
        version, found = int(document["format"]), str(document["kind"])
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{path} is no {kind} that hvcl has saved, or it is damaged") from None
    if version > FORMAT:
        raise RunError(f"{path} was saved by a newer version of hvcl (format {version}, this one reads {FORMAT}): upgrade hvcl")
    if header[_METADATA].get(_CHECKSUM) != _checksum(header, data):
        raise RunError(f"{path} is damaged: its checksum does not match")
    if found != kind:
        raise RunError(f"{path} holds a saved {found}, where a saved {kind} was expected")
    try:
        state: State = join_tensors(document.pop("state"), load(content))
    except (SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from None
    return document, state


def saved_kind(path: Path) -> str:
    """What kind of thing a file holds, from its header alone; `RunError` if it is none that hvcl has saved."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size) if size <= path.stat().st_size else b"")
        return str(json.loads(header[_METADATA][_DOCUMENT])["kind"])
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{path} is nothing that hvcl has saved, or it is damaged") from None


def _parse(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Header and tensors of a safetensors file; `ValueError` if it is none."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 + size:
        raise ValueError("shorter than its header says")
    header = json.loads(content[8 : 8 + size])
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header, memoryview(content)[8 + size :]


def _checksum(header: dict[str, Any], data: memoryview) -> str:
    metadata = {name: text for name, text in header[_METADATA].items() if name != _CHECKSUM}
    digest = hashlib.sha256(json.dumps(header | {_METADATA: metadata}, sort_keys=True).encode())
    digest.update(data)
    return digest.hexdigest()
