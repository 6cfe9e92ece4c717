"""Being asked to stop: taken as a wish, to be granted at the next good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Ctrl-C, and the signal to terminate, inside ``with Interrupts() as interrupts``.

    The first one sets `asked`, and what is under way is finished; while the program only waits (`waiting`), and from the second
    one on, `KeyboardInterrupt` is raised at once. Only a process's main thread receives signals: in others nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False
        self._before: dict[int, Any] = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._waiting:
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, nothing is under way that must be finished: an interrupt is obeyed at once."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
