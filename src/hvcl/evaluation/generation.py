"""Scoring what a learner generates, and showing it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from hvcl.core.errors import HvclError
from hvcl.core.pictures import are_pictures, png, strip
from hvcl.core.problem import Problem
from hvcl.generative.scores import frechet_distance, inception_score
from hvcl.generative.vae import Generated
from hvcl.streams.tasks import TestSet

SAMPLES = 2000
"""Generated examples that the scores are measured on, and real ones that they are compared with."""

SHOWN = 16
"""Pictures in a row."""


@runtime_checkable
class Generates(Protocol):
    """A learner that has a generator."""

    problem: Problem

    @property
    def latent_experts(self) -> int:
        """Experts of the latent mean, each of which generated examples may come from."""
        ...

    def generate(self, count: int, seed: int) -> tuple[Generated, Tensor | None]:
        """Generated examples from a random state of their own; in Task-IL with the heads to classify them by."""
        ...

    def reconstruct(self, x: Tensor) -> Tensor:
        """The generator's reconstructions of inputs."""
        ...

    def features(self, x: Tensor) -> Tensor:
        """The classifier's last hidden layer ``[B, units]``."""
        ...

    def judge(self, x: Tensor, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """Class probabilities ``[B, outputs]`` and last hidden layer ``[B, units]`` of generated examples."""
        ...


@dataclass(frozen=True)
class Generation:
    """Of a learner's generator after a task."""

    inception_score: float
    """E_x[KL[p(y|x) || p(y)]] in bits."""
    inception_bound: float
    """H(p(y)) in bits: what the score is at most."""
    frechet_distance: float
    """Squared, between the classifier's features of generated and of real examples of the tasks seen; NaN if there is only one
    real example, which has no covariance."""
    experts: list[float]
    """Fraction of the generated examples that came from each expert of the latent mean."""
    pictures: dict[str, bytes] = field(default_factory=dict)
    """PNG files by name, each a row: originals, reconstructions, samples. Empty where no pictures are generated."""

    def to_json(self) -> dict[str, Any]:
        """The numbers, as plain JSON values."""
        values = {name: value for name, value in vars(self).items() if name != "pictures"}
        return values | ({"frechet_distance": None} if math.isnan(self.frechet_distance) else {})


def evaluate_generation(learner: Generates, tests: Sequence[TestSet], seen: int) -> Generation:
    """Score a generator after `seen` tasks, on their test sets; always with the same random numbers."""
    generated, task = learner.generate(SAMPLES, seed=seen)
    if not bool(generated.x.isfinite().all()):
        raise HvclError(
            "the generator makes NaN or infinite values: it has diverged. Give it smaller steps, or inputs of about unit size"
        )
    task = None if task is None else task.cpu()
    real = _spread(tests[:seen], SAMPLES)
    answers, features = learner.judge(generated.x.cpu(), task)
    score = inception_score(answers, task)
    counts = torch.bincount(generated.expert.cpu(), minlength=learner.latent_experts)
    pictures = {}
    shape = learner.problem.input_shape
    if are_pictures(shape) and generated.x.shape[1:] == shape:  # what is generated may be features
        originals = _spread(tests[:seen], SHOWN)
        rows = {"originals": originals, "reconstructions": learner.reconstruct(originals), "samples": generated.x[:SHOWN]}
        pictures = {name: png(strip(row.cpu())) for name, row in rows.items()}
    return Generation(
        inception_score=score.score,
        inception_bound=score.bound,
        frechet_distance=_distance(features, learner.features(real)),
        experts=(counts.double() / counts.sum()).tolist(),
        pictures=pictures,
    )


def _distance(generated: Tensor, real: Tensor) -> float:
    return frechet_distance(generated, real) if len(real) > 1 else math.nan


def _spread(tests: Sequence[TestSet], count: int) -> Tensor:
    """At most `count` examples, as many of each test set, evenly spaced in it."""
    parts = []
    for number, test in enumerate(tests):
        share = count // len(tests) + (number < count % len(tests))
        positions = torch.linspace(0, len(test.examples) - 1, min(share, len(test.examples))).long()
        parts.append(test.examples.take(positions)[0])
    return torch.cat(parts)
