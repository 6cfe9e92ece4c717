"""Compiling the C sources: when a wheel is made, and at first use where there is no library for the processor.

Imports nothing but the standard library: `setup.py` loads this file before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).with_name("csrc")

INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "x86-64-v4": ("-march=x86-64-v4",),
    "x86-64-v3": ("-march=x86-64-v3",),
    "baseline": (),
}
"""Sets of instructions that libraries are made for, the best first, with the compiler's options."""

FLAGS = ("-std=gnu11", "-O3", "-ffast-math", "-fPIC", "-fvisibility=default")

# linked without -ffast-math: with it, loading the library would switch the whole process to flush-to-zero
LINKS = (("-shared", "-lmvec", "-lm"), ("-shared", "-lm"))


class CompilerError(Exception):
    """The sources could not be compiled; says why."""


def find_compiler() -> str | None:
    """The C compiler: $CC, cc or gcc."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def fingerprint() -> str:
    """What the sources are: changes with every one of them, and with the flags."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def library_name(instructions: str) -> str:
    """The file name of the library of the present sources for a set of instructions."""
    return f"hvcl-{instructions}-{fingerprint()}.so"


def compile_library(target: Path, instructions: str, compiler: str, more: tuple[str, ...] = ()) -> None:
    """Compile all sources into `target`, with its SHA-256 beside it (`target` with the ending .sha256).

    Raises:
        CompilerError: if the compiler does not do it; then there is nothing at `target` that was not there before.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder) / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.c"))]
        options = (*FLAGS, *INSTRUCTIONS[instructions], *more)
        running = [
            subprocess.Popen(
                [compiler, *options, "-c", str(SOURCES / f"{made.stem}.c"), "-o", str(made)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for made in objects
        ]
        errors = [process.communicate()[1] for process in running]
        for process, error in zip(running, errors, strict=True):
            if process.returncode:
                raise CompilerError(error.decode(errors="replace").strip()[:2000] or f"{compiler} failed")
        library = Path(folder) / target.name
        for link in LINKS:
            done = subprocess.run(
                [compiler, *more, *map(str, objects), *link, "-o", str(library)], capture_output=True, text=True, check=False
            )
            if not done.returncode:
                break
        else:
            raise CompilerError(done.stderr.strip()[:2000] or f"{compiler} failed to link")
        digest = Path(folder) / "digest"
        digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        library.chmod(0o755)
        os.replace(digest, target.with_suffix(".sha256"))
        os.replace(library, target)
