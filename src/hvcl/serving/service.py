"""A model that predicts and learns for many at once, and loses nothing that it has acknowledged.

One thread writes. It takes all calls that wait, lets a copy of the model learn them one after another, writes them to the log
with one flush, and only then makes the copy the model that answers, and acknowledges the calls. Predictions are made by the model
that answers: they see all of an acknowledged call or nothing of it, and wait neither for the copy nor for the disk (methods that
have no snapshots, as those trained by gradient: while the model is copied or written). If the log cannot be written, the copy is
dropped and nothing has happened.

Rows stand in the log until the next snapshot. A call that forgets is acknowledged with a snapshot, so that no forgotten row stays
on the disk. Without a log (`log=False`, and always with a private model) every call is, and no row is written at all.
"""

from __future__ import annotations

import copy
import json
import queue
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvcl.core.errors import HvclError, InputError, RunError
from hvcl.core.files import checksum
from hvcl.core.saved import saved_kind
from hvcl.estimators import ContinualClassifier, ContinualRegressor, load
from hvcl.runs.drift import DriftEvent, DriftWatch, expert_rows
from hvcl.runs.streaming import LEVEL
from hvcl.serving.folder import StateFolder
from hvcl.serving.log import Entry
from hvcl.serving.rows import Estimator, RowReader

REMEMBERED = 10_000
"""Request ids that are remembered, the newest ones."""

WAITING = 256
"""Calls that may wait for the writer; more are turned away."""

TOGETHER = 64
"""Calls that are written with one flush, at most."""

MOST_EVENTS = 1000
"""Drift events that are remembered, the newest ones."""

LONGEST_ID = 200

_TAKEN = "hvcl serve takes what hvcl stream --save or an estimator's save has written"


class BusyError(HvclError):
    """Too many calls wait."""


class UnavailableError(HvclError):
    """The call could not be written to the disk: nothing has changed."""


class ConflictError(HvclError):
    """A request id that was used for something else."""


@dataclass
class Totals:
    """What has happened to the model since the service began with it."""

    calls: int = 0
    """Learned and forgotten."""
    learned: int = 0
    """Rows."""
    forgotten: int = 0
    """Rows that were forgotten one by one."""
    drifts: int = 0
    """Drift events."""
    events: list[DriftEvent] = field(default_factory=list)
    """The newest of them."""


@dataclass(frozen=True)
class Published:
    """The model that answers. Nobody changes it, so that predictions wait neither for the writer nor for each other."""

    model: Estimator
    totals: Totals


@dataclass
class Job:
    """A call that waits for the writer."""

    entry: Entry
    done: Future[dict[str, Any]]


Done = tuple[Job, dict[str, Any]]
"""A call with its answer."""


