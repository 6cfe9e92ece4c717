"""Scores against hand-computed cases and plain loops; evaluation against learners with known answers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hvcl.core.errors import HvclError
from hvcl.core.problem import Problem
from hvcl.evaluation import calibration_error, evaluate
from hvcl.evaluation.scores import Score, score
from hvcl.learners.base import Learner, State
from hvcl.streams.tasks import Examples, TestSet


class Fixed(Learner):
    """Predicts what its inputs say: they are the probabilities."""

    def __init__(self, outputs: int = 2, network: nn.Module | None = None, spoil: float | None = None, tasks: int = 0) -> None:
        super().__init__(Problem((outputs,), outputs, task_outputs=((0, 1),) * tasks or None))
        self.network, self.spoil = network, spoil
        self.given: list[tuple[int, Tensor | None]] = []

    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        self.given.append((len(x), task))
        if self.spoil is not None:
            x = x.clone()
            x[-1, 0] = self.spoil
        return x

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        raise AssertionError("evaluation must not teach")

    def end_task(self) -> None:
        raise AssertionError("evaluation is not the end of a task")

    @property
    def num_parameters(self) -> int:
        return 0

    def state_dict(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


def probabilities(n: int, classes: int, seed: int, sharpness: float = 2.0) -> Tensor:
    return (sharpness * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed))).softmax(1)


def examples_of(x: Tensor, y: Tensor, task: int | None = None, name: str = "a") -> TestSet:
    return TestSet(name, Examples(x, y, torch.arange(len(x))), task)


# -- one test set ---------------------------------------------------------------------------------------------------------


def test_score_by_hand() -> None:
    p = torch.tensor([[0.90, 0.10], [0.65, 0.35], [0.18, 0.82], [0.30, 0.70]])
    measured = score(p, torch.tensor([0, 1, 1, 1]))
    assert measured.accuracy == 0.75
    assert measured.nll == pytest.approx(-(math.log(0.90) + math.log(0.35) + math.log(0.82) + math.log(0.70)) / 4, rel=1e-6)
    # four confidences in four different bins
    assert measured.calibration_error == pytest.approx((0.10 + 0.65 + 0.18 + 0.30) / 4, rel=1e-6)


def test_score_against_a_plain_loop() -> None:
    p, y = probabilities(500, 7, seed=0), torch.randint(7, (500,), generator=torch.Generator().manual_seed(1))
    correct = nll = 0.0
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, target in zip(p.tolist(), y.tolist(), strict=True):
        best = max(range(7), key=row.__getitem__)
        correct += best == target
        nll -= math.log(row[target])
        bins.setdefault(min(int(row[best] * 15), 14), []).append((row[best], best == target))
    expected = sum(
        len(held) / 500 * abs(sum(hit for _, hit in held) / len(held) - sum(sure for sure, _ in held) / len(held))
        for held in bins.values()
    )
    assert len(bins) > 8
    measured = score(p, y)
    assert measured.accuracy == pytest.approx(correct / 500, abs=1e-12)
    assert measured.nll == pytest.approx(nll / 500, rel=1e-6)
    assert measured.calibration_error == pytest.approx(expected, rel=1e-5)


def test_a_sure_mistake_costs_27_6_nats_not_infinity() -> None:
    measured = score(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 0]))
    assert measured.nll == pytest.approx(-math.log(1e-12) / 2, rel=1e-6)
    assert measured.accuracy == 0.5
    assert measured.calibration_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("confidence", "correct", "expected"),
    [
        ([0.91, 0.92], [1, 0], abs(1 - 1.83) / 2),  # one bin: the gaps meet before the absolute value
        ([0.90, 0.30], [0, 1], (0.90 + 0.70) / 2),  # two bins: they do not
        ([1.0, 0.95], [1, 0], abs(1 - 1.95) / 2),  # certainty belongs to the last bin
        ([0.0, 1.0], [0, 1], 0.0),
        ([0.7] * 10, [1] * 7 + [0] * 3, 0.0),
        ([0.7] * 10, [1] * 4 + [0] * 6, 0.3),
    ],
)
def test_calibration_error_by_hand(confidence: list[float], correct: list[int], expected: float) -> None:
    measured = calibration_error(torch.tensor(confidence), torch.tensor(correct, dtype=torch.bool))
    assert measured == pytest.approx(expected, abs=1e-6)


def test_number_of_bins() -> None:
    confidence, correct = torch.tensor([0.2, 0.8]), torch.tensor([True, False])
    assert calibration_error(confidence, correct, bins=1) == pytest.approx(0.0, abs=1e-6)
    assert calibration_error(confidence, correct, bins=2) == pytest.approx(0.8, abs=1e-6)


# -- a learner on all tasks -----------------------------------------------------------------------------------------------


def test_evaluate_scores_every_test_set_by_itself() -> None:
    sets = []
    for seed, n in ((1, 2300), (2, 17)):  # several batches, and a part of one
        x = probabilities(n, 3, seed)
        sets.append(examples_of(x, torch.randint(3, (n,), generator=torch.Generator().manual_seed(seed + 10))))
    evaluation = evaluate(Fixed(3), sets, seen=1)
    for measured, expected in zip(evaluation.scores, (score(s.examples.x, s.examples.y) for s in sets), strict=True):
        assert isinstance(measured, Score)
        for name in ("accuracy", "nll", "calibration_error"):
            assert getattr(measured, name) == pytest.approx(getattr(expected, name), rel=1e-9)
    assert evaluation.accuracies == [measured.accuracy for measured in evaluation.scores]
    assert evaluation.accuracies[0] != evaluation.accuracies[1]


@pytest.mark.parametrize("tasks", [(0, 1), (None, None)])
def test_the_learner_is_given_every_example_once_and_task_ids_in_task_il_only(tasks: tuple[int | None, ...]) -> None:
    learner = Fixed(tasks=0 if tasks[0] is None else 2)
    sets = zip((1500, 3), tasks, strict=True)
    evaluate(learner, [examples_of(probabilities(n, 2, n), torch.zeros(n).long(), task) for n, task in sets], 0)
    assert sum(n for n, _ in learner.given) == 1503
    ids = [None if task is None else set(task.tolist()) for _, task in learner.given]
    assert ids == ([{0}, {0}, {1}] if tasks[0] == 0 else [None] * 3)
    assert all(task is None or len(task) == n for n, task in learner.given)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_are_an_error(value: float) -> None:
    good = examples_of(probabilities(5, 2, 0), torch.zeros(5).long(), name="the test set")
    evaluate(Fixed(), [good], 0)
    with pytest.raises(HvclError, match=r"predictions on 'the test set' are not finite probabilities: it has diverged"):
        evaluate(Fixed(spoil=value), [good], 0)


def test_predictions_of_the_wrong_shape_are_an_error() -> None:
    class Narrow(Fixed):
        def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
            return x[:, :2]

    with pytest.raises(HvclError, match="'a'"):
        evaluate(Narrow(3), [examples_of(probabilities(5, 3, 0), torch.zeros(5).long())], 0)


@pytest.mark.parametrize("network", [None, nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))])
def test_learners_without_experts_have_no_layers_to_report(network: nn.Module | None) -> None:
    evaluation = evaluate(Fixed(network=network), [examples_of(probabilities(5, 2, 0), torch.zeros(5).long())], 0)
    assert evaluation.layers == {}
    assert len(evaluation.scores) == 1
