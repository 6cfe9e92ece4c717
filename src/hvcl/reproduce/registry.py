"""Every table and figure by name."""

from __future__ import annotations

from hvcl.core.registry import Registry
from hvcl.reproduce.base import Reproduction

REPRODUCTIONS: Registry[Reproduction] = Registry("table or figure")
"""By name, in the order of the paper, then what goes beyond it."""


def add(*found: Reproduction) -> None:
    """Make tables and figures known by their names."""
    for one in found:
        REPRODUCTIONS[one.name] = one
