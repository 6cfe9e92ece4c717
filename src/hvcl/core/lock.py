"""A lock that one process holds on what a file stands for, and that ends with the process, however it ends.

The kernel keeps it (`flock` on the open file), so nothing that a crash leaves behind can lock anybody out. The file says who
holds it, for people; it goes when the lock is given back. A process that is stopped holds its lock.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hvcl.core.errors import RunError

try:
    import fcntl
except ModuleNotFoundError:  # no Unix
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("hvcl")

_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_PAUSE_SECONDS = 0.05


@contextmanager
def locked(path: Path, subject: str, patience: float = 0.0) -> Iterator[None]:
    """Inside, no other process is inside with the same `path`; where the file system has no locks, a warning says so.

    Args:
        path: of the lock's file; its folder must be there.
        subject: what is locked, for the error.
        patience: seconds to wait for another process, e.g. one that is just being ended.

    Raises:
        RunError: another process holds the lock; says which.
    """
    file = _acquired(path, subject, patience)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: who waits for this file sees that it has gone, and takes a new one
        file.close()


def _acquired(path: Path, subject: str, patience: float) -> IO[str]:
    end = time.monotonic() + patience
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            if _try(file, path):
                file.truncate(0)
                json.dump({"pid": os.getpid(), "host": platform.node(), "command": " ".join(sys.argv)[:200]}, file)
                file.flush()
                return file
            holder = _holder(file)
        except BaseException:
            file.close()
            raise
        file.close()
        if holder is not None and time.monotonic() >= end:
            raise RunError(f"{subject} is in use by {holder}: let it end, or end it; or choose another folder")
        if holder is not None:
            time.sleep(_PAUSE_SECONDS)


def _try(file: IO[str], path: Path) -> bool:
    """Whether the lock is held now, on the file that is at `path`."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        _log.warning("hvcl: %s cannot be locked (%s): see to it that no other process writes there", path.parent, error.strerror)
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(file: IO[str]) -> str | None:
    """Who holds the lock of an open file, in words; None if the file has gone, and the lock with it."""
    if os.fstat(file.fileno()).st_nlink == 0:
        return None
    file.seek(0)
    try:
        found = json.loads(file.read())
        pid, host, command = int(found["pid"]), str(found["host"]), str(found["command"])
    except (ValueError, KeyError, TypeError):  # it is just being written
        return "another process"
    if host != platform.node():
        return f"process {pid} on {host} ({command})"
    if pid == os.getpid():
        return "this process"
    return f"process {pid} ({command}{', which is stopped' if _is_stopped(pid) else ''})"


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False
