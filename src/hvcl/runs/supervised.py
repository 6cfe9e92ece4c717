"""Supervised continual learning as an experiment: one method on one benchmark."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from hvcl.core.configuration import configure, to_json
from hvcl.core.errors import InputError, InterruptedRun, RunError, UnknownNameError
from hvcl.core.room import within_memory
from hvcl.core.storage import tensor_bytes
from hvcl.evaluation import AccuracyMatrix, Evaluation
from hvcl.learners import Learner, chosen_method, method
from hvcl.runs.experiment import check_seeds
from hvcl.runs.loop import Observer, run
from hvcl.runs.record import Recorder
from hvcl.settings import resolve
from hvcl.streams import Stream, StreamConfig, benchmark
from hvcl.streams.datasets import known_datasets
from hvcl.streams.events import Batch

FORMAT = 1
"""Version of the run folder's layout."""

LOG_LINES = 200
"""About how many lines of loss terms a run logs."""


@dataclass(frozen=True)
class RunConfig:
    """One method on one benchmark with one set of settings, for any number of seeds."""

    kind: ClassVar[str] = "supervised"
    identity: ClassVar[tuple[str, ...]] = ("benchmark", "method", "stream", "learner")

    benchmark: str
    method: str
    stream: StreamConfig
    learner: Any
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        other = getattr(self.learner, "pretraining", None)
        if other is not None and other not in known_datasets():
            raise UnknownNameError("data set", other, known_datasets())
        if other is not None and other == benchmark(self.benchmark).dataset:
            raise InputError(f"pretraining on {other} would show {self.method} the stream's own examples: name another data set")

    @classmethod
    def make(
        cls,
        benchmark_name: str,
        method_name: str,
        seeds: tuple[int, ...] | list[int] = (1,),
        stream: dict[str, Any] | None = None,
        learner: dict[str, Any] | None = None,
        budget: str | None = None,
    ) -> RunConfig:
        """A run from names and settings.

        What they leave open is decided by `hvcl.settings.resolve`: the `budget` (quick, standard or paper), the settings of the
        method on this benchmark, defaults.
        """
        method_name = chosen_method(method_name, learner or {})
        resolved = resolve(benchmark_name, method_name, stream, learner, budget)
        stream_config, learner_config = (
            configure(config, {name: setting.value for name, setting in found.items() if not setting.is_default})
            for config, found in ((StreamConfig, resolved.stream), (method(method_name).config, resolved.learner))
        )
        return cls(benchmark_name, method_name, stream_config, learner_config, tuple(seeds))

    def make_stream(self, seed: int) -> Stream:
        """The stream of one seed."""
        return benchmark(self.benchmark).build(self.stream, seed)

    def make_learner(self, stream: Stream, seed: int) -> Learner:
        """The learner of one seed, new."""
        chosen = method(self.method)
        if chosen.needs_all_data and not stream.is_cumulative:
            stream = stream.cumulative()
        with within_memory():
            return chosen.learner(stream.problem, self.learner, seed)

    def facts(self) -> dict[str, Any]:
        """What is stored of past data, and the names of the tasks; raises what building the first seed raises."""
        stream = self.make_stream(self.seeds[0])
        learner = self.make_learner(stream, self.seeds[0])
        return {"memory": learner.memory, "task_names": [task.name for task in stream.tasks]}

    def build(self, seed: int) -> SupervisedSession:
        """One seed, new."""
        stream = self.make_stream(seed)
        learner = self.make_learner(stream, seed)
        return SupervisedSession(stream.cumulative() if learner.needs_all_data else stream, learner)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "benchmark": self.benchmark,
            "scenario": str(self.stream.scenario),
            "supervision": self.stream.supervision,
            "method": self.method,
            "seeds": list(self.seeds),
            "evaluated_on": "validation" if self.stream.validation else "test",
            "stream": to_json(self.stream),
            "learner": to_json(self.learner),
        }

    @classmethod
    def from_json(cls, document: Any, place: Path) -> RunConfig:
        """From what `to_json` gave; `place` is named in errors."""
        try:
            if document["format"] != FORMAT:
                raise RunError(f"{place} has format {document['format']}, this version of hvcl reads {FORMAT}")
            return cls(
                document["benchmark"],
                document["method"],
                configure(StreamConfig, document["stream"]),
                configure(method(document["method"]).config, document["learner"]),
                tuple(document["seeds"]),
            )
        except (KeyError, TypeError, InputError) as error:
            raise RunError(f"{place} is not a run's configuration ({error})") from None


