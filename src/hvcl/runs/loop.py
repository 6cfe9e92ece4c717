"""The loop that everything runs through."""

from __future__ import annotations

from hvcl.evaluation import AccuracyMatrix, Evaluation, evaluate
from hvcl.features import FeatureCache, remembering
from hvcl.learners.base import Learner
from hvcl.runs.pretraining import pretrain
from hvcl.streams.events import Batch, TaskEnd
from hvcl.streams.stream import Stream


class Observer:
    """Told what happens in a run. Does nothing: override what you need."""

    def on_terms(self, batch: Batch, terms: dict[str, float]) -> None:
        """The learner has learned from one batch."""

    def on_evaluation(self, finished: int, evaluation: Evaluation) -> None:
        """The learner was scored on all tasks after `finished` of them (0: before any learning)."""

    def after_event(self, position: int) -> None:
        """`position` events are done and dealt with: a good moment to save."""


def run(
    stream: Stream,
    learner: Learner,
    observer: Observer | None = None,
    *,
    start: int = 0,
    matrix: AccuracyMatrix | None = None,
) -> AccuracyMatrix:
    """Let `learner` learn from `stream`, scoring it on every task before the first and after each.

    Before the stream it is shown the data that it is to be pretrained on, if its settings name any.

    A resumed run gives the number of events that are done (`start`) and the `matrix` so far. Fixed features of examples that come
    again, in another epoch or test, are computed once (`FeatureCache`).
    """
    observer = observer or Observer()
    if learner.needs_all_data and not stream.is_cumulative:
        stream = stream.cumulative()
    with remembering(FeatureCache()):
        if matrix is None:
            pretrain(learner)
            first = evaluate(learner, stream.tests, seen=0)
            matrix = AccuracyMatrix(first.accuracies)
            observer.on_evaluation(0, first)
        for position, event in enumerate(stream.events(start), start + 1):
            match event:
                case Batch(x, y, task):
                    observer.on_terms(event, learner.observe(x, y, task))
                case TaskEnd(task, announced):
                    if announced:
                        learner.end_task()
                    evaluation = evaluate(learner, stream.tests, seen=task + 1)
                    matrix.add(evaluation.accuracies)
                    observer.on_evaluation(task + 1, evaluation)
            observer.after_event(position)
    return matrix