class Service:
    """A model with its folder.

    Args:
        origin: file of the model that the service begins with.
        folder: of snapshots and log; if it is there, the service goes on with what it holds.
        log: whether rows are written to a log; private models have none.
        snapshot_rows: rows in the log after which a snapshot is made.

    Raises:
        RunError: the model or the folder cannot be used; says why.
    """

    def __init__(self, origin: Path, folder: Path, *, log: bool = True, snapshot_rows: int = 10_000) -> None:
        if snapshot_rows < 1:
            raise InputError(f"a snapshot is made after at least 1 row, got {snapshot_rows}")
        self.snapshot_rows = snapshot_rows
        if saved_kind(origin) != "estimator":  # before a folder is made
            raise RunError(f"{origin} holds no model of rows: {_TAKEN}")
        self._folder = StateFolder(folder, origin)
        try:
            self._recover(origin, log)
        except BaseException:
            self._folder.close()
            raise
        self._queue: queue.Queue[Job | None] = queue.Queue(WAITING)
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="hvcl-writer", daemon=True)
        self._writer.start()

    def _recover(self, origin: Path, log: bool) -> None:
        """The snapshot, and what the log has after it."""
        model = load(origin if self._folder.model is None else self._folder.model)
        if not isinstance(model, ContinualClassifier | ContinualRegressor) or not hasattr(model, "n_features_in_"):
            raise RunError(f"{origin} holds no model of rows: {_TAKEN}")
        private = bool(getattr(model, "private", False))
        self.logs = log and not private
        """Whether rows are written to a log."""
        if not log and not private and getattr(model, "scales_", None) is None:
            raise RunError(f"{origin} still holds its first rows, to measure scales on: without a log no row may be written")
        scales = getattr(model, "scales_", None)
        if scales is not None and scales.shape is not None:
            raise RunError(f"{origin} has learned pictures: hvcl serve takes models of tables")
        self._ids: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()
        totals = Totals()
        self._reader = RowReader(model)
        self.log_rows = 0
        """Rows in the log."""
        self.replayed = 0
        """Calls that were read from the log at the start."""
        if self._folder.model is not None:
            extra = self._folder.extra
            try:
                counts = {name: int(extra[name]) for name in ("calls", "learned", "forgotten", "drifts")}
                totals = Totals(**counts, events=[DriftEvent.from_json(event) for event in extra["events"]])
                self._ids.update((str(key), (str(digest), dict(answer))) for key, digest, answer in extra["ids"])
            except (KeyError, TypeError, ValueError) as error:
                raise RunError(f"{self._folder.path / 'state.json'} is damaged ({error!r})") from None
            entries = self._folder.log.entries if self._folder.log is not None else []
            for entry in entries:
                try:
                    self._remember(entry, self._apply(entry, model, totals))
                except (HvclError, KeyError, TypeError, ValueError) as error:
                    raise RunError(f"{self._folder.path}: the log does not fit the model ({error})") from None
                self.log_rows += len(entry["rows"])
            self.replayed = len(entries)
        self.published = Published(model, totals)
        self.snapshot_time = time.time()
        if self._folder.model is None or (self.replayed and not self.logs):
            self._snapshot(model, totals)

    # -- what users call --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> Estimator:
        """The model that answers."""
        return self.published.model

    def predict(self, rows: list[Any], probabilities: bool = False) -> list[dict[str, Any]]:
        """An answer for each row: label and probability, or value and the ends of its interval.

        Raises:
            InputError: a row is not what it should be; says which and why.
        """
        published = self.published
        x = self._reader.rows(rows, published.model)
        if isinstance(published.model, ContinualClassifier):
            p, classes = published.model.predict_proba(x), published.model.classes_.tolist()
            best = p.argmax(1)
            answers = [{"label": classes[unit], "probability": float(p[row, unit])} for row, unit in enumerate(best)]
            if probabilities:
                for answer, shares in zip(answers, p.tolist(), strict=True):
                    answer["probabilities"] = [{"label": c, "probability": s} for c, s in zip(classes, shares, strict=True)]
            return answers
        mean = published.model.predict(x)
        low, high = published.model.predict_interval(x, LEVEL)
        assert not isinstance(mean, tuple)
        return [
            {"value": value, "low": bottom, "high": top, "level": LEVEL}
            for value, bottom, top in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
        ]

    def learn(
        self, rows: list[Any], labels: list[Any], *, id: str | None = None, group: str | int | None = None
    ) -> Future[dict[str, Any]]:
        """Learn from rows; the answer comes when they are on the disk.

        Args:
            rows: of a table.
            labels: one for each.
            id: of the request: repeated with the same rows, it is answered and nothing is learned twice.
            group: a name for these rows, by which they can be forgotten.

        Raises:
            InputError: a row or label is not what it should be.
            BusyError: too many calls wait.
        """
        self._reader.labels(labels, len(self._reader.rows(rows, self.model)), self.model)
        return self._put({"do": "learn", "id": _checked_id(id), "rows": rows, "labels": labels, "group": group})

    def forget(
        self,
        rows: list[Any] | None = None,
        labels: list[Any] | None = None,
        *,
        id: str | None = None,
        group: str | int | None = None,
        twice: bool = False,
    ) -> Future[dict[str, Any]]:
        """Forget rows with their labels, or without them a whole group; as `learn`."""
        if rows is None and group is None:
            raise InputError("give rows and labels to forget, or a group")
        if rows is not None:
            if labels is None:
                raise InputError("give the labels of the rows, as they were learned")
            self._reader.labels(labels, len(self._reader.rows(rows, self.model)), self.model)
        elif labels is not None:
            raise InputError("labels without rows: give both, or a group alone")
        entry = {
            "do": "forget",
            "id": _checked_id(id),
            "rows": rows or [],
            "labels": labels or [],
            "group": group,
            "twice": twice,
        }
        return self._put(entry)

    def drift(self) -> dict[str, Any]:
        """Drift events, the newest last, and the rows that each expert has learned."""
        totals = self.published.totals
        experts = [{"expert": number + 1, "rows": rows} for number, rows in sorted(expert_rows(self.model).items())]
        return {"learned": totals.learned, "events": [event.to_json() for event in totals.events], "experts": experts}

    def health(self) -> dict[str, Any]:
        """Whether calls can be taken, and how much stands in the log."""
        log = self._folder.log
        fine = self._writer.is_alive() and log is not None and log.sound
        return {
            "status": "ok" if fine else "failing",
            "model": type(self.model).__name__,
            "columns": self._reader.columns,
            "learned": self.published.totals.learned,
            "forgotten": self.published.totals.forgotten,
            "log": self.logs,
            "log_rows": self.log_rows,
            "log_bytes": 0 if log is None else log.size,
            "snapshot": self._folder.number,
            "snapshot_time": self.snapshot_time,
            "waiting": self._queue.qsize(),
        }

    def close(self) -> None:
        """Finish what waits, make a snapshot, and let go of the folder."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._writer.join()
        while not self._queue.empty():  # put by those who had not heard
            job = self._queue.get()
            if job is not None:
                _fail(job, UnavailableError("the service is stopping: send it again when it is back"))
        try:
            if self.log_rows or (self._folder.log is not None and not self._folder.log.sound):
                self._snapshot(self.model, self.published.totals)
        finally:
            self._folder.close()

    # -- the writer -------------------------------------------------------------------------------------------------------

    def _put(self, entry: Entry) -> Future[dict[str, Any]]:
        job = Job(entry, Future())
        if self._closed:
            raise UnavailableError("the service is stopping: send it again when it is back")
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise BusyError(f"{WAITING} calls wait already: send it again later") from None
        return job.done

    def _write(self) -> None:
        more = True
        while more:
            jobs: list[Job] = []
            first = self._queue.get()
            while first is not None:
                jobs.append(first)
                if len(jobs) == TOGETHER or self._queue.empty():
                    break
                first = self._queue.get()
            more = first is not None
            if jobs:
                try:
                    self._process(jobs)
                except BaseException as error:
                    for job in jobs:
                        _fail(job, error)

    def _process(self, jobs: list[Job]) -> None:
        """Let a copy learn, write, publish, acknowledge."""
        published, accepted, repeated = self.published, list[Done](), list[Done]()
        draft: tuple[Estimator, Totals] | None = None
        for job in jobs:
            try:
                answer = self._answered(job.entry, accepted)
                if answer is not None:
                    repeated.append((job, answer))
                    continue
                draft = draft or _draft(published)
                accepted.append((job, self._apply(job.entry, *draft)))
            except ConflictError as error:
                _fail(job, error)
            except Exception as error:
                _fail(job, InputError(str(error)) if isinstance(error, ValueError | TypeError) else error)
                draft = _draft(published)
                for before, _ in accepted:
                    self._apply(before.entry, *draft)
        if accepted:
            assert draft is not None
            try:
                self._keep(accepted, *draft)
            except (OSError, RunError) as error:
                unavailable = UnavailableError(f"it could not be written to the disk, nothing has changed ({error})")
                for job, _ in (*accepted, *repeated):
                    _fail(job, unavailable)
                return
            self.published = Published(*draft)
        for job, answer in (*accepted, *repeated):
            with suppress(InvalidStateError):  # no one waits any more
                job.done.set_result(answer)
        if self.log_rows >= self.snapshot_rows:
            with suppress(OSError, RunError):  # else the log still has it all; the next call tries again
                self._snapshot(self.published.model, self.published.totals)

    def _answered(self, entry: Entry, accepted: list[Done]) -> dict[str, Any] | None:
        """The answer to an earlier request of the same id; `ConflictError` if it was another request."""
        if entry["id"] is None:
            return None
        digest, before = _digest(entry), self._ids.get(entry["id"])
        for job, answer in accepted:
            if job.entry["id"] == entry["id"]:
                before = (_digest(job.entry), answer)
        if before is None:
            return None
        if before[0] != digest:
            raise ConflictError(f"the id {entry['id']!r} was used for another request: every request has an id of its own")
        return before[1] | {"repeated": True}

    def _apply(self, entry: Entry, model: Estimator, totals: Totals) -> dict[str, Any]:
        """Change a model and the totals as a call says; the call's answer."""
        group = entry["group"]
        if entry["rows"]:
            x = self._reader.rows(entry["rows"], model)
            y = self._reader.labels(entry["labels"], len(entry["rows"]), model)
        if entry["do"] == "forget":
            if entry["rows"]:
                model.forget(x, y, group=group, twice=entry["twice"])
            else:
                model.forget_group(group)
            totals.calls, totals.forgotten = totals.calls + 1, totals.forgotten + len(entry["rows"])
            return {"forgotten": len(entry["rows"]) or None, "group": group}
        watch = DriftWatch(model)
        with watch.listening():
            model.partial_fit(x, y, group=group)
        totals.calls, totals.learned = totals.calls + 1, totals.learned + len(y)
        news = watch.news(totals.learned)
        totals.drifts += len(news)
        totals.events = (totals.events + news)[-MOST_EVENTS:]
        return {"learned": len(y), "total": totals.learned, "drift": [event.to_json() for event in news]}

    def _keep(self, accepted: list[Done], model: Estimator, totals: Totals) -> None:
        """Bring calls to the disk; their ids are remembered."""
        before, log, entries = self._ids.copy(), self._folder.log, [job.entry for job, _ in accepted]
        for job, answer in accepted:
            self._remember(job.entry, answer)
        try:
            if self.logs and log is not None and log.sound and all(entry["do"] == "learn" for entry in entries):
                log.append(entries)
                self.log_rows += sum(len(entry["rows"]) for entry in entries)
            else:
                self._snapshot(model, totals)
        except BaseException:
            self._ids = before
            raise

    def _remember(self, entry: Entry, answer: dict[str, Any]) -> None:
        if entry["id"] is not None:
            self._ids[entry["id"]] = (_digest(entry), answer)
            while len(self._ids) > REMEMBERED:
                self._ids.popitem(last=False)

    def _snapshot(self, model: Estimator, totals: Totals) -> None:
        extra = {
            "calls": totals.calls,
            "learned": totals.learned,
            "forgotten": totals.forgotten,
            "drifts": totals.drifts,
            "events": [event.to_json() for event in totals.events],
            "ids": [[key, digest, answer] for key, (digest, answer) in self._ids.items()],
        }
        self._folder.snapshot(model.save, extra)
        self.log_rows, self.snapshot_time = 0, time.time()


def _draft(published: Published) -> tuple[Estimator, Totals]:
    """Copies to work on."""
    return copy.deepcopy(published.model), copy.deepcopy(published.totals)


def _fail(job: Job, error: BaseException) -> None:
    with suppress(InvalidStateError):
        job.done.set_exception(error)


def _checked_id(id: str | None) -> str | None:
    if id is not None and not 0 < len(id) <= LONGEST_ID:
        raise InputError(f"an id has 1 to {LONGEST_ID} characters")
    return id


def _digest(entry: Entry) -> str:
    """Of what a request says, from which its rows cannot be read."""
    return checksum(json.dumps(entry, sort_keys=True).encode())[:32]
