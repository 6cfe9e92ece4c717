"""The files of settings."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from hvcl.core.files import read_json, write_json

EVERY = "every-method"
"""The file of what a benchmark asks of all methods."""
FOLDER = Path(str(resources.files("hvcl.settings")))


@cache
def load_settings(method: str) -> dict[str, dict[str, Any]]:
    """A method's file, by benchmark: `stream`, `learner`, `searched`, `why`; empty for a method without one."""
    path = FOLDER / f"{method}.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found


def method_settings(benchmark: str, method: str) -> dict[str, Any]:
    """What a method's file says of its configuration on a benchmark: what was searched over what was chosen by hand."""
    found = load_settings(method).get(benchmark, {})
    return {**found.get("learner", {}), **found.get("searched", {})}


def save_searched(benchmark: str, method: str, settings: dict[str, Any], folder: Path = FOLDER) -> None:
    """Write what a search has found for a method on a benchmark, in place of what an earlier one had found."""
    path = folder / f"{method}.json"
    document = read_json(path) if path.is_file() else {}
    document.setdefault(benchmark, {})["searched"] = settings
    write_json(path, document)
    load_settings.cache_clear()
