"""Typed access to the JSON of a run folder; whatever is missing or does not fit raises a `RunError` that names its place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from hvcl.core.errors import RunError
from hvcl.core.files import unsealed

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

_Value = TypeVar("_Value")


class Fields:
    """Typed access to one JSON object; whatever does not fit raises a `RunError` that says where it stands."""

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, dict):
            raise RunError(f"{where} is damaged: it is not a JSON object")
        self.values: Mapping[str, object] = values
        self.where = where

    def get(self, name: str) -> object:
        """Any value, unchecked; None if there is none."""
        return self.values.get(name)

    def text(self, name: str) -> str:
        """A string."""
        return self.parsed(name, "text", lambda value: instance(value, str))

    def integer(self, name: str) -> int:
        """A whole number."""
        return self.parsed(name, "a whole number", lambda value: instance(value, int))

    def count(self, name: str) -> int:
        """A whole number of at least 0."""
        return self.parsed(name, "a whole number of at least 0", count)

    def number(self, name: str) -> float:
        """A number; null, which stands for infinite or not a number, is NaN."""
        return self.parsed(name, "a number", number)

    def mapping(self, name: str) -> Mapping[str, object]:
        """An object, whatever is in it."""
        return self.parsed(name, "an object", lambda value: instance(value, dict))

    def items(self, name: str, kind: type[_Value]) -> tuple[_Value, ...]:
        """A list of values of one kind."""
        expected = f"a list of {kind.__name__}"
        return self.parsed(name, expected, lambda value: tuple(instance(item, kind) for item in instance(value, list)))

    def vector(self, name: str, length: int) -> Vector:
        """A list of `length` numbers."""
        return self.parsed(name, f"a list of {length} numbers", lambda value: row(value, length))

    def numbers(self, name: str) -> Vector:
        """A list of numbers."""
        return self.parsed(name, "a list of numbers", row)

    def matrix(self, name: str, rows: int, columns: int | None = None) -> Matrix:
        """A list of `rows` lists of numbers, of `columns` each if that is given."""

        def parse(value: object) -> Matrix:
            entries = instance(value, list)
            if len(entries) != rows:
                raise TypeError
            return tuple(row(entry, columns) for entry in entries)

        return self.parsed(name, f"a matrix of {rows} x {columns or 'any'} numbers", parse)

    def numbers_by_name(self, name: str) -> Mapping[str, float]:
        """An object whose values are numbers."""
        values = self.mapping(name)
        return self.parsed(name, "numbers by name", lambda _: {key: number(value) for key, value in values.items()})

    def counts_by_name(self, name: str) -> Mapping[str, int]:
        """An object whose values are whole numbers of at least 0."""
        values = self.mapping(name)
        return self.parsed(name, "counts by name", lambda _: {key: count(value) for key, value in values.items()})

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [Fields(value, f"{self.where}, {name!r},") for value in self.items(name, dict)]

    def children(self, name: str) -> dict[str, Fields]:
        """An object whose values are objects."""
        return {key: Fields(value, f"{self.where}, {key!r} in {name!r},") for key, value in self.mapping(name).items()}

    def parsed(self, name: str, expected: str, parse: Callable[[object], _Value]) -> _Value:
        """What `parse` makes of a value; its `TypeError` becomes a `RunError`: the value is not what was `expected`."""
        if name not in self.values:
            raise RunError(f"{self.where} is damaged: {name!r} is missing")
        try:
            return parse(self.values[name])
        except (TypeError, OverflowError):
            raise RunError(f"{self.where} is damaged: {name!r} is not {expected}") from None


def read_fields(path: Path) -> Fields:
    """The object in a JSON file."""
    return parse_fields(read_bytes(path), path)


def parse_fields(content: bytes, path: Path) -> Fields:
    """The object in the content of a JSON file."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise RunError(f"{path} is damaged: it is not valid JSON") from None
    return Fields(unsealed(values, path), str(path))


def parse_lines(content: bytes, path: Path) -> Iterator[Fields]:
    """The objects in a file of JSON lines, without a last line that a killed run left half written."""
    lines = content.rstrip(b" \r\n").split(b"\n")
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            if place == len(lines) and (place > 1 or line.startswith(b"{")) and not content.endswith(b"\n"):
                return
            raise RunError(f"{path}, line {place}, is damaged: it is not valid JSON") from None
        yield Fields(values, f"{path}, line {place},")


def read_bytes(path: Path) -> bytes:
    """The content of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} is missing: {path.parent} is not a complete run folder") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


def number(value: object) -> float:
    """A JSON number as a float, null as NaN; otherwise a `TypeError`."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value) if math.isfinite(value) else math.nan


def row(value: object, length: int | None = None) -> Vector:
    """A JSON list of numbers, of `length` if that is given; otherwise a `TypeError`."""
    if not isinstance(value, list) or length not in (None, len(value)):
        raise TypeError
    return tuple(number(entry) for entry in value)


def count(value: object) -> int:
    """A JSON number that is whole and not negative; otherwise a `TypeError`."""
    whole = instance(value, int)
    if whole < 0:
        raise TypeError
    return whole


def instance(value: object, kind: type[_Value]) -> _Value:
    """A value of one kind (a JSON boolean is no number); otherwise a `TypeError`."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    return value
