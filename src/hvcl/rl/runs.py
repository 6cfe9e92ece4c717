"""A run of continual reinforcement learning: its configuration, its folder, one seed from beginning to end.

The folder is laid out as that of any run (`hvcl.runs.folder`): config.json, seed-N/ with metrics.jsonl, checkpoint, result.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from hvcl.core.configuration import configure, to_json
from hvcl.core.errors import InputError, RunError
from hvcl.rl import scores
from hvcl.rl.agent import Agent
from hvcl.rl.environments import TaskSequence
from hvcl.rl.loop import Position, Stage, TrainingProtocol, check_room, run
from hvcl.rl.methods import method
from hvcl.rl.sequences import sequence
from hvcl.runs.configuration import check_seeds, environment
from hvcl.runs.folder import RunFolder, SeedFolder
from hvcl.runs.record import PROGRESS_SECONDS, InterruptedRun
from hvcl.runs.state import read_json, write_json

FORMAT = "rl-1"
"""Kind and version of the run folder's layout."""


@dataclass(frozen=True)
class RLConfig:
    """One method on one chain of tasks, for any number of seeds."""

    sequence: str
    method: str
    protocol: TrainingProtocol
    agent: Any
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        check_seeds(self.seeds)

    @classmethod
    def make(
        cls, sequence_name: str, method_name: str, seeds: tuple[int, ...], protocol: dict[str, Any], agent: dict[str, Any]
    ) -> RLConfig:
        """A run from names and settings."""
        config = method(method_name).config
        return cls(sequence_name, method_name, configure(TrainingProtocol, protocol), configure(config, agent), seeds)

    def make_agent(self, tasks: TaskSequence, seed: int) -> Agent:
        """The agent of one seed, new."""
        agent = method(self.method).agent(tasks.observations, tasks.actions, self.agent, seed)
        check_room(agent, tasks)
        return agent

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "format": FORMAT,
            "sequence": self.sequence,
            "method": self.method,
            "seeds": list(self.seeds),
            "protocol": to_json(self.protocol),
            "agent": to_json(self.agent),
        }

    @classmethod
    def from_json(cls, document: Any, place: Path) -> RLConfig:
        """From what `to_json` gave; `place` is named in errors."""
        try:
            if document["format"] != FORMAT:
                raise RunError(f"{place} has format {document['format']}, this reads {FORMAT}")
            names = document["sequence"], document["method"], tuple(document["seeds"])
            return cls.make(*names, document["protocol"], document["agent"])
        except (KeyError, TypeError, InputError) as error:
            raise RunError(f"{place} is not the configuration of a run of reinforcement learning ({error})") from None


class RLRunFolder(RunFolder):
    """A folder that holds one run of reinforcement learning."""

    identity: ClassVar[tuple[str, ...]] = ("format", "sequence", "method", "protocol", "agent")

    def settings(self) -> RLConfig:
        """The run's configuration."""
        return RLConfig.from_json(read_json(self.config_path), self.config_path)

    def _saved(self) -> dict[str, Any]:
        saved: dict[str, Any] = read_json(self.config_path)
        return saved


@dataclass(frozen=True)
class Progress:
    """How far one seed of a run is."""

    position: int
    total: int
    finished_tasks: int
    tasks: int
    last_return: float | None
    """Of the last episode."""
    seconds: float

    @property
    def text(self) -> str:
        """The return in words."""
        return "" if self.last_return is None else f"return {self.last_return:.1f}"


