"""Safe files: written whole or not at all, checked when read, and nothing is ever unpickled.

Nested state is saved without pickling: tensors in safetensors, the rest in JSON. A checkpoint is a pair:
`NAME-<number>.safetensors` with the tensors, and `NAME.json`, which holds everything else and names the tensor file with its
checksum and one of itself. The tensors are written first under a new name, then the JSON is moved into place: whatever moment a
process is killed, the JSON that is there belongs to tensors that are there whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hvcl.core.errors import RunError
from hvcl.core.files import checksum, is_sealed, read_json, write_atomically, write_json
from hvcl.core.manifest import note_unchecked
from hvcl.core.state import join_tensors, split_tensors


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Save nested dicts and lists of tensors and plain values as `path` (JSON) and a tensor file beside it."""
    plain, tensors = split_tensors(state)
    content = save(tensors)
    number = _number_of(path) + 1
    name = f"{path.stem}-{number}.safetensors"
    write_atomically(path.with_name(name), content)
    write_json(path, {"format": 1, "number": number, "tensors": name, "sha256": checksum(content), "state": plain}, sealed=True)
    for old in path.parent.glob(f"{path.stem}-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def load_state(path: Path) -> dict[str, Any]:
    """What `save_state` saved; a damaged file raises `RunError` and names it."""
    document = read_json(path)
    try:
        name, digest, plain = str(document["tensors"]), document["sha256"], document["state"]
    except (KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: it is not a checkpoint ({error})") from None
    if re.fullmatch(rf"{re.escape(path.stem)}-\d+\.safetensors", name) is None:
        raise RunError(f"{path} is damaged: {name!r} is no name of its tensors' file")
    if not is_sealed(path):
        note_unchecked(path)
    tensor_path = path.with_name(name)
    try:
        content = tensor_path.read_bytes()
    except OSError as error:
        raise RunError(f"{tensor_path} cannot be read ({error.strerror}): the checkpoint is damaged") from None
    if checksum(content) != digest:
        raise RunError(f"{tensor_path} is damaged: its checksum does not match. Start the run anew with --force")
    try:
        state: dict[str, Any] = join_tensors(plain, load(content))
    except SafetensorError as error:
        raise RunError(f"{tensor_path} is damaged ({error})") from None
    except KeyError as error:
        raise RunError(f"{path} is damaged: {tensor_path.name} has no tensor {error}") from None
    return state


def _number_of(path: Path) -> int:
    if not path.exists():
        return 0
    document = read_json(path)
    number = document.get("number") if isinstance(document, dict) else None
    return number if isinstance(number, int) else 0


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in a nested state."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(tensor_bytes(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(item) for item in value)
    return 0
