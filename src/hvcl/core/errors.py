"""Errors that tell the user what was wrong and what to do.

Everything that a user can cause (an unknown name, missing data, a damaged file, a bad batch) raises a subclass of
`HvclError`. The command line prints its message as one line and ends with exit code 2; a traceback there is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HvclError(Exception):
    """Base class of all errors that speak to the user."""


class InputError(HvclError, ValueError):
    """Data or arguments that do not fit: a wrong shape, NaN, an empty batch, a value out of range."""


class UnknownNameError(HvclError, KeyError):
    """A name that is not registered; the message names the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        self.message = f"unknown {kind} {name!r}: {hint}known are {', '.join(known)}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class DataError(HvclError):
    """A data set that is missing, truncated or altered, or could not be downloaded."""


class InterruptedRun(Exception):
    """A run was asked to stop. What it needs to go on is saved in its folder."""


class RunError(HvclError):
    """A run folder that cannot be used: it holds another run, or its files are damaged."""