class Recorder:
    """Writes metrics and checkpoints after every stage, and tells how far the run is."""

    def __init__(
        self,
        files: SeedFolder,
        agent: Agent,
        config: RLConfig,
        tasks: int,
        tell: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> None:
        self.files, self.agent, self.tell, self.stop = files, agent, tell, stop
        self.tasks, self.steps = tasks, config.protocol.steps
        self.position, self.size, self.seconds_before = Position(), 0, 0.0
        self._begin = time.monotonic()
        self._told = 0.0

    @property
    def seconds(self) -> float:
        """Wall-clock time spent on this seed, over all its sessions."""
        return self.seconds_before + time.monotonic() - self._begin

    def watch(self, step: int, last: float | None) -> None:
        """Show the progress; stop if asked to. What was learned since the last stage is learned again after a resume."""
        if self.stop():
            raise InterruptedRun
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self._tell(self.position.phase, step, last)

    def _tell(self, phase: int, step: int, last: float | None) -> None:
        self.tell(Progress(phase * self.steps + step, self.tasks * self.steps, phase, self.tasks, last, self.seconds))

    def on_stage(self, stage: Stage, position: Position) -> None:
        """Log the stage and save a checkpoint."""
        self.position = position
        all_at_once = self.agent.all_tasks_at_once
        finished = self.tasks if all_at_once and stage.finished else stage.phase + stage.finished
        record = {
            "kind": "evaluation",
            "step": stage.phase * self.steps + stage.step,
            "time": stage.phase + (stage.step / self.steps if not stage.finished or all_at_once else 1.0),
            "finished": finished,
            "returns": [stage.outcomes[k].returns if k in stage.outcomes else None for k in range(self.tasks)],
            "usage": [stage.outcomes[k].usage if k in stage.outcomes else {} for k in range(self.tasks)],
            "training": stage.training,
            "terms": stage.terms,
        }
        self.size = self.files.append_metrics(record)
        self.files.save_checkpoint(
            {
                "agent": self.agent.state_dict(),
                "position": [position.phase, position.step],
                "metrics_size": self.size,
                "seconds": self.seconds,
            }
        )
        last = stage.outcomes[max(stage.outcomes)].mean
        self._tell(finished, 0 if stage.finished else stage.step, last)

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        try:
            self.agent.load_state_dict(state["agent"])
        except (KeyError, RunError) as error:
            raise RunError(f"{self.files.checkpoint_path} does not fit this agent ({error}): start anew with --force") from None
        self.position = Position(*state["position"])
        self.size, self.seconds_before = state["metrics_size"], state["seconds"]


def execute_rl(
    folder: Path,
    seed: int,
    *,
    tell: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run one seed of the run in `folder`, or go on with it, and return its result. Computes on one thread."""
    run_folder = RLRunFolder(folder)
    files = run_folder.seed(seed)
    done = files.result()
    if done is not None:
        return done
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        config = run_folder.settings()
        tasks = sequence(config.sequence)
        agent = config.make_agent(tasks, seed)
        recorder = Recorder(files, agent, config, len(tasks.tasks), tell, stop)
        checkpoint = files.load_checkpoint()
        files.cut_metrics(checkpoint["metrics_size"] if checkpoint else 0)
        write_json(files.path / "environment.json", environment(seed))
        if checkpoint:
            recorder.resume(checkpoint)
        hooks: dict[str, Any] = {"on_stage": recorder.on_stage, "watch": recorder.watch}
        run(tasks, agent, config.protocol, seed, position=recorder.position, **hooks)
        result = summarise(tasks, files.evaluations(), agent) | {"seed": seed, "seconds": recorder.seconds}
        write_json(files.result_path, result)
        return result
    finally:
        torch.set_num_threads(threads)


def points_of(evaluations: list[dict[str, Any]]) -> list[scores.Point]:
    """Mean returns over time from a run's log."""
    return [
        scores.Point(record["time"], tuple(None if r is None else sum(r) / len(r) for r in record["returns"]))
        for record in evaluations
    ]


def summarise(tasks: TaskSequence, evaluations: list[dict[str, Any]], agent: Agent) -> dict[str, Any]:
    """What a finished seed comes to. Forward transfer needs an agent from scratch beside it: see `hvcl.rl.scores`.

    Of an agent that learns all tasks at once there is no time right after a task was learned, and no score that needs it.
    """
    points = points_of(evaluations)
    references = [scores.Reference(task.low, task.high) for task in tasks.tasks]
    norms = [None] * len(tasks.tasks) if agent.all_tasks_at_once else scores.normalisers(points, len(tasks.tasks))
    last = points[-1]
    learned = None not in norms
    areas = [scores.learning_area(points, k, r) for k, r in enumerate(references)] if learned else None
    return {
        "task_names": [task.name for task in tasks.tasks],
        "references": [[task.low, task.high] for task in tasks.tasks],
        "returns_when_learned": norms,
        "returns_at_the_end": list(last.returns),
        "cumulative_reward": scores.cumulative(last, references, norms) if learned else None,
        "cumulative_above_random": scores.cumulative(last, references, norms, above_random=True) if learned else None,
        "average_performance": scores.average_performance(last, references),
        "forgetting": scores.forgetting(last, references, norms) if learned else None,
        "learning_areas": areas,
        "curve": [[point.time, *point.returns] for point in points],
        "usage": evaluations[-1]["usage"],
        "parameters": agent.num_parameters,
    }
