"""Finding, checking and loading the compiled library.

A wheel carries libraries for several sets of instructions. Where there is none for the processor (an editable install, a platform
without a wheel), the sources are compiled at first use into the cache folder; that is said once. A library is code: one that is
damaged, or that another user could have put there, is not loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pooch  # type: ignore[import-untyped]
import torch

from hvcl.ops.build import CompilerError, compile_library, find_compiler, library_name
from hvcl.ops.header import prototypes, structures

_log = logging.getLogger("hvcl")

PACKAGED = Path(__file__).with_name("lib")
"""Where a wheel has its libraries."""


@dataclass(frozen=True)
class Library:
    """The loaded library, and what a run's record says of it."""

    functions: Any
    """The functions of hvcl.h, as attributes; arguments are numbers, addresses among them."""
    instructions: str
    """The set of instructions that it was compiled for."""
    compiler: str
    origin: str
    """packaged, or compiled at first use."""
    has_gemm: bool
    """Whether torch's own matrix products can be called from C: without them large products are better left to torch."""


class LibraryError(Exception):
    """Why there is no library."""


def facts() -> dict[str, str | None]:
    """What numbers may depend on: the set of instructions and the compiler of the loaded library, None without one."""
    library = load()
    if library is None:
        return {"kernels": None, "compiler": None}
    return {"kernels": library.instructions, "compiler": library.compiler}


@lru_cache(maxsize=1)
def load() -> Library | None:
    """The compiled library; None where there is none, which is said once. Set HVCL_NO_KERNELS to do without."""
    if os.environ.get("HVCL_NO_KERNELS"):
        return None
    try:
        return _load()
    except (LibraryError, CompilerError, OSError) as error:
        reason = " ".join(str(error).split())
        _log.warning("hvcl: no compiled code, everything runs in plain torch operations, several times slower: %s", reason)
        return None


def _load() -> Library:
    if sys.byteorder != "little":
        raise LibraryError("it is made for little-endian machines")
    chosen = os.environ.get("HVCL_LIBRARY")
    instructions = best_instructions()
    if chosen:
        path, origin = Path(chosen), "chosen by HVCL_LIBRARY"
    else:
        path, origin = PACKAGED / library_name(instructions), "packaged"
        if not intact(path, beside=Path(__file__)):
            path, origin = _compiled(instructions), "compiled at first use"
    functions = ctypes.CDLL(str(path))
    for name, (result, arguments) in prototypes().items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    for number, (name, structure) in enumerate(structures().items()):
        if functions.structure_size(number) != ctypes.sizeof(structure):
            raise LibraryError(f"the structure {name} of {path} has another size than hvcl.h says")
    gemm = _find_gemm()
    functions.use_gemm(gemm)
    return Library(functions, instructions, functions.compiled_by().decode(), origin, gemm is not None)


def best_instructions() -> str:
    """The set of instructions for this processor."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "baseline"
    return {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}.get(torch.backends.cpu.get_cpu_capability(), "baseline")


def _compiled(instructions: str) -> Path:
    """The library in the cache folder; compiled now if it is not there whole."""
    path = private_folder() / library_name(instructions)
    if intact(path):
        return path
    compiler = find_compiler()
    if compiler is None:
        raise LibraryError("there is no C compiler (install gcc, or a wheel of hvcl)")
    _log.warning("hvcl: compiling for %s, once (a few seconds)", instructions)
    compile_library(path, instructions, compiler)
    return path


def private_folder() -> Path:
    """The cache folder for libraries, if nobody else can write there; else one of this process alone."""
    folder = Path(pooch.os_cache("hvcl")) / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    reason = open_to_others(folder)
    if reason is None:
        return folder
    _log.warning(
        "hvcl: compiled code in %s is not used, %s: it is compiled anew for this process. "
        "Make the folder yours (chmod go-w), or point XDG_CACHE_HOME elsewhere",
        folder,
        reason,
    )
    own = tempfile.mkdtemp(prefix="hvcl-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


def open_to_others(path: Path) -> str | None:
    """Why others could have put something there, or None if they could not."""
    if not hasattr(os, "getuid"):
        return None
    status = path.stat()
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write to it"
    return None


def intact(path: Path, beside: Path | None = None) -> bool:
    """Whether a library is there as it was compiled, and nobody else could have put it there.

    One of a wheel may also belong to whoever the package's own files (`beside`) belong to, and be as open as those: who could
    change it could change the code that loads it.
    """
    try:
        digest = path.with_suffix(".sha256").read_text()
        if open_to_others(path) is not None and (beside is None or not _as_safe(path, beside)):
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except (OSError, UnicodeDecodeError):
        return False


def _as_safe(path: Path, other: Path) -> bool:
    """Whether a file has the owner of another, and may be written to by nobody who may not write to that."""
    mine, theirs = path.stat(), other.stat()
    return mine.st_uid == theirs.st_uid and not mine.st_mode & ~theirs.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _find_gemm() -> int | None:
    """Address of the matrix product (single precision, Fortran interface) that torch itself uses, if it is to be found."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if (folder / name).exists():
            try:
                return ctypes.cast(ctypes.CDLL(str(folder / name)).sgemm_, ctypes.c_void_p).value
            except (OSError, AttributeError):
                return None
    return None
