"""Recording one seed of a run as it goes: the log, checkpoints, progress."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hvcl.runs.folder import SeedFolder

PROGRESS_SECONDS = 0.2
"""How often progress is shown at most."""


@dataclass(frozen=True)
class Progress:
    """How far one seed of a run is."""

    position: int
    total: int
    finished_tasks: int
    tasks: int
    text: str
    """How well it does, in words; empty as long as nothing is known."""
    seconds: float


Tell = Callable[[Progress], None]
Stop = Callable[[], bool]


class Recorder:
    """Writes the log and checkpoints of one seed, and shows how far it is.

    A checkpoint holds the session's state, and length and checksum of the log: what is logged after it is cut off when the run
    goes on, so that a run which is killed at any moment ends as if nothing had happened.
    """

    def __init__(self, files: SeedFolder, *, tell: Tell, stop: Stop, checkpoint_seconds: float) -> None:
        self.files, self.stop = files, stop
        self._tell, self._checkpoint_seconds = tell, checkpoint_seconds
        self._log_size, self._log_checksum, self._seconds_before = 0, hashlib.sha256(), 0.0
        self._begin = self._saved = self._shown = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock time spent on this seed, over all its sessions."""
        return self._seconds_before + time.monotonic() - self._begin

    @property
    def save_is_due(self) -> bool:
        """Whether the last checkpoint is old enough for a new one."""
        return time.monotonic() - self._saved >= self._checkpoint_seconds

    def log(self, record: dict[str, Any]) -> None:
        """One more line in the log."""
        line = self.files.append_metrics(record)
        self._log_size += len(line)
        self._log_checksum.update(line)

    def save(self, state: dict[str, Any]) -> None:
        """A checkpoint of the session's `state`; what was logged before it is on the disk when it is."""
        self.files.flush_metrics()
        log = {"metrics_size": self._log_size, "metrics_sha256": self._log_checksum.hexdigest()}
        self.files.save_checkpoint(state | log | {"seconds": self.seconds})
        self._saved = time.monotonic()

    def show(self, position: int, total: int, finished: int, tasks: int, text: str, *, at_once: bool = False) -> None:
        """Show the progress, if it was not shown a moment ago or if it must be seen `at_once`."""
        now = time.monotonic()
        if at_once or now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            self._tell(Progress(position, total, finished, tasks, text, self.seconds))

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; a `RunError` if the log up to it is not what was logged, and nothing has changed then."""
        self._log_size, self._seconds_before = state["metrics_size"], state["seconds"]
        self._log_checksum = self.files.cut_metrics(self._log_size, state.get("metrics_sha256"))
