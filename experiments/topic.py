"""What a topic of the search declares: a space of settings, a protocol that scores one of them, and which score is best."""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from experiments.records import Record, read_records

Settings = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """Settings of one method on one benchmark."""

    benchmark: str
    method: str
    settings: Settings
    """Of the learner or agent; what they leave open is as the benchmark has it."""
    stream: Settings = field(default_factory=dict)
    """Of the stream, in place of the protocol's."""
    asked: tuple[str, ...] = ()
    """The name=value pairs of the command line that it was made from."""


class TrialProtocol(Protocol):
    """How a trial is run."""

    def types(self, method: str) -> tuple[Settings, Settings]:
        """Types of the settings of the stream, and of those of the method, by name."""

    def identity(self, trial: Trial) -> Record:
        """The part of a trial's record that says what was tried. Settings that do not fit raise an `HvclError`."""

    def run(self, trial: Trial) -> Record:
        """The part of a trial's record that says what was found."""


@dataclass(frozen=True)
class Supervised:
    """Training on the stream of seed 0, scored on held-out training data; the test set is never used.

    Found are the average accuracy after the last task and right after each task was learned, the forgetting, all accuracies after
    every task, I(M;X) in bits of every gate after the last task, the scores and the ELBO of a generator then, and the seconds of
    processor time; means over initialisations (what is of gates and generators: of the last one).
    """

    stream: Settings
    """Settings of the stream, on every benchmark."""
    streams: dict[str, Settings] = field(default_factory=dict)
    """More of them, by benchmark."""
    learner: Settings = field(default_factory=dict)
    """Settings of the learner that trials leave open, in place of the benchmark's."""
    initialisations: tuple[int, ...] = (0,)
    """Seeds of the learner: every trial is trained once with each."""
    all_settings: bool = False
    """Record every setting of stream and learner instead of those that were tried."""

    def types(self, method: str) -> tuple[Settings, Settings]:
        """Types of the settings of the stream, and of those of the method, by name."""
        from hvcl.core.configuration import field_types
        from hvcl.learners import method as registered
        from hvcl.streams import StreamConfig

        return field_types(StreamConfig), field_types(registered(method).config)

    def configuration(self, trial: Trial) -> Any:
        """The run of a trial."""
        from hvcl.runs import RunConfig

        stream = self.stream | self.streams.get(trial.benchmark, {}) | trial.stream
        return RunConfig.make(trial.benchmark, trial.method, (0,), stream, self.learner | trial.settings)

    def identity(self, trial: Trial) -> Record:
        """Benchmark, method and settings."""
        document = self.configuration(trial).to_json()
        names = {"benchmark": trial.benchmark, "method": trial.method}
        if not self.all_settings:
            return _as_json(names | {"settings": trial.settings} | trial.stream)
        # the device is where a trial is computed, not what is tried
        learner = {name: value for name, value in document["learner"].items() if name != "device"}
        return _as_json(names | {"stream": document["stream"], "learner": learner})

    def run(self, trial: Trial) -> Record:
        """Train with every initialisation."""
        from hvcl.runs import run

        config = self.configuration(trial)
        matrices, begun = [], time.process_time()
        for initialisation in self.initialisations:
            stream = config.make_stream(0)
            watch = _watch()
            matrices.append(run(stream, config.make_learner(stream, initialisation), watch))
        return {
            "accuracy": statistics.fmean(matrix.average_accuracy for matrix in matrices),
            "learning_accuracy": statistics.fmean(matrix.learning_accuracy for matrix in matrices),
            "accuracies": [
                [statistics.fmean(values) for values in zip(*rows, strict=True)]
                for rows in zip(*(matrix.rows for matrix in matrices), strict=True)
            ],
            "forgetting": statistics.fmean(matrix.forgetting for matrix in matrices),
            "information": watch.information,
            "generation": watch.generation,
            "elbo": watch.elbo,
            "seconds": time.process_time() - begun,
        }


def _watch() -> Any:
    from hvcl.runs.loop import Observer

    class Watch(Observer):
        """Prints accuracies after every task, keeps the generator's scores and a running mean of its ELBO."""

        elbo = 0.0

        def __init__(self) -> None:
            self.generation: Record = {}
            self.information: Record = {}

        def on_terms(self, batch: Any, terms: dict[str, float]) -> None:
            self.elbo += 0.02 * (terms.get("elbo", self.elbo) - self.elbo)

        def on_evaluation(self, finished: int, evaluation: Any) -> None:
            if finished:
                self.information = {name: layer.information for name, layer in evaluation.layers.items()}
                self.generation = {} if evaluation.generation is None else evaluation.generation.to_json()
                print("  " + " ".join(f"{100 * value:.1f}" for value in evaluation.accuracies[:finished]), flush=True)

    return Watch()


