"""Scoring a learner on test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.core.errors import HvclError
from hvcl.evaluation.gates import GateMeter, LayerInformation
from hvcl.evaluation.generation import Generates, Generation, evaluate_generation
from hvcl.learners.base import Learner
from hvcl.streams.tasks import TestSet

FLOOR = 1e-12
"""Probabilities are taken to be at least this in the log-likelihood, so that one sure mistake costs 27.6 nats, not infinity."""


@dataclass(frozen=True)
class Score:
    """On one test set: fraction correct, mean negative log-likelihood in nats, expected calibration error."""

    accuracy: float
    nll: float
    calibration_error: float


@dataclass(frozen=True)
class Evaluation:
    """A learner's score on every task, the information measures of its gates, and the scores of its generator."""

    scores: list[Score]
    layers: dict[str, LayerInformation]
    generation: Generation | None = None
    """Scores of the generator; None without one, and before any learning."""

    @property
    def accuracies(self) -> list[float]:
        """Accuracy on every task."""
        return [score.accuracy for score in self.scores]


def evaluate(learner: Learner, tests: Sequence[TestSet], seen: int) -> Evaluation:
    """Score `learner` on every test set, in one pass; `seen` tasks count for the gates' information (0: all of them)."""
    meter = GateMeter(learner.network)
    scores = []
    for test in tests:
        meter.begin_task()
        probabilities, targets = [], []
        for x, y, task in test.batches():
            predicted = learner.predict(x, task)
            if predicted.shape != (len(x), learner.problem.outputs) or not bool(predicted.isfinite().all()):
                raise HvclError(f"the learner's predictions on {test.name!r} are not finite probabilities: it has diverged")
            probabilities.append(predicted)
            targets.append(y)
            meter.record(learner.expert_probabilities)
        scores.append(score(torch.cat(probabilities), torch.cat(targets)))
    generation = evaluate_generation(learner, tests, seen) if seen and isinstance(learner, Generates) else None
    return Evaluation(scores, meter.measure(seen or len(tests)), generation)


def score(probabilities: Tensor, targets: Tensor) -> Score:
    """Score of class probabilities ``[N, classes]`` against targets ``[N]``."""
    confidence, predicted = probabilities.max(1)
    correct = predicted == targets
    likelihood = probabilities.gather(1, targets.unsqueeze(1)).clamp_min(FLOOR)
    return Score(
        accuracy=float(correct.double().mean()),
        nll=float(-likelihood.double().log().mean()),
        calibration_error=calibration_error(confidence, correct),
    )


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    r"""Expected calibration error (Guo et al., 2017) over equal-width bins of the confidence.

    .. math:: \sum_b \frac{n_b}{n} |accuracy_b - confidence_b|
    """
    place = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, correct.double() - confidence.double())
    return float(gap.abs().sum() / len(confidence))
