"""Continual reinforcement learning as an experiment: one method on one sequence of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hvcl.core.configuration import configure, to_json
from hvcl.core.errors import InputError, InterruptedRun, RunError
from hvcl.core.room import within_memory
from hvcl.rl import scores
from hvcl.rl.agent import Agent
from hvcl.rl.environments import TaskSequence
from hvcl.rl.loop import Position, Stage, TrainingProtocol, check_room, run
from hvcl.rl.methods import method
from hvcl.rl.sequences import sequence
from hvcl.runs.experiment import check_seeds
from hvcl.runs.record import Recorder

FORMAT = "rl-1"
"""Kind and version of the run folder's layout."""


@dataclass(frozen=True)
class RLConfig:
    """One method on one sequence of tasks, for any number of seeds."""

    kind: ClassVar[str] = "reinforcement"
    identity: ClassVar[tuple[str, ...]] = ("sequence", "method", "protocol", "agent")

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
        with within_memory():
            agent = method(self.method).agent(tasks.observations, tasks.actions, self.agent, seed)
        check_room(agent, tasks)
        return agent

    def facts(self) -> dict[str, Any]:
        """Names and reference returns of the tasks; raises what building the first seed raises."""
        tasks = sequence(self.sequence)
        self.make_agent(tasks, self.seeds[0])
        references = [[task.low, task.high] for task in tasks.tasks]
        return {"task_names": [task.name for task in tasks.tasks], "references": references}

    def build(self, seed: int) -> RLSession:
        """One seed, new."""
        tasks = sequence(self.sequence)
        return RLSession(tasks, self.make_agent(tasks, seed), self.protocol, seed)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "format": FORMAT,
            "kind": self.kind,
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


class RLSession:
    """One seed: an agent, its tasks, and where it is.

    There is a checkpoint at every evaluation: what was learned since the last one is learned again after an interruption.
    """

    def __init__(self, tasks: TaskSequence, agent: Agent, protocol: TrainingProtocol, seed: int) -> None:
        self.tasks, self.agent, self.protocol, self.seed = tasks, agent, protocol, seed
        self.position = Position()

    def run(self, recorder: Recorder) -> None:
        """Learn all tasks to the end."""
        count, steps = len(self.tasks.tasks), self.protocol.steps

        def show(phase: int, step: int, last: float | None, at_once: bool = False) -> None:
            text = "" if last is None else f"return {last:.1f}"
            recorder.show(phase * steps + step, count * steps, phase, count, text, at_once=at_once)

        def watch(step: int, last: float | None) -> None:
            if recorder.stop():
                raise InterruptedRun
            show(self.position.phase, step, last)

        def on_stage(stage: Stage, position: Position) -> None:
            self.position = position
            record = self._record(stage)
            recorder.log(record)
            recorder.save(self.state_dict())
            show(record["finished"], 0 if stage.finished else stage.step, stage.outcomes[max(stage.outcomes)].mean, at_once=True)

        run(self.tasks, self.agent, self.protocol, self.seed, on_stage=on_stage, watch=watch, position=self.position)

    def _record(self, stage: Stage) -> dict[str, Any]:
        count, steps, all_at_once = len(self.tasks.tasks), self.protocol.steps, self.agent.all_tasks_at_once
        return {
            "kind": "evaluation",
            "step": stage.phase * steps + stage.step,
            "time": stage.phase + (stage.step / steps if not stage.finished or all_at_once else 1.0),
            "finished": count if all_at_once and stage.finished else stage.phase + stage.finished,
            "returns": [stage.outcomes[k].returns if k in stage.outcomes else None for k in range(count)],
            "usage": [stage.outcomes[k].usage if k in stage.outcomes else {} for k in range(count)],
            "training": stage.training,
            "terms": stage.terms,
        }

    def state_dict(self) -> dict[str, Any]:
        """The agent, and the task and step that it is at."""
        return {"agent": self.agent.state_dict(), "position": [self.position.phase, self.position.step]}

    def load_state_dict(self, state: dict[str, Any], evaluations: list[dict[str, Any]]) -> None:
        """Go on from a checkpoint."""
        self.agent.load_state_dict(state["agent"])
        self.position = Position(*state["position"])

    def summarise(self, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
        """What a finished seed comes to. Forward transfer needs an agent from scratch beside it: see `hvcl.rl.scores`.

        Of an agent that learns all tasks at once there is no time right after a task was learned, and no score that needs it.
        """
        tasks, points = self.tasks.tasks, points_of(evaluations)
        references = [scores.Reference(task.low, task.high) for task in tasks]
        norms = [None] * len(tasks) if self.agent.all_tasks_at_once else scores.normalisers(points, len(tasks))
        last = points[-1]
        learned = None not in norms
        areas = [scores.learning_area(points, k, r) for k, r in enumerate(references)] if learned else None
        return {
            "task_names": [task.name for task in tasks],
            "references": [[task.low, task.high] for task in tasks],
            "returns_when_learned": norms,
            "returns_at_the_end": list(last.returns),
            "cumulative_reward": scores.cumulative(last, references, norms) if learned else None,
            "cumulative_above_random": scores.cumulative(last, references, norms, above_random=True) if learned else None,
            "average_performance": scores.average_performance(last, references),
            "forgetting": scores.forgetting(last, references, norms) if learned else None,
            "learning_areas": areas,
            "curve": [[point.time, *point.returns] for point in points],
            "usage": evaluations[-1]["usage"],
            "parameters": self.agent.num_parameters,
        }


def points_of(evaluations: list[dict[str, Any]]) -> list[scores.Point]:
    """Mean returns over time from a run's log."""
    return [
        scores.Point(record["time"], tuple(None if r is None else sum(r) / len(r) for r in record["returns"]))
        for record in evaluations
    ]
