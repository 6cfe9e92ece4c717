"""scipy's linear algebra with as many threads as torch has.

scipy brings a BLAS of its own, which takes all cores whatever `torch.set_num_threads` says, and whose threads wait for each other
busily: a factorisation on two cores that have other work takes four times as long as on one thread. And the number of threads
changes the rounding, so a run on one thread has the numbers of one thread only if this BLAS has one as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

SMALL = 2**18
"""Multiplications of a call that is never divided among threads."""

_lock = threading.Lock()
_entered = 0
_controller: ThreadpoolController | None = None
_before: Any = None


@contextmanager
def threads_of_torch(multiplications: float) -> Iterator[None]:
    """Within it, the BLAS of scipy (and numpy) has as many threads as torch; nothing is done for calls that are small.

    When several threads are within, whoever leaves puts back what was there before the first of them: some builds of OpenBLAS
    obey the main thread alone.

    Args:
        multiplications: of the call, roughly.
    """
    global _entered, _controller, _before
    if multiplications <= SMALL:
        yield
        return
    with _lock:
        if _controller is None:
            import scipy.linalg.lapack  # noqa: F401  # the library is to be there when it is looked for

            _controller = ThreadpoolController().select(user_api="blas")
        limited = _controller.limit(limits=torch.get_num_threads())
        _before = _before if _entered else limited
        _entered += 1
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            _before.restore_original_limits()
