"""What the folder of a supervised run holds, as values. A number that the run could not give (infinite, say) is NaN here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from hvcl.report.fields import Matrix, Vector

Quantity = Literal[
    "average_accuracy",
    "learning_accuracy",
    "forgetting",
    "backward_transfer",
    "forward_transfer",
    "nll",
    "calibration_error",
    "parameters",
    "stored_bytes",
    "seconds",
]
"""A number that every finished seed comes to, by its name in `result.json`."""
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


@dataclass(frozen=True)
class Config:
    """What was run: `config.json`."""

    benchmark: str
    scenario: str
    supervision: str
    memory: str
    method: str
    seeds: tuple[int, ...]
    task_names: tuple[str, ...]
    evaluated_on: str
    stream: Mapping[str, object]
    learner: Mapping[str, object]


@dataclass(frozen=True)
class Layer:
    """How one layer's gate shares the tasks among its experts; entropies in bits."""

    marginal_entropy: float
    conditional_entropy: float
    information: float
    usage: Matrix
    """Row per task: the mean gate probability of each expert."""
    routed: Matrix
    """Row per task: the fraction of examples whose first choice each expert is."""

    @property
    def experts(self) -> int:
        """The number of experts in the layer."""
        return max((len(row) for row in self.usage), default=0)


class Stretch(NamedTuple):
    """Consecutive steps in which an expert learned, `last` included, and from how many examples."""

    first: int
    last: int
    examples: int


@dataclass(frozen=True)
class Expert:
    """What one expert of a learner that opens experts as it goes has learned from."""

    number: int
    """From 0, in the order of opening."""
    opened_step: int
    """The step, from 0, that gave it its first example."""
    opened_after: int
    """The examples that the learner had seen before that step."""
    examples: int
    labels: Mapping[str, int]
    """Examples per label."""
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True)
class Terms:
    """The named loss terms, averaged over the steps since the record before."""

    step: int
    task: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Generation:
    """What a generator is worth; entropies in bits."""

    inception_score: float
    inception_bound: float
    frechet_distance: float
    experts: Vector
    """Fraction of the generated examples that came from each expert of the latent mean."""


@dataclass(frozen=True)
class Evaluation:
    """The accuracy on every task once `after` tasks are finished, and what the generator is worth, if there is one."""

    step: int
    after: int
    accuracy: Vector
    generation: Generation | None = None


@dataclass(frozen=True)
class Result:
    """What one seed came to: `result.json`."""

    accuracy_matrix: Matrix
    """Row t: the accuracy on all tasks after task t + 1, the ones not seen yet included."""
    initial_accuracy: Vector
    quantities: Mapping[Quantity, float]
    layers: Mapping[str, Layer]
    steps: float
    experts: tuple[Expert, ...] = ()
    """Those that the learner opened as it went, if it is one that does."""


@dataclass(frozen=True)
class Seed:
    """One seed of a run; `result` is None while it is unfinished."""

    seed: int
    environment: Mapping[str, object]
    terms: tuple[Terms, ...]
    evaluations: tuple[Evaluation, ...]
    result: Result | None
    pictures: Mapping[tuple[int, str], bytes] = field(default_factory=dict)
    """PNG files of rows of pictures, by the number of tasks finished and the row's name."""

    def accuracy_after(self) -> dict[int, Vector]:
        """The accuracy on every task by the number of tasks finished; as far as the seed has come."""
        if self.result is None:
            return {evaluation.after: evaluation.accuracy for evaluation in self.evaluations}
        rows = (self.result.initial_accuracy, *self.result.accuracy_matrix)
        return dict(enumerate(rows))

    def task_starts(self) -> tuple[int, ...]:
        """The steps, from 0, with which the tasks began that the seed has come to; blurred, the middles of the transitions."""
        return (0, *(evaluation.step for evaluation in self.evaluations if 0 < evaluation.after < len(evaluation.accuracy)))


@dataclass(frozen=True)
class SupervisedRun:
    """One method on one stream, over its seeds."""

    folder: Path
    config: Config
    seeds: tuple[Seed, ...]
    """Every planned seed, in order, also those that have not begun."""

    @property
    def finished(self) -> tuple[Seed, ...]:
        """The seeds that have a result."""
        return tuple(seed for seed in self.seeds if seed.result is not None)

    @property
    def shown(self) -> tuple[Seed, ...]:
        """The seeds that figures are drawn from: the finished ones, or all as far as they came if none is finished.

        Finished and unfinished seeds are never averaged together, so that a figure says the same as the table.
        """
        return self.finished or self.seeds
