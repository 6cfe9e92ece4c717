"""What a result depends on besides its configuration: versions, commit, machine, compiled code."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from hvcl.ops import library

DECISIVE = ("kernels", "compiler", "torch")
"""What the last digits of a result depend on: instruction set and compiler of the compiled code, and torch."""


def environment(seed: int) -> dict[str, Any]:
    """Versions, commit, machine, compiled code (`kernels` is its instruction set, None without), threads."""
    return {
        "hvcl": importlib.metadata.version("hvcl"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        **library.facts(),
        "commit": _commit(),
        "seed": seed,
        "threads": 1,
    }


def decisive_changes(recorded: dict[str, Any]) -> list[str]:
    """How this process differs from a recorded environment in what numbers depend on; older records may lack some of it."""
    present: dict[str, Any] = {"torch": torch.__version__, **library.facts()}
    return [
        f"{name} {present[name] or 'none'} instead of {recorded[name] or 'none'}"
        for name in DECISIVE
        if name in recorded and recorded[name] != present[name]
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with a mark if it has changes; None when installed elsewhere."""
    folder = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None
