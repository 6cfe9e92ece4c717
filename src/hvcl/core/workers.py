"""Worker processes that end with the process that started them, within a moment, however it ended.

Nothing of weight is imported here: a worker must have come this far before it begins to import what its work needs.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PR_SET_PDEATHSIG = 1

_given: tuple[Any, ...] = ()


def begin(parent: int, *given: Any) -> None:
    """The first thing that a worker does: it will end with `parent`, and leaves Ctrl-C to it while there is nothing to do.

    Args:
        parent: number of the process that started this one.
        given: what the work needs; `given` returns it.
    """
    global _given
    _given = given
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before it could be asked for
            os._exit(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()  # systems without such a signal
    atexit.register(gc.freeze)  # searching all that torch has loaded for cycles at the end would take half a second


def given() -> tuple[Any, ...]:
    """What the process that started this worker gave it."""
    return _given


@contextmanager
def starting() -> Iterator[None]:
    """Workers that are started inside take no notice of Ctrl-C until they `begin`; here it is noticed afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # waits for the pipe that the parent holds open as long as it lives
        os._exit(1)
