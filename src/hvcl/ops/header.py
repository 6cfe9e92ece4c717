"""The structures and prototypes of `csrc/hvcl.h`, as ctypes has them: read from the header, so that there is no second copy."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("csrc")

_TYPES: dict[str, Any] = {
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "void": None,
}


def _kind(declared: str) -> Any:
    """A C type: addresses are plain numbers."""
    return ctypes.c_void_p if "*" in declared else _TYPES[declared.replace("const ", "").strip()]


def _text() -> str:
    """The part of the header that is for Python, without comments."""
    whole = (SOURCES / "hvcl.h").read_text()
    return re.sub(r"/\*.*?\*/", "", whole[whole.index("/* [python */") : whole.index("/* python] */")], flags=re.DOTALL)


@cache
def structures() -> dict[str, type[ctypes.Structure]]:
    """The structures by name, in the order of the header."""
    found: dict[str, type[ctypes.Structure]] = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", _text(), flags=re.DOTALL):
        fields = [field for statement in body.split(";") if statement.strip() for field in _fields(statement.strip())]
        found[name] = type(name, (ctypes.Structure,), {"_fields_": fields, "__doc__": f"{name} of hvcl.h."})
    return found


def _fields(statement: str) -> list[tuple[str, Any]]:
    """The fields of one declaration, e.g. ``const float *left, *right``."""
    declared, names = re.fullmatch(r"((?:const )?\w+) (.*)", statement, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    return [(re.sub(r"[*\s]|const", "", name), _kind(declared + ("*" if "*" in name else ""))) for name in names.split(",")]


@cache
def prototypes() -> dict[str, tuple[Any, list[Any]]]:
    """Return type and argument types of every function."""
    text = re.sub(r"typedef struct \{.*?\} \w+;", "", _text(), flags=re.DOTALL)
    found: dict[str, tuple[Any, list[Any]]] = {}
    for result, name, arguments in re.findall(r"([\w ]+\*?)(\b\w+)\(([^)]*)\);", text):
        kinds = [_kind(re.sub(r"\w+$", "", argument.strip())) for argument in arguments.split(",") if argument != "void"]
        found[name] = (ctypes.c_char_p if "char" in result else _kind(result), kinds)
    return found
