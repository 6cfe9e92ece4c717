"""The accuracy matrix and the summary figures of continual learning."""

from __future__ import annotations

from collections.abc import Sequence

from hvcl.core.errors import InputError


class AccuracyMatrix:
    """R[t][i]: accuracy on task i after learning tasks 0..t, for all T tasks; and `initial`, the row before any learning.

    Rows are added one by one as tasks end.
    """

    def __init__(self, initial: Sequence[float], rows: Sequence[Sequence[float]] = ()) -> None:
        if not initial:
            raise InputError("an accuracy matrix needs at least one task")
        self.initial = list(initial)
        self.rows: list[list[float]] = []
        for row in rows:
            self.add(row)

    @property
    def tasks(self) -> int:
        """T, the number of tasks."""
        return len(self.initial)

    def add(self, row: Sequence[float]) -> None:
        """The accuracies on all tasks after one more task."""
        if len(row) != self.tasks or len(self.rows) == self.tasks:
            raise InputError(f"row {len(self.rows) + 1} with {len(row)} accuracies does not fit a matrix of {self.tasks} tasks")
        self.rows.append(list(row))

    def _complete(self) -> list[list[float]]:
        if len(self.rows) < self.tasks:
            raise InputError(f"only {len(self.rows)} of {self.tasks} tasks are learned: summaries need all of them")
        return self.rows

    @property
    def average_accuracy(self) -> float:
        """Mean over tasks of the accuracy after the last task."""
        return _mean(self._complete()[-1])

    @property
    def learning_accuracy(self) -> float:
        """Mean over tasks of the accuracy right after the task was learned, R[i][i]."""
        rows = self._complete()
        return _mean([rows[i][i] for i in range(self.tasks)])

    @property
    def forgetting(self) -> float:
        """Mean over all but the last task of (best accuracy from its own task on, before the last, minus the final one).

        Chaudhry et al. (2018), with the maximum taken from the moment the task was learned. 0 for a single task.
        """
        rows = self._complete()
        drops = [max(rows[t][i] for t in range(i, self.tasks - 1)) - rows[-1][i] for i in range(self.tasks - 1)]
        return _mean(drops)

    @property
    def backward_transfer(self) -> float:
        """Mean over all but the last task of R[T-1][i] - R[i][i] (Lopez-Paz & Ranzato, 2017)."""
        rows = self._complete()
        return _mean([rows[-1][i] - rows[i][i] for i in range(self.tasks - 1)])

    @property
    def forward_transfer(self) -> float:
        """Mean over all but the first task of R[i-1][i] - initial[i]: what earlier tasks gave to one not yet seen."""
        rows = self._complete()
        return _mean([rows[i - 1][i] - self.initial[i] for i in range(1, self.tasks)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
