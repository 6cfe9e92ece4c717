from __future__ import annotations

import pytest

from hvcl.core.errors import InputError
from hvcl.evaluation import AccuracyMatrix

SUMMARIES = ("average_accuracy", "learning_accuracy", "forgetting", "backward_transfer", "forward_transfer")

MATRICES = {
    "three tasks": (
        [0.1, 0.2, 0.3],
        [[0.90, 0.40, 0.20], [0.95, 0.80, 0.50], [0.60, 0.70, 0.85]],
        {
            "average_accuracy": (0.60 + 0.70 + 0.85) / 3,
            "learning_accuracy": (0.90 + 0.80 + 0.85) / 3,
            "forgetting": ((0.95 - 0.60) + (0.80 - 0.70)) / 2,
            "backward_transfer": ((0.60 - 0.90) + (0.70 - 0.80)) / 2,
            "forward_transfer": ((0.40 - 0.20) + (0.50 - 0.30)) / 2,
        },
    ),
    # task 1 was best before it was learned (0.99): that is not its to forget
    "luck before learning": (
        [0.5, 0.5, 0.5],
        [[0.8, 0.99, 0.5], [0.7, 0.6, 0.4], [0.7, 0.5, 1.0]],
        {
            "average_accuracy": 2.2 / 3,
            "learning_accuracy": 2.4 / 3,
            "forgetting": (0.1 + 0.1) / 2,
            "backward_transfer": (-0.1 - 0.1) / 2,
            "forward_transfer": (0.49 - 0.1) / 2,
        },
    ),
    # the last row does not count as "best so far": what improves is forgotten negatively
    "improves to the end": (
        [0.0, 0.0],
        [[0.6, 0.1], [0.9, 0.8]],
        {
            "average_accuracy": 0.85,
            "learning_accuracy": 0.7,
            "forgetting": -0.3,
            "backward_transfer": 0.3,
            "forward_transfer": 0.1,
        },
    ),
    "one task": (
        [0.4],
        [[0.9]],
        {
            "average_accuracy": 0.9,
            "learning_accuracy": 0.9,
            "forgetting": 0.0,
            "backward_transfer": 0.0,
            "forward_transfer": 0.0,
        },
    ),
}


@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("name", MATRICES)
def test_summaries_by_hand(name: str, summary: str) -> None:
    initial, rows, expected = MATRICES[name]
    assert getattr(AccuracyMatrix(initial, rows), summary) == pytest.approx(expected[summary], abs=1e-12)


def test_rows_may_come_one_by_one() -> None:
    initial, rows, expected = MATRICES["three tasks"]
    matrix = AccuracyMatrix(initial)
    assert matrix.tasks == 3
    for i, row in enumerate(rows):
        for summary in SUMMARIES:
            with pytest.raises(InputError, match=f"only {i} of 3 tasks are learned"):
                getattr(matrix, summary)
        matrix.add(row)
    assert matrix.rows == rows
    assert matrix.forgetting == pytest.approx(expected["forgetting"])


def test_rows_are_the_matrixs_own() -> None:
    initial, row = [0.1, 0.2], [0.5, 0.6]
    matrix = AccuracyMatrix(initial, [row])
    initial[0] = row[0] = 9.0
    assert matrix.initial == [0.1, 0.2]
    assert matrix.rows == [[0.5, 0.6]]


def test_rows_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="at least one task"):
        AccuracyMatrix([])
    with pytest.raises(InputError, match="row 1 with 1 accuracies does not fit a matrix of 2 tasks"):
        AccuracyMatrix([0.1, 0.2], [[0.5]])
    full = AccuracyMatrix([0.1, 0.2], [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(InputError, match="row 3 with 2 accuracies does not fit"):
        full.add([0.5, 0.5])
    assert len(full.rows) == 2
