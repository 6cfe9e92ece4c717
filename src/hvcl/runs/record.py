"""One seed of a run, from its folder: recorded as it goes, resumed exactly where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hvcl.evaluation import AccuracyMatrix, Evaluation
from hvcl.learners.base import Learner
from hvcl.runs.configuration import RunConfig, environment
from hvcl.runs.folder import RunFolder, SeedFolder
from hvcl.runs.loop import Observer, run
from hvcl.runs.state import tensor_bytes, write_json
from hvcl.streams.events import Batch

LOG_LINES = 200
"""About how many lines of loss terms a run logs."""

PROGRESS_SECONDS = 0.2
"""How often progress is told at most."""


class InterruptedRun(Exception):
    """The run was asked to stop; its checkpoint is saved."""


@dataclass(frozen=True)
class Progress:
    """How far one seed of a run is."""

    position: int
    total: int
    finished_tasks: int
    tasks: int
    accuracy: float | None
    """Average over the tasks seen so far, at the last evaluation."""
    seconds: float

    @property
    def text(self) -> str:
        """The accuracy in words."""
        return "" if self.accuracy is None else f"average accuracy {100 * self.accuracy:.2f} %"


Tell = Callable[[Progress], None]
Stop = Callable[[], bool]


class Recorder(Observer):
    """Writes metrics and checkpoints, and tells how far the run is.

    A checkpoint holds the learner, the position in the stream, the log's length and the half-filled window of loss terms, so
    that a run which is killed at any moment goes on as if nothing had happened.
    """

    def __init__(
        self,
        folder: SeedFolder,
        learner: Learner,
        total: int,
        tasks: int,
        *,
        tell: Tell,
        stop: Stop,
        checkpoint_seconds: float,
    ) -> None:
        self.folder, self.learner, self.total, self.tasks = folder, learner, total, tasks
        self.tell, self.stop, self.checkpoint_seconds = tell, stop, checkpoint_seconds
        self.log_every = max(1, total // LOG_LINES)
        self.position = self.step = self.finished = 0
        self.accuracy: float | None = None
        self.sums: dict[str, list[float]] = {}  # term: sum and number of its values; not every step has every term
        self.count = 0
        self.metrics_size = 0
        self.seconds_before = 0.0
        self.task_ended = False
        self._begin = self._saved = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock time spent on this seed, over all its sessions."""
        return self.seconds_before + time.monotonic() - self._begin

    def on_terms(self, batch: Batch, terms: dict[str, float]) -> None:
        """Average the terms over a window, then log them."""
        self.step += 1
        self.count += 1
        for name, value in terms.items():
            total, number = self.sums.get(name, (0.0, 0))
            self.sums[name] = [total + value, number + 1]
        if self.count == self.log_every:
            means = {name: total / number for name, (total, number) in self.sums.items()}
            self._log({"kind": "terms", "step": self.step, "task": batch.segment, "terms": means})
            self.sums, self.count = {}, 0

    def on_evaluation(self, finished: int, evaluation: Evaluation) -> None:
        """Log the scores, and keep the pictures."""
        self.finished, self.task_ended = finished, True
        self.accuracy = sum(evaluation.accuracies[:finished]) / finished if finished else None
        self._log(
            {
                "kind": "evaluation",
                "step": self.step,
                "after": finished,
                "accuracy": evaluation.accuracies,
                "nll": [score.nll for score in evaluation.scores],
                "calibration_error": [score.calibration_error for score in evaluation.scores],
                "layers": {name: layer.to_json() for name, layer in evaluation.layers.items()},
                "generation": None if evaluation.generation is None else evaluation.generation.to_json(),
            }
        )
        if evaluation.generation is not None and evaluation.generation.pictures:
            self.folder.save_pictures(finished, evaluation.generation.pictures)

    def after_event(self, position: int) -> None:
        """Save when a task has ended, when it is time, or when asked to stop."""
        self.position = position
        now = time.monotonic()
        stop = self.stop()
        if self.task_ended or stop or now - self._saved >= self.checkpoint_seconds:
            self.save()
            self._saved = time.monotonic()
        if self.task_ended or now - self._told >= PROGRESS_SECONDS:
            self.tell(Progress(position, self.total, self.finished, self.tasks, self.accuracy, self.seconds))
            self._told = now
        self.task_ended = False
        if stop and position < self.total:
            raise InterruptedRun

    def _log(self, record: dict[str, Any]) -> None:
        self.metrics_size = self.folder.append_metrics(record)

    def save(self) -> None:
        """Write a checkpoint."""
        self.folder.save_checkpoint(
            {
                "learner": self.learner.state_dict(),
                "position": self.position,
                "step": self.step,
                "sums": self.sums,
                "count": self.count,
                "metrics_size": self.metrics_size,
                "seconds": self.seconds,
            }
        )

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.learner.load_state_dict(state["learner"])
        self.position, self.step, self.count = state["position"], state["step"], state["count"]
        self.sums, self.metrics_size = dict(state["sums"]), state["metrics_size"]
        self.seconds_before = state["seconds"]


