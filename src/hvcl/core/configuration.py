"""Configurations are dataclasses with a docstring under each field; this makes help texts and options from them."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import re
import textwrap
import types
from enum import StrEnum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hvcl.core.errors import InputError


def field_help(config: type[Any]) -> dict[str, str]:
    """The docstring under each field of a dataclass, those of its bases included."""
    texts: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, [*definition.body[1:], None], strict=True):
            if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
                continue
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                texts[statement.target.id] = str(following.value.value)
    return texts


def field_types(config: type[Any]) -> dict[str, Any]:
    """The resolved type of each field."""
    hints = get_type_hints(config)
    return {f.name: hints[f.name] for f in dataclasses.fields(config)}


def configure(config: type[Any], settings: dict[str, Any]) -> Any:
    """An instance of `config` with `settings`; unknown names and values of the wrong type raise `InputError`."""
    known = field_types(config)
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"unknown setting {name!r}: {hint}known are {', '.join(sorted(known))}")
    return config(**{name: _checked(name, value, known[name]) for name, value in settings.items()})


def parse(name: str, text: str, kind: Any) -> Any:
    """A value of type `kind` from the command line's text."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in options and text.lower() in ("none", "null"):
        return None
    for option in options:
        if option is type(None):
            continue
        try:
            return _parse_one(text, option)
        except ValueError:
            continue
    raise InputError(f"{name} must be {describe(kind)}, got {text!r}")


def _parse_one(text: str, kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        if text not in get_args(kind):
            raise ValueError(text)
        return text
    if origin is tuple:
        item = get_args(kind)[0]
        return tuple(item(part) for part in re.sub(r"(?<=\d)-(?=\d)", ",", text).split(",") if part.strip())
    if kind is bool:
        if text.lower() in ("true", "yes", "1"):
            return True
        if text.lower() in ("false", "no", "0"):
            return False
        raise ValueError(text)
    value = kind(text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(text)
    return value


def describe(kind: Any) -> str:
    """A type in words."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(kind))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if origin is tuple:
        return "a list of integers such as 256,256" if get_args(kind)[0] is int else "a list"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of " + ", ".join(kind)
    return {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "none"}.get(kind, str(kind))


MOST_SEEDS = 10_000
"""Seeds of one run."""
LARGEST = 1e15
"""The largest magnitude of a setting that is a number: squares of larger ones do not fit into a float32."""
LARGEST_INTEGER = 2**31 - 1
"""That of one that is a whole number."""


def _checked(name: str, value: Any, kind: Any) -> Any:
    """`value` if it is of type `kind` and of a size that can be meant."""
    found = _typed(name, value, kind)
    for number in found if isinstance(found, tuple) else (found,):
        most = LARGEST if isinstance(number, float) else LARGEST_INTEGER
        if isinstance(number, int | float) and abs(number) > most:
            raise InputError(f"{name} must lie between {-most:.4g} and {most:.4g}, got {number:.4g}")
    return found


def _typed(name: str, value: Any, kind: Any) -> Any:
    """`value` if it is of type `kind`; integers pass as numbers, lists as tuples (JSON has no tuples)."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for option in options:
        origin = get_origin(option)
        if isinstance(value, float) and not math.isfinite(value):
            break
        if option is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value) if abs(value) < LARGEST else math.copysign(2 * LARGEST, value)
        if origin is Literal and value in get_args(option):
            return value
        if origin is tuple and isinstance(value, list | tuple) and all(type(v) is get_args(option)[0] for v in value):
            return tuple(value)
        if isinstance(option, type) and issubclass(option, StrEnum) and value in list(option):
            return option(value)
        if origin is None and isinstance(option, type) and isinstance(value, option):
            if isinstance(value, bool) and option is not bool:
                continue
            return value
    raise InputError(f"{name} must be {describe(kind)}, got {value!r}")


def to_json(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values."""
    return {
        name: list(value) if isinstance(value, tuple) else str(value) if isinstance(value, StrEnum) else value
        for name, value in ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config))
    }
