"""Things by name."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from hvcl.core.errors import InputError, UnknownNameError

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Methods by name: a name is given away once, and asking for an unknown one names the nearest that is known."""

    def __setitem__(self, name: str, entry: Entry) -> None:
        if name in self:
            raise InputError(f"the method name {name!r} is taken by {self[name]}")
        super().__setitem__(name, entry)

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownNameError("method", name, self)


def first_line(documented: object, otherwise: str) -> str:
    """The first line of a docstring."""
    return (documented.__doc__ or otherwise).strip().splitlines()[0]
