"""How far many runs are together, and about how long the rest will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hvcl.report.words import duration
from hvcl.runs.engine import Job, View
from hvcl.runs.record import Progress as JobProgress

FIRST_ESTIMATE = 0.02
"""Share of the work that must be done before the rest is estimated."""


class Together(View):
    """One bar for all jobs (in logs: a line whenever one ends), with an estimate from the effort that is done and left."""

    def __init__(self, jobs: Sequence[Job], efforts: Mapping[Path, float], console: Console) -> None:
        self.jobs, self.console = jobs, console
        self.efforts = [efforts.get(job.folder, 1.0) for job in jobs]
        self.shares = [0.0] * len(jobs)
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._bars = Progress(BarColumn(bar_width=30), TextColumn("{task.description}"), console=console)
        self._bar = self._bars.add_task("", total=1.0)

    @property
    def done(self) -> float:
        """Share of the whole effort that is done."""
        return sum(share * effort for share, effort in zip(self.shares, self.efforts, strict=True)) / (sum(self.efforts) or 1.0)

    def left(self, elapsed: float) -> float | None:
        """Seconds to the end, if they go on as until now; None at the very beginning."""
        done = self.done
        return elapsed * (1 - done) / done if done >= FIRST_ESTIMATE else None

    def show(self, number: int, progress: JobProgress) -> None:
        """Job `number` is this far."""
        with self._lock:
            before = self.shares[number]
            self.shares[number] = min(1.0, progress.position / max(progress.total, 1))
            text = self.words(time.monotonic() - self._begin)
            if self.console.is_terminal:
                self._bars.update(self._bar, completed=self.done, description=text)
            elif self.shares[number] == 1.0 > before:
                self.console.print(f"{text}; done: {self.jobs[number].label}", highlight=False, soft_wrap=True)

    def words(self, elapsed: float) -> str:
        """How far it is."""
        finished, left = sum(share == 1.0 for share in self.shares), self.left(elapsed)
        estimate = "" if left is None else f", about {duration(left)} left"
        return f"{finished} of {len(self.jobs)} runs, {duration(elapsed)}{estimate}"

    def __enter__(self) -> View:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bars.stop()
