"""Test-then-train of an estimator over a user's own rows: every batch is predicted, scored, and only then learned."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvcl.core.errors import InputError, RunError
from hvcl.core.files import checksum, read_json, write_json
from hvcl.core.interrupt import Interrupts
from hvcl.estimators import ContinualClassifier, ContinualRegressor, load
from hvcl.evaluation.prequential import ClassTotals, NumberTotals, Prequential
from hvcl.learners import Exact
from hvcl.learners import method as method_of
from hvcl.runs.drift import DriftEvent, DriftWatch
from hvcl.streams.rows import Reading, Rows, RowStream, TaskKind

LEVEL = 0.9
"""Probability of the intervals of predicted numbers."""

Estimator = ContinualClassifier | ContinualRegressor


@dataclass(frozen=True)
class Step:
    """What one batch brought."""

    rows: Rows
    events: list[DriftEvent]
    predictions: list[dict[str, Any]] | None
    """Of every row; None as long as nothing is learned."""


@dataclass
class StreamRecord:
    """All that is known of a stream so far: what was read, how well it was predicted, what has drifted."""

    source: str
    task: TaskKind
    label: str
    time: str | None
    method: str
    columns: list[str]
    scores: Prequential[Any]
    rows: int = 0
    labelled: int = 0
    events: list[DriftEvent] = field(default_factory=list)
    times: list[tuple[int, str]] = field(default_factory=list)
    """Numbers of rows with the time of the last of them: at the ends of batches, and where something has drifted."""
    seconds: float = 0.0
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The summary and the course of the scores, as plain JSON values."""
        total, last = self.scores.total, self.scores.last()
        bins = total.bins.tolist() if isinstance(total, ClassTotals) else None
        return {
            "source": self.source,
            "task": self.task,
            "label": self.label,
            "time": self.time,
            "method": self.method,
            "columns": self.columns,
            "rows": self.rows,
            "labelled": self.labelled,
            "tested": total.rows,
            **total.scores(),
            "last": {"tested": last.rows, **last.scores()},
            "drift": [event.to_json() for event in self.events],
            "experts": len({number for window in self.scores.windows for number in window.experts}) or None,
            "windows": [
                {"end": w.end, "tested": w.totals.rows, **w.totals.scores(), "experts": {str(n): c for n, c in w.experts.items()}}
                for w in self.scores.windows
            ],
            "reliability": bins,
            "times": [list(mark) for mark in self.times],
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "notes": list(self.notes),
        }

    def state(self) -> dict[str, Any]:
        """What a stream needs to go on, as plain JSON values."""
        return {
            "label": self.label,
            "time": self.time,
            "rows": self.rows,
            "labelled": self.labelled,
            "scores": self.scores.state(),
            "events": [event.to_json() for event in self.events],
            "times": [list(mark) for mark in self.times],
            "seconds": self.seconds,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.rows, self.labelled, self.seconds = int(state["rows"]), int(state["labelled"]), float(state["seconds"])
        self.scores.load_state(state["scores"])
        self.events = [DriftEvent.from_json(event) for event in state["events"]]
        self.times = [(int(row), str(text)) for row, text in state["times"]]


class TestThenTrain:
    """The loop; `record` is up to date after every step.

    Args:
        rows: are predicted and learned, once.
        model: learns; what it has learned before stays.
        interrupts: is asked before every batch.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name

    def __init__(self, rows: RowStream, model: Estimator, interrupts: Interrupts | None = None) -> None:
        expected = ContinualClassifier if rows.task == "classification" else ContinualRegressor
        if not isinstance(model, expected):
            raise InputError(f"the model is a {type(model).__name__}, which cannot learn labels of a {rows.task}")
        self.rows, self.model, self.interrupts = rows, model, interrupts or Interrupts()
        self._watch = DriftWatch(model)
        self._ready = model.__sklearn_is_fitted__()
        nothing: Any = ClassTotals() if rows.task == "classification" else NumberTotals()
        self.record = StreamRecord(
            rows.name,
            rows.task,
            rows.reading.label,
            rows.reading.time,
            model.method if isinstance(model, ContinualClassifier) else "exact",
            rows.columns,
            Prequential(nothing, max(rows.batch, 100)),
            notes=rows.notes,
        )

    def steps(self) -> Iterator[Step]:
        """One batch after another, until the rows end or an interrupt asks to stop; rows that were read then are learned."""
        begin, source, stopped = time.monotonic() - self.record.seconds, iter(self.rows), False
        while not stopped:
            try:
                with self.interrupts.waiting():
                    batch = None if self.interrupts.asked else next(source, None)
                stopped = self.interrupts.asked
            except KeyboardInterrupt:
                batch, stopped = self.rows.rest(), True
            if batch is not None:
                step = self._step(batch)
                self.record.seconds = time.monotonic() - begin
                yield step
            elif not stopped:
                return
        self.record.interrupted = True

    def _step(self, batch: Rows) -> Step:
        known, record = batch.labelled, self.record
        totals, predictions = self._tested(batch, known) if self._ready else (None, None)
        if len(known):
            y = np.array([batch.labels[place] for place in known])
            with self._watch.listening():
                if self._ready or not isinstance(self.model, ContinualClassifier) or _grows(self.model):
                    self.model.partial_fit(batch.frame.iloc[known], y)
                else:  # its outputs are fixed with the first call
                    self.model.partial_fit(batch.frame.iloc[known], y, np.array(self.rows.first_labels))
            self._ready = True
        learned = (record.rows + 1 + known).tolist()
        record.rows, record.labelled = record.rows + len(batch), record.labelled + len(known)
        events = self._watch.news(record.rows, learned)
        record.events += events
        record.scores.add(len(batch), totals, self._watch.learned)
        if batch.times:
            before = record.rows - len(batch)
            marked = {event.row for event in events if event.row > before} | {record.rows}
            record.times += [(row, _moment_text(batch.times[row - before - 1])) for row in sorted(marked)]
            if len(record.times) > 1000:  # they are for an axis: every other one is enough
                record.times = record.times[1::2]
        return Step(batch, events, predictions)

    def _tested(self, batch: Rows, known: NDArray[np.int64]) -> tuple[Any, list[dict[str, Any]]]:
        labels = [batch.labels[place] for place in known]
        if isinstance(self.model, ContinualClassifier):
            p = self.model.predict_proba(batch.frame)
            classes = self.model.classes_
            best = [(classes[unit], float(row[unit])) for row, unit in zip(p, p.argmax(1), strict=True)]
            predictions = [{"predicted": label.item(), "probability": share} for label, share in best]
            return ClassTotals.of(classes, p[known], labels), predictions
        mean = self.model.predict(batch.frame)
        assert isinstance(mean, np.ndarray)
        low, high = self.model.predict_interval(batch.frame, LEVEL)
        ends = zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
        predictions = [{"predicted": value, "low": bottom, "high": top} for value, bottom, top in ends]
        return NumberTotals.of(mean[known], low[known], high[known], labels), predictions


def _grows(model: ContinualClassifier) -> bool:
    """Whether labels can appear at any time."""
    return method_of(model.method).learner is Exact


# -- a stream that goes on -------------------------------------------------------------------------------------------------


def state_path(path: Path) -> Path:
    """The file beside a model that says how far the stream is that it learns from."""
    return path.with_name(f"{path.name}.stream.json")


def save_stream(path: Path, loop: TestThenTrain) -> None:
    """Write the model to `path`, whose folder must exist, and how far the stream is beside it.

    Whatever moment the process is killed, the model that is there finds its own state: the states of the model that was there
    and of the one to come are both written before the model is replaced, by the checksums of their files.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    if target.exists() and not target.is_file():
        raise RunError(f"{path} is no file: a model can be saved to a file only")
    new, beside = target.with_name(f".{target.name}.next"), state_path(path)
    try:
        loop.model.save(new)
        rows = loop.rows
        position = {"source": rows.name, "again": rows.again, "digest": rows.digest, "record": loop.record.state()}
        known = {} if not path.exists() else _states(beside)
        before = {mark: state for mark, state in known.items() if mark == _mark(path)}
        write_json(beside, {"format": 1, "states": before | {_mark(new): position}})
        new.replace(target)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        new.unlink(missing_ok=True)


def load_stream(path: Path) -> tuple[Estimator, dict[str, Any] | None]:
    """A saved model, and how far the last stream is that it learned from, if that is known."""
    model = load(path)
    if not isinstance(model, ContinualClassifier | ContinualRegressor):
        raise RunError(f"{path} holds a {type(model).__name__}, which learns from no rows")
    return model, _states(state_path(path)).get(_mark(path))


def resume(loop: TestThenTrain, state: Mapping[str, Any]) -> bool:
    """Go on where a stream stopped, if it is the same one: the rows that were learned are passed over. Returns whether it is.

    Raises:
        DataError: the file has changed where it was read.
        InputError: it was read in another way.
    """
    rows, record = loop.rows, loop.record
    try:
        if state["source"] != rows.name or not state["again"] or not rows.again:
            return False
        before = state["record"]
        for option in ("label", "time"):
            if before[option] != getattr(record, option):
                used = f"--{option} {before[option]}" if before[option] is not None else f"no --{option}"
                raise InputError(f"{rows.name} was learned with {used}: say the same to go on, or --again to learn it anew")
        rows.skip(int(before["rows"]), str(state["digest"]))
        record.load_state(before)
    except (KeyError, TypeError) as error:
        raise RunError(f"the state of the stream is damaged ({error!r}): say --again to learn {rows.name} anew") from None
    return True


def _states(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != 1 or not isinstance(found.get("states"), dict):
        raise RunError(f"{path} is damaged, or was written by a newer version of hvcl: remove it to begin anew")
    states: dict[str, Any] = found["states"]
    return states


def _mark(path: Path) -> str:
    return checksum(path.read_bytes())


def reading_of(model: Estimator, label: str, **options: Any) -> Reading:
    """How rows are read for a model that goes on: its columns, their kinds, the type of its labels."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise InputError("the model has learned from columns without names: hvcl stream cannot tell which ones the file's are")
    columns = [str(name) for name in names]
    scales = getattr(model, "scales_", None)
    kinds = dict(zip(columns, scales.kinds, strict=True)) if scales is not None else {}
    if isinstance(model, ContinualRegressor):
        return Reading(label, columns=columns, kinds=kinds, task="regression", **options)
    kind: dict[str, Any] = {"i": "int", "u": "int", "f": "float", "b": "bool", "U": "str"}
    return Reading(
        label, columns=columns, kinds=kinds, task="classification", label_kind=kind[model.classes_.dtype.kind], **options
    )


def _moment_text(moment: Any) -> str:
    return f"{moment:.12g}" if isinstance(moment, float) else str(moment).removesuffix(" 00:00:00")
