"""hvcl stream: test-then-train over a file of rows, or over standard input."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hvcl.commands.main import EXIT_INTERRUPTED
from hvcl.commands.options import Parser, UsageError
from hvcl.core.errors import DataError, HvclError, RunError
from hvcl.core.interrupt import Interrupts
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from hvcl.learners import Exact, known_methods, method
from hvcl.report.stream import write_stream_report
from hvcl.runs.drift import DriftEvent
from hvcl.runs.streaming import Estimator, Step, TestThenTrain, load_stream, reading_of, resume, save_stream
from hvcl.streams.records import STANDARD_INPUT
from hvcl.streams.rows import Reading, RowStream, open_rows

LINES = 20
"""Of the running table, over a file; over standard input there is one every `EVERY` rows."""

EVERY = 1000

SAVED_EVERY = 60.0
"""Seconds after which a model that is to be saved is saved in mid-stream."""


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(
        prog="hvcl stream",
        description="Test-then-train: every row is predicted, scored, and only then learned. CSV, Parquet, JSON lines.",
    )
    found.add_argument("source", metavar="FILE", help="rows to learn from; - is standard input, a JSON object a line")
    found.add_argument("--label", metavar="COLUMN", required=True, help="column to predict; rows without it are only predicted")
    found.add_argument("--time", metavar="COLUMN", help="column of times, no feature; a file is sorted by it")
    found.add_argument("--method", metavar="M", help="the method (exact); see hvcl list")
    found.add_argument(
        "--answer", choices=("now", "ever"), help="exact: what holds now (the default), or of everything ever learned"
    )
    found.add_argument("--task", choices=("classification", "regression"), help="what labels are (decided by the first rows)")
    found.add_argument("--drop", metavar="A,B", type=_names, default=(), help="columns that are no features")
    found.add_argument("--categories", metavar="A,B", type=_names, default=(), help="columns of numbers that are categories")
    found.add_argument(
        "--batch", metavar="N", type=int, default=100, help="rows that are predicted, then learned, at a time (100)"
    )
    found.add_argument("--seed", metavar="N", type=int, default=0, help="of everything random (0)")
    found.add_argument("--save", metavar="MODEL", type=Path, help="file of the model; if it is there, the stream goes on with it")
    found.add_argument("--again", action="store_true", help="learn the file from its first row, although MODEL has learned it")
    found.add_argument("--report", metavar="PAGE", type=Path, help="HTML page (runs/stream-FILE.html)")
    found.add_argument("--predictions", metavar="OUT", type=Path, help="file of the predictions, a JSON object a line")
    found.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
    found.values["--method"] = tuple(sorted(known_methods()))
    found.values["--task"] = ("classification", "regression")
    found.values["--answer"] = ("now", "ever")
    return found


def run(options: argparse.Namespace) -> int:
    """Go through the rows; an interrupt ends it in good order."""
    page = options.report or Path("runs") / f"stream-{_stem(options.source)}.html"
    loop, goes_on = _prepare(options)
    say = Console(stderr=True, highlight=False)
    for line in _opening(loop, goes_on, options):
        say.print(line, soft_wrap=True, markup=False)
    try:
        with loop.interrupts:
            before = loop.record.rows
            _go_through(loop, options, say, goes_on)
        if goes_on and loop.record.rows == before and not loop.record.interrupted:
            say.print("there are no rows after these (--again: learn the file anew)", soft_wrap=True, markup=False)
    except HvclError as error:
        if not options.save or not loop.record.rows:
            raise
        save_stream(options.save, loop)
        raise DataError(f"{error}; what came before it is learned, and saved in {options.save}") from None
    record = loop.record
    if options.save and loop.model.__sklearn_is_fitted__():
        save_stream(options.save, loop)
    for line in _closing(loop, options):
        print(line)
    print(f"report: {write_stream_report(record, page)}")
    if options.json:
        print(json.dumps(record.to_json() | {"report": str(page), "saved": str(options.save) if options.save else None}))
    return EXIT_INTERRUPTED if record.interrupted else 0


# -- before ----------------------------------------------------------------------------------------------------------------


def _prepare(options: argparse.Namespace) -> tuple[TestThenTrain, bool]:
    """The loop, and whether it goes on where the same stream was stopped."""
    for option in ("save", "predictions"):
        path = getattr(options, option)
        if path is not None and not path.parent.is_dir():
            raise RunError(f"--{option} {path}: there is no folder {path.parent}: make it, or name another file")
    interrupts = Interrupts()
    asked = {"time": options.time, "drop": options.drop}
    if options.save is not None and options.save.exists():
        model, state = load_stream(options.save)
        _check_same(options, model)
        reading = reading_of(model, options.label, **asked, categories=options.categories)
        loop = TestThenTrain(open_rows(options.source, reading, options.batch), model, interrupts)
        return loop, state is not None and not options.again and resume(loop, state)
    reading = Reading(options.label, **asked, categories=options.categories, task=options.task)
    rows = open_rows(options.source, reading, options.batch)
    return TestThenTrain(rows, _new_model(options, rows), interrupts), False


def _new_model(options: argparse.Namespace, rows: RowStream) -> Estimator:
    name = options.method or "exact"
    exact = method(name).learner is Exact
    if rows.task == "regression":
        if not exact:
            raise UsageError(f"{rows.why}: numbers are learned by the method exact only (or say --task classification)")
        return ContinualRegressor(answer=options.answer or "now", seed=options.seed)
    if options.answer is not None and not exact:
        raise UsageError(f"--answer is an option of the method exact, not of {name}")
    return ContinualClassifier(name, answer=options.answer or "now", seed=options.seed)


def _check_same(options: argparse.Namespace, model: Estimator) -> None:
    """Options that make a model must not contradict the one that is there."""
    name = model.method if isinstance(model, ContinualClassifier) else "exact"
    if options.method is not None and options.method != name:
        raise RunError(f"{options.save} holds a model of {name}, not of {options.method}: leave --method out, or save elsewhere")
    kind = "classification" if isinstance(model, ContinualClassifier) else "regression"
    if options.task is not None and options.task != kind:
        raise RunError(f"{options.save} holds a model of {kind}: leave --task out, or save elsewhere")
    if options.answer is not None and options.answer != model.answer:
        raise RunError(f"{options.save} holds a model that answers {model.answer!r}: leave --answer out, or save elsewhere")


def _opening(loop: TestThenTrain, goes_on: bool, options: argparse.Namespace) -> list[str]:
    rows = loop.rows
    numbers = sum(kind == "number" for kind in rows.kinds.values())
    parts = [f"{numbers} of numbers"] if numbers else []
    parts += [f"{len(rows.kinds) - numbers} of categories"] if len(rows.kinds) > numbers else []
    columns = f"{len(rows.columns)} column{'s' if len(rows.columns) > 1 else ''}"
    lines = [f"{rows.name}: {rows.why}; {columns} to predict it from ({', '.join(parts)})"]
    if goes_on:
        lines.append(f"goes on after row {loop.record.rows:,}, where {options.save} was saved")
    elif loop.model.__sklearn_is_fitted__():
        lines.append(f"the model in {options.save} goes on with these rows")
    return lines


# -- meanwhile -------------------------------------------------------------------------------------------------------------


def _go_through(loop: TestThenTrain, options: argparse.Namespace, say: Console, goes_on: bool) -> None:
    with ExitStack() as stack:
        predictions = None if options.predictions is None else stack.enter_context(_opened(options.predictions, goes_on))
        bar = Progress(
            TextColumn("{task.fields[rows]:,} rows"), BarColumn(), TimeRemainingColumn(), console=say, transient=True,
            disable=not say.is_terminal,
        )  # fmt: skip
        task = stack.enter_context(bar).add_task("", total=None if loop.rows.share is None else 1.0, rows=loop.record.rows)
        table = RunningTable(loop, Console(file=sys.stdout, highlight=False, width=200, no_color=True, markup=False))
        saved = time.monotonic()
        for step in loop.steps():
            bar.update(task, completed=loop.rows.share or 0.0, rows=loop.record.rows)
            if predictions is not None:
                _write_predictions(predictions, step, loop.record.rows)
            table.add(step.events)
            if options.save and time.monotonic() - saved > SAVED_EVERY:
                save_stream(options.save, loop)
                saved = time.monotonic()
        table.finish()


def _opened(path: Path, goes_on: bool) -> IO[str]:
    return path.open("a" if goes_on else "w", encoding="utf-8")


def _write_predictions(file: IO[str], step: Step, rows: int) -> None:
    first = rows - len(step.rows)
    for number, prediction in enumerate(step.predictions or [{"predicted": None}] * len(step.rows), 1):
        file.write(json.dumps({"row": first + number, **prediction}) + "\n")
    file.flush()


class RunningTable:
    """A line for every part of the stream, with its own scores; and one for every drift event.

    Args:
        loop: what is shown.
        console: where.
    """

    def __init__(self, loop: TestThenTrain, console: Console) -> None:
        self.loop, self.console = loop, console
        self.columns = ("accuracy", "log_loss") if loop.record.task == "classification" else ("mae", "rmse", "coverage")
        self._shown_rows, self._shown_part = loop.record.rows, self._part()
        self._before = loop.record.scores.total
        times = [f"{loop.record.time:>20}"] if loop.record.time else []
        heads = [name.replace("_", " ") for name in self.columns]
        console.print("  ".join([f"{'rows':>10}", *times, *(f"{head:>9}" for head in heads), f"{'so far':>9}", "experts"]))

    def _part(self) -> int:
        share = self.loop.rows.share
        return self.loop.record.rows // EVERY if share is None else int(LINES * share + 1e-9)

    def add(self, events: Sequence[DriftEvent]) -> None:
        """A batch has come."""
        for event in events:
            self.console.print(f"{event.row:>10,}  drift: {event.text}", soft_wrap=True)
        if self._part() != self._shown_part:
            self._show()

    def finish(self) -> None:
        """Show what is not shown yet."""
        if self.loop.record.rows > self._shown_rows:
            self._show()

    def _show(self) -> None:
        record = self.loop.record
        total = record.scores.total
        part, so_far = total.minus(self._before).scores(), total.scores()
        cells = [f"{_shown(name, part[name]) if name in part else '–':>9}" for name in self.columns]
        cells.append(f"{_shown(self.columns[0], so_far[self.columns[0]]) if so_far else '–':>9}")
        experts = {number for window in record.scores.windows for number in window.experts}
        times = [f"{record.times[-1][1]:>20}"] if record.times else []
        self.console.print("  ".join([f"{record.rows:>10,}", *times, *cells, f"{len(experts) or '–':>7}"]))
        self._shown_rows, self._shown_part, self._before = record.rows, self._part(), total


# -- after -----------------------------------------------------------------------------------------------------------------


def _closing(loop: TestThenTrain, options: argparse.Namespace) -> list[str]:
    record, total = loop.record, loop.record.scores.total
    lines = [f"note: {note}" for note in record.notes]
    rows = f"{record.rows:,} row{'' if record.rows == 1 else 's'}"
    lines.append(f"{rows}, {total.rows:,} predicted before they were learned: {_scores(total.scores())}")
    last = record.scores.last()
    if 0 < last.rows < total.rows:
        lines.append(f"the last {last.rows:,} of them: {_scores(last.scores())}")
    if record.interrupted:
        where = f"interrupted after row {record.rows:,}"
        if loop.rows.again:
            where += f" ({loop.rows.unit} {loop.rows.place:,} of {record.source})"
        then = "go on with the same command" if loop.rows.again else "the same command goes on with the rows that come then"
        lines.append(f"{where}: {then}" if options.save else f"{where}; without --save nothing is kept")
    if options.save and loop.model.__sklearn_is_fitted__():
        lines.append(f"model: {options.save}")
    return lines


def _scores(scores: dict[str, float]) -> str:
    words = {"mae": "mean absolute error", "rmse": "root mean squared error", "coverage": "labels in their 90 % intervals"}
    shown = (f"{words.get(name, name.replace('_', ' '))} {_shown(name, value)}" for name, value in scores.items())
    return ", ".join(shown) or "no scores"


def _shown(name: str, value: float) -> str:
    """Three digits after the point; of errors in the labels' unit three digits in all where that would be none or very many."""
    return f"{value:.3g}" if name in ("mae", "rmse") and value and not 0.01 <= value < 1e6 else f"{value:.3f}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _stem(source: str) -> str:
    return "input" if source == STANDARD_INPUT else Path(source).stem
