"""Things by name."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from hvcl.core.errors import InputError, UnknownNameError

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Methods, benchmarks, sequences of tasks by name.

    A name is given away once; asking for an unknown one raises an `UnknownNameError` with the nearest that is known.

    Args:
        kind: what is registered, as error messages call it: "method", "benchmark".
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __setitem__(self, name: str, entry: Entry) -> None:
        if name in self:
            raise InputError(f"the {self.kind} name {name!r} is taken by {self[name]}")
        super().__setitem__(name, entry)

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownNameError(self.kind, name, self)


def first_line(documented: object, otherwise: str) -> str:
    """The first line of a docstring."""
    return (documented.__doc__ or otherwise).strip().splitlines()[0]
