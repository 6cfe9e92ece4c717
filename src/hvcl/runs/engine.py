"""Many seeds of many runs over all cores, with one view of their progress."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from hvcl.core import workers as processes
from hvcl.core.errors import HvclError, InterruptedRun, RunError
from hvcl.core.interrupt import Interrupts
from hvcl.runs.folder import RunFolder
from hvcl.runs.record import Progress
from hvcl.runs.seed import run_seed

LISTEN_SECONDS = 5.0
"""How long to wait at the end for what workers have said of their progress."""


@dataclass(frozen=True)
class Job:
    """One seed of one run, with a label for people."""

    folder: Path
    seed: int
    label: str


class View:
    """Shows how far the jobs are; this one shows nothing."""

    def show(self, number: int, progress: Progress) -> None:
        """Job `number` is this far."""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put away."""


class BarView(View):
    """A bar for every job, for terminals."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self._progress = Bars(
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

    def show(self, number: int, progress: Progress) -> None:
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

    def show(self, number: int, progress: Progress) -> None:
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
"""Called with the number of a job and its result."""

OnError = Callable[[int, HvclError], None]
"""Called with the number of a job that cannot be finished, and why."""

MakeView = Callable[[Sequence[Job]], View]
"""Makes a view of one's own for the jobs that are run."""


def run_seeds(
    jobs: Sequence[Job],
    console: Console | MakeView | None = None,
    workers: int | None = None,
    on_result: OnResult | None = None,
    on_error: OnError | None = None,
) -> list[dict[str, Any]]:
    """Run all jobs, or go on with them, and return their results in order.

    Several jobs share the cores, one process each. Ctrl-C, or the signal to terminate, lets every job finish its step and save;
    then `InterruptedRun` is raised, and the same call goes on where it stopped. A second one is obeyed at once. Processes end
    with this one, however it ends.

    Args:
        jobs: seeds of runs whose folders are prepared.
        console: where progress is shown, or what makes the view of it; None: nowhere.
        workers: number of processes (one per core); with one, everything happens in this process.
        on_result: called with the number of a job and its result as soon as it is there.
        on_error: called with the number of a job that cannot be finished, e.g. since its learner has diverged, and the error; the
            others go on, and its result is left out. None: the first such error is raised, and ends all.
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    view = _view(jobs, console)
    notify = on_result or (lambda number, result: None)
    with view:
        if workers > 1:
            return _run_in_processes(jobs, view, workers, notify, on_error)
        results = []
        with Interrupts() as interrupts:
            for number, job in enumerate(jobs):
                try:
                    result = run_seed(
                        RunFolder(job.folder), job.seed, tell=partial(view.show, number), stop=lambda: interrupts.asked
                    )
                except HvclError as error:
                    if on_error is None:
                        raise
                    on_error(number, error)
                    continue
                results.append(result)
                notify(number, result)
        return results


def _view(jobs: Sequence[Job], console: Console | MakeView | None) -> View:
    if console is None:
        return View()
    if not isinstance(console, Console):
        return console(jobs)
    return BarView(jobs, console) if console.is_terminal else LineView(jobs, console)


def _run_in_processes(
    jobs: Sequence[Job], view: View, workers: int, notify: OnResult, on_error: OnError | None
) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    messages: Queue[tuple[int, Progress] | None] = context.Queue()
    halt = context.RawValue("b", 0)  # without a lock, which a worker that is killed might keep
    listener = threading.Thread(target=_listen, args=(messages, view), daemon=True)
    listener.start()
    # workers inherit one thread each: small networks are fastest so
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with (
            Interrupts() as interrupts,
            ProcessPoolExecutor(workers, context, initializer=processes.begin, initargs=(os.getpid(), messages, halt)) as pool,
        ):
            with processes.starting():
                futures: dict[Future[dict[str, Any]], int] = {pool.submit(_work, i, job): i for i, job in enumerate(jobs)}
            try:
                return _collect(futures, notify, on_error, interrupts)
            except BaseException:
                halt.value = 1
                for future in futures:
                    future.cancel()
                with _killed_on_interrupt(pool), interrupts.waiting():  # they save; who asks again does not want to wait
                    wait([future for future in futures if not future.cancelled()])
                raise
    except KeyboardInterrupt:
        raise InterruptedRun from None
    except BrokenProcessPool:
        raise RunError("a worker process was killed (out of memory?): go on with --resume") from None
    finally:
        messages.put(None)
        listener.join(LISTEN_SECONDS)
        messages.cancel_join_thread()  # a worker that was killed may have kept the lock of the queue
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _killed_on_interrupt(pool: ProcessPoolExecutor) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        for worker in multiprocessing.active_children():
            if worker.pid in (pool._processes or {}):
                worker.kill()
        raise


def _collect(
    futures: dict[Future[dict[str, Any]], int], notify: OnResult, on_error: OnError | None, interrupts: Interrupts
) -> list[dict[str, Any]]:
    results: dict[int, dict[str, Any]] = {}
    completed = as_completed(futures)
    for _ in futures:
        with interrupts.waiting():
            if interrupts.asked:
                raise KeyboardInterrupt
            future = next(completed)
        number = futures[future]
        try:
            result = future.result()
        except HvclError as error:
            if on_error is None:
                raise
            on_error(number, error)
            continue
        results[number] = result
        notify(number, result)
    return [results[number] for number in sorted(results)]


def _listen(messages: Queue[tuple[int, Progress] | None], view: View) -> None:
    while (message := messages.get()) is not None:
        view.show(*message)


def _work(number: int, job: Job) -> dict[str, Any]:
    messages, halt = processes.given()
    with Interrupts() as interrupts:
        return run_seed(
            RunFolder(job.folder),
            job.seed,
            tell=lambda progress: messages.put((number, progress)),
            stop=lambda: interrupts.asked or bool(halt.value),
        )
