"""What installed packages add, found by their entry points."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Container

_loaded: set[str] = set()


def load_plugins(group: str, known: Container[str]) -> None:
    """Import what installed packages name in the entry points `group`, once in a process.

    An entry point is called as the thing it adds (``mine = "my_package.mine"``), and importing it must register that name. One
    that fails, or registers nothing of that name, is a warning that names its package; all the others still count.

    Args:
        group: of the entry points, e.g. "hvcl.methods".
        known: the names that are registered; importing adds to them.
    """
    if group in _loaded:
        return
    _loaded.add(group)  # first: what is imported may ask for names itself
    for entry in importlib.metadata.entry_points(group=group):
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            entry.load()
            reason = "" if entry.name in known else f"importing {entry.value} registers no such name"
        except Exception as error:  # somebody else's code, which must not take everything else down
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if reason:
            warnings.warn(f"{entry.name!r} of the package {package!r} is left out ({reason})", stacklevel=3)