@dataclass(frozen=True)
class Reinforcement:
    """Training on a few tasks of a sequence with seed 0; found are the returns after every task and the performance at the end.

    Performance is the mean over tasks of the return on a scale from random actions (0) to the task's reference (1).
    """

    tasks: tuple[str, ...]
    """Names of tasks of the benchmark, which is a task sequence, in the order in which they are learned."""
    training: dict[str, int]
    """Settings of `hvcl.rl.TrainingProtocol`."""
    agent: Settings
    """Settings of every agent."""

    def types(self, method: str) -> tuple[Settings, Settings]:
        """Types of the settings of the method, by name; there are none of a stream."""
        from hvcl.core.configuration import field_types
        from hvcl.rl.methods.registry import method as registered

        return {}, field_types(registered(method).config)

    def identity(self, trial: Trial) -> Record:
        """Benchmark, method and settings."""
        from hvcl.core.configuration import configure
        from hvcl.rl.methods.registry import method as registered

        configure(registered(trial.method).config, self.agent | trial.settings)
        return _as_json({"benchmark": trial.benchmark, "method": trial.method, "settings": trial.settings})

    def run(self, trial: Trial) -> Record:
        """Train on the tasks in order."""
        from hvcl.rl import TaskSequence, TrainingProtocol, create, run, sequence
        from hvcl.rl.scores import Reference

        by_name = {task.name: task for task in sequence(trial.benchmark).tasks}
        tasks = TaskSequence("search", tuple(by_name[name] for name in self.tasks))
        agent = create(trial.method, tasks.observations, tasks.actions, 0, **self.agent, **trial.settings)
        rows: list[list[float]] = []

        def note(stage: Any, position: Any) -> None:
            rows.append([outcome.mean for outcome in stage.outcomes.values()])
            print(f"  {[round(value) for value in rows[-1]]}", flush=True)

        run(tasks, agent, TrainingProtocol(**self.training), 0, on_stage=note)
        ends = zip(tasks.tasks, rows[-1], strict=True)
        performances = [Reference(task.low, task.high).performance(value) for task, value in ends]
        return {"returns": rows, "performance": statistics.fmean(performances)}


def _as_json(record: Record) -> Record:
    """The record as it reads back from its file: a tuple is a list there."""
    return json.loads(json.dumps(record))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Final:
    """The best trials of a method on a benchmark, run again with other settings of the stream; their scores count alone."""

    benchmark: str
    method: str
    count: int
    stream: Settings


@dataclass(frozen=True)
class Topic:
    """A search: its configuration, and the trials that are recorded beside it."""

    folder: Path
    """Where `trials.jsonl` lies."""
    protocol: TrialProtocol
    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]
    space: Callable[[str, str], list[Settings]] | None = None
    """The settings to try for a benchmark and a method; None where they are chosen one by one on the command line."""
    finals: tuple[Final, ...] = ()
    score: str = "accuracy"
    """The field of a record that is to be as high as possible."""
    margin: float = 0.0
    """A later trial is better if its score is higher by more than this."""

    @property
    def output(self) -> Path:
        """The file of recorded trials."""
        return self.folder / "trials.jsonl"

    def records(self, path: Path | None = None) -> list[Record]:
        """All recorded trials. Those of a topic with one benchmark may leave its name out."""
        known = {"benchmark": self.benchmarks[0]} if len(self.benchmarks) == 1 else {}
        return [known | record for record in read_records(path or self.output)]

    def trials(self, benchmark: str | None = None, method: str | None = None) -> list[Trial]:
        """The trials of the space, in order; those of one benchmark or method only, if it is given."""
        assert self.space is not None
        return [
            Trial(b, m, settings)
            for b in self.benchmarks
            for m in self.methods
            if benchmark in (None, b) and method in (None, m)
            for settings in self.space(b, m)
        ]

    def best(self, records: list[Record]) -> dict[tuple[str, str], Record]:
        """The best trial of each benchmark and method, the first of equals; those with more epochs or tasks first."""
        found: dict[tuple[str, str], Record] = {}
        for record in records:
            before = found.setdefault((record["benchmark"], record["method"]), record)
            lengths = [(r.get("epochs", 0), r.get("tasks", 0)) for r in (record, before)]
            if lengths[0] > lengths[1] or (lengths[0] == lengths[1] and record[self.score] > before[self.score] + self.margin):
                found[record["benchmark"], record["method"]] = record
        return found