def execute(
    folder: RunFolder,
    seed: int,
    *,
    tell: Tell = lambda progress: None,
    stop: Stop = lambda: False,
    checkpoint_seconds: float = 30.0,
) -> dict[str, Any]:
    """Run one seed of the run in `folder`, or go on with it, and return its result.

    Computes on one thread: small networks are fastest so, one process per core, and results do not depend on the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _execute(folder, seed, tell, stop, checkpoint_seconds)
    finally:
        torch.set_num_threads(threads)


def _execute(folder: RunFolder, seed: int, tell: Tell, stop: Stop, checkpoint_seconds: float) -> dict[str, Any]:
    files = folder.seed(seed)
    done = files.result()
    if done is not None:
        return done
    config = folder.config()
    stream = config.make_stream(seed)
    learner = config.make_learner(stream, seed)
    if learner.needs_all_data:
        stream = stream.cumulative()
    options = {"tell": tell, "stop": stop, "checkpoint_seconds": checkpoint_seconds}
    recorder = Recorder(files, learner, len(stream), len(stream.tasks), **options)  # type: ignore[arg-type]
    checkpoint = files.load_checkpoint()
    files.cut_metrics(checkpoint["metrics_size"] if checkpoint else 0)
    write_json(files.path / "environment.json", environment(seed))
    matrix = None
    if checkpoint:
        recorder.resume(checkpoint)
        initial, *rows = [record["accuracy"] for record in files.evaluations()]
        matrix = AccuracyMatrix(initial, rows)
        recorder.finished = len(rows)
    matrix = run(stream, learner, recorder, start=recorder.position, matrix=matrix)
    result = summarise(config, seed, matrix, files.evaluations(), learner, recorder)
    write_json(files.result_path, result)
    return result


def expert_records(learner: Learner) -> list[dict[str, Any]]:
    """What each expert of a growing learner has learned from and when, as it reads back from JSON; empty for other learners."""
    records = [] if learner.expert_log is None else learner.expert_log.records
    return [
        asdict(record)
        | {"labels": {str(label): count for label, count in sorted(record.labels.items())}}
        | {"stretches": [list(stretch) for stretch in record.stretches]}
        for record in records
    ]


def summarise(
    config: RunConfig,
    seed: int,
    matrix: AccuracyMatrix,
    evaluations: list[dict[str, Any]],
    learner: Learner,
    recorder: Recorder,
) -> dict[str, Any]:
    """The result of one seed."""
    tasks, last = matrix.tasks, evaluations[-1]
    return {
        "seed": seed,
        "accuracy_matrix": matrix.rows,
        "initial_accuracy": matrix.initial,
        "average_accuracy": matrix.average_accuracy,
        "learning_accuracy": matrix.learning_accuracy,
        "forgetting": matrix.forgetting,
        "backward_transfer": matrix.backward_transfer,
        "forward_transfer": matrix.forward_transfer,
        "nll": sum(last["nll"]) / tasks,
        "calibration_error": sum(last["calibration_error"]) / tasks,
        "layers": last["layers"],
        "experts": expert_records(learner),
        "generation": [record["generation"] for record in evaluations if record.get("generation")],
        "parameters": learner.num_parameters,
        "stored_bytes": tensor_bytes(learner.state_dict()),
        "steps": recorder.step,
        "seconds": recorder.seconds,
    }