class SupervisedSession(Observer):
    """One seed: a learner, its stream, and its place in it."""

    def __init__(self, stream: Stream, learner: Learner) -> None:
        self.stream, self.learner = stream, learner
        self.matrix: AccuracyMatrix | None = None
        self.position = self.step = 0
        self._recorder: Recorder | None = None
        self._log_every = max(1, len(stream) // LOG_LINES)
        self._sums: dict[str, list[float]] = {}  # term: sum and number of its values; not every step has every term
        self._count = 0
        self._finished = 0
        self._accuracy: float | None = None
        self._task_ended = False

    def run(self, recorder: Recorder) -> None:
        """Learn to the end of the stream; a checkpoint at the end of every task, when one is due, and when asked to stop."""
        self._recorder = recorder
        self.matrix = run(self.stream, self.learner, self, start=self.position, matrix=self.matrix)

    @property
    def recorder(self) -> Recorder:
        """Of the run under way."""
        assert self._recorder is not None
        return self._recorder

    def on_terms(self, batch: Batch, terms: dict[str, float]) -> None:
        """Average the terms over a window, then log them."""
        self.step += 1
        self._count += 1
        for name, value in terms.items():
            total, number = self._sums.get(name, (0.0, 0))
            self._sums[name] = [total + value, number + 1]
        if self._count == self._log_every:
            means = {name: total / number for name, (total, number) in self._sums.items()}
            wrong = [name for name, mean in means.items() if not math.isfinite(mean)]
            if wrong:
                raise RunError(f"the learner has diverged: {', '.join(wrong)} not finite by step {self.step}. Try smaller steps")
            self.recorder.log({"kind": "terms", "step": self.step, "task": batch.segment, "terms": means})
            self._sums, self._count = {}, 0

    def on_evaluation(self, finished: int, evaluation: Evaluation) -> None:
        """Log the scores, and keep the pictures."""
        self._finished, self._task_ended = finished, True
        self._accuracy = sum(evaluation.accuracies[:finished]) / finished if finished else None
        self.recorder.log(
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
            self.recorder.files.save_pictures(finished, evaluation.generation.pictures)

    def after_event(self, position: int) -> None:
        """Save when a task has ended, when it is time, or when asked to stop."""
        self.position = position
        stop = self.recorder.stop()
        if self._task_ended or stop or self.recorder.save_is_due:
            self.recorder.save(self.state_dict())
        text = "" if self._accuracy is None else f"average accuracy {100 * self._accuracy:.2f} %"
        tasks = len(self.stream.tasks)
        self.recorder.show(position, len(self.stream), self._finished, tasks, text, at_once=self._task_ended)
        self._task_ended = False
        if stop and position < len(self.stream):
            raise InterruptedRun

    def state_dict(self) -> dict[str, Any]:
        """The learner, the position in the stream, and the half-filled window of loss terms."""
        return {
            "learner": self.learner.state_dict(),
            "position": self.position,
            "step": self.step,
            "sums": self._sums,
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any], evaluations: list[dict[str, Any]]) -> None:
        """Go on from a checkpoint; the accuracy matrix is in the log."""
        self.learner.load_state_dict(state["learner"])
        self.position, self.step, self._count = state["position"], state["step"], state["count"]
        self._sums = dict(state["sums"])
        initial, *rows = [record["accuracy"] for record in evaluations]
        self.matrix = AccuracyMatrix(initial, rows)
        self._finished = len(rows)

    def summarise(self, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
        """Accuracies, forgetting, calibration, what the experts learned, and what was stored."""
        matrix, last = self.matrix, evaluations[-1]
        assert matrix is not None
        return {
            "accuracy_matrix": matrix.rows,
            "initial_accuracy": matrix.initial,
            "average_accuracy": matrix.average_accuracy,
            "learning_accuracy": matrix.learning_accuracy,
            "forgetting": matrix.forgetting,
            "backward_transfer": matrix.backward_transfer,
            "forward_transfer": matrix.forward_transfer,
            "nll": sum(last["nll"]) / matrix.tasks,
            "calibration_error": sum(last["calibration_error"]) / matrix.tasks,
            "layers": last["layers"],
            "experts": expert_records(self.learner),
            "generation": [record["generation"] for record in evaluations if record.get("generation")],
            "parameters": self.learner.num_parameters,
            "stored_bytes": tensor_bytes(self.learner.state_dict()),
            "steps": self.step,
        }


def expert_records(learner: Learner) -> list[dict[str, Any]]:
    """What each expert of a growing learner has learned from and when, as it reads back from JSON; empty for other learners."""
    records = [] if learner.expert_log is None else learner.expert_log.records
    return [
        asdict(record)
        | {"labels": {str(label): count for label, count in sorted(record.labels.items())}}
        | {"stretches": [list(stretch) for stretch in record.stretches]}
        for record in records
    ]
