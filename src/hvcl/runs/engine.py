"""Many seeds of many runs over all cores, with one view of their progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hvcl.core.errors import RunError
from hvcl.runs.folder import RunFolder
from hvcl.runs.record import InterruptedRun, execute


@dataclass(frozen=True)
class Job:
    """One seed of one run, with a label for people."""

    folder: Path
    seed: int
    label: str


class SeedProgress(Protocol):
    """How far a job is."""

    @property
    def position(self) -> int: ...  # noqa: D102
    @property
    def total(self) -> int: ...  # noqa: D102
    @property
    def finished_tasks(self) -> int: ...  # noqa: D102
    @property
    def tasks(self) -> int: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def text(self) -> str:
        """How well it does, in words; empty as long as nothing is known."""


class View(ABC):
    """Shows how far the jobs are."""

    @abstractmethod
    def show(self, number: int, progress: SeedProgress) -> None:
        """Job `number` is this far."""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put away."""


class BarView(View):
    """A bar for every job, for terminals."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("task {task.fields[finished]}/{task.fields[tasks]}"),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        fields: dict[str, Any] = {"finished": 0, "tasks": "?", "text": "", "start": False, "total": None}
        self._bars: list[TaskID] = [self._progress.add_task(job.label, **fields) for job in jobs]
        self._started: set[int] = set()

    def show(self, number: int, progress: SeedProgress) -> None:
        """Move the bar."""
        bar = self._bars[number]
        if number not in self._started:
            self._progress.start_task(bar)
            self._started.add(number)
        self._progress.update(
            bar,
            completed=progress.position,
            total=progress.total,
            finished=progress.finished_tasks,
            tasks=progress.tasks,
            text=progress.text,
        )

    def __enter__(self) -> View:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class LineView(View):
    """A line whenever a task ends, for logs."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self._jobs, self._console = jobs, console
        self._finished: dict[int, int] = {}

    def show(self, number: int, progress: SeedProgress) -> None:
        """Print a line if a task has ended."""
        if progress.finished_tasks == self._finished.get(number, 0) or not progress.text:
            return
        self._finished[number] = progress.finished_tasks
        self._console.print(
            f"{self._jobs[number].label}: task {progress.finished_tasks}/{progress.tasks}, "
            f"{progress.text}, {progress.seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )


OnResult = Callable[[int, dict[str, Any]], None]
"""Told the number of a job and its result."""


class Execute(Protocol):
    """Runs one seed of the run in a folder, or goes on with it, and returns its result. A function of a module, for workers."""

    def __call__(self, folder: Path, seed: int, *, tell: Callable[[Any], None], stop: Callable[[], bool]) -> dict[str, Any]: ...  # noqa: D102


def execute_in(folder: Path, seed: int, *, tell: Callable[[Any], None], stop: Callable[[], bool]) -> dict[str, Any]:
    """A seed of supervised learning."""
    return execute(RunFolder(folder), seed, tell=tell, stop=stop)


def run_seeds(
    jobs: Sequence[Job],
    console: Console,
    workers: int | None = None,
    on_result: OnResult | None = None,
    worker: Execute = execute_in,
) -> list[dict[str, Any]]:
    """Run all jobs with `worker`, or go on with them, and return their results in order.

    `on_result` is told each result as soon as it is there.

    Several jobs share the cores, one process each. Ctrl-C lets every job finish its step and save; then `InterruptedRun` is
    raised, and the same call goes on where it stopped.
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    view = BarView(jobs, console) if console.is_terminal else LineView(jobs, console)
    told = on_result or (lambda number, result: None)
    with view:
        if workers > 1:
            return _run_in_processes(jobs, view, workers, told, worker)
        results = []
        with _stop_on_interrupt() as stop:
            for number, job in enumerate(jobs):
                results.append(worker(job.folder, job.seed, tell=_teller(view, number), stop=stop))
                told(number, results[-1])
        return results


def _teller(view: View, number: int) -> Callable[[SeedProgress], None]:
    return lambda progress: view.show(number, progress)


def _run_in_processes(jobs: Sequence[Job], view: View, workers: int, told: OnResult, worker: Execute) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    messages: Queue[tuple[int, SeedProgress] | None] = context.Queue()
    listener = Thread(target=_listen, args=(messages, view), daemon=True)
    listener.start()
    # workers inherit one thread each: small networks are fastest so
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(messages,)) as pool:
            futures: dict[Future[dict[str, Any]], int] = {pool.submit(_work, i, job, worker): i for i, job in enumerate(jobs)}
            try:
                return _collect(futures, told)
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
    except KeyboardInterrupt:
        raise InterruptedRun from None
    except BrokenProcessPool:
        raise RunError("a worker process was killed (out of memory?): go on with --resume") from None
    finally:
        messages.put(None)
        listener.join()
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _collect(futures: dict[Future[dict[str, Any]], int], told: OnResult) -> list[dict[str, Any]]:
    results: dict[int, dict[str, Any]] = {}
    for future in as_completed(futures):
        number = futures[future]
        results[number] = future.result()
        told(number, results[number])
    return [results[i] for i in range(len(futures))]


def _listen(messages: Queue[tuple[int, SeedProgress] | None], view: View) -> None:
    while (message := messages.get()) is not None:
        view.show(*message)


_messages: Queue[tuple[int, SeedProgress] | None] | None = None


def _start_worker(messages: Queue[tuple[int, SeedProgress] | None]) -> None:
    global _messages
    _messages = messages


def _work(number: int, job: Job, worker: Execute) -> dict[str, Any]:
    messages = _messages
    assert messages is not None
    with _stop_on_interrupt() as stop:
        return worker(job.folder, job.seed, tell=lambda progress: messages.put((number, progress)), stop=stop)


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is taken as a wish to stop at the next good moment, not in the middle of a step; a second one is obeyed at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)
