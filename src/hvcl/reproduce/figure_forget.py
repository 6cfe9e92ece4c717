"""Exact unlearning: the examples of one task are taken out of a learner that has learned five.

The learner of a finished run (Class-IL, boundaries) gives up a quarter of the task's training examples after another. At the end
it is compared with one that never saw them, on the same feature map: all probabilities on all test data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.core.errors import RunError
from hvcl.learners import Exact, Learner
from hvcl.report.charts import Axis, series_style
from hvcl.report.figure import Key, Panel, figure
from hvcl.report.statistic import statistic
from hvcl.reproduce.base import SEEDS, Finished, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH, chart, series
from hvcl.reproduce.outcome import Column, Finding, Outcome, Verdict
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import supervised
from hvcl.reproduce.trained import trained
from hvcl.streams import Stream

REMOVED = 1
"""The task that is taken out: the second."""
STEPS = 4
SAME = 1e-3
"""Largest difference of a probability that rounding is allowed."""
BATCH = 1000


@dataclass(frozen=True)
class Unlearning:
    """Of one seed: accuracies in % by the share removed in %, and the largest difference from never having learned it."""

    removed: dict[float, float]
    rest: dict[float, float]
    difference: float


class Forget:
    """Accuracy on what is removed, and on the rest."""

    name = "figure-forget"
    title = "Exact unlearning: one task is taken out"
    paper = ""
    seeds = SEEDS
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """The exact learner in Class-IL on split MNIST."""
        return [supervised(scale, "exact", "split-mnist", "exact", {"scenario": "class"})]

    def read(self, found: Found) -> Outcome:
        """Unlearn, seed by seed."""
        run = found["exact"]
        seeds = [unlearn(run, int(result["seed"])) for result in run.results]
        task = run.facts["task_names"][REMOVED]
        curves = {f"task {task}, which is removed": [s.removed for s in seeds], "the other tasks": [s.rest for s in seeds]}
        rows = []
        for share in seeds[0].removed:
            values = {
                "removed": statistic(s.removed[share] for s in seeds),
                "rest": statistic(s.rest[share] for s in seeds),
                "difference": statistic(s.difference for s in seeds) if share == PERCENT else None,
            }
            rows.append(supervised_row(run, f"{share:.0f} % removed", values))
        columns = {
            "removed": Column(f"accuracy % on task {task}"),
            "rest": Column("accuracy % on the others"),
            "difference": Column("largest difference of a probability", 7),
        }
        ticks = tuple((share, f"{share:.0f}") for share in seeds[0].removed)
        x = Axis(-4.0, 104.0, ticks, f"examples of task {task} that are removed, %")
        lines = chart(series(curves), x, (WIDTH, 260), self.title, floor=0.0, ceiling=100.0)
        keys = [Key(label, series_style(number)) for number, label in enumerate(curves)]
        picture = figure([[Panel("Accuracy %, Class-IL", lines)]], keys, WIDTH, self.title)
        data = {"difference": [s.difference for s in seeds]}
        return Outcome(rows, columns, picture, _findings(seeds, task), [], data)


def unlearn(run: Finished, seed: int) -> Unlearning:
    """Take the task out of the learner of one seed, and compare."""
    stream, learner = trained(run.folder, seed)
    if not isinstance(learner, Exact):
        raise RunError(f"{run.folder} holds no run of the exact learner")
    examples = stream.tasks[REMOVED].train
    removed, rest = {0.0: _accuracy(stream, learner, True)}, {0.0: _accuracy(stream, learner, False)}
    for step, positions in enumerate(torch.arange(len(examples)).chunk(STEPS), 1):
        for part in positions.split(BATCH):
            learner.remove(*examples.take(part))
        share = PERCENT * step / STEPS
        removed[share], rest[share] = _accuracy(stream, learner, True), _accuracy(stream, learner, False)
    never = _never_saw(stream, learner)
    difference = max(float((a - b).abs().max()) for a, b in zip(_answers(stream, learner), _answers(stream, never), strict=True))
    return Unlearning(removed, rest, difference)


def _never_saw(stream: Stream, learner: Exact) -> Exact:
    """A learner with the same feature map that learns the other tasks only."""
    never = learner.empty_copy()
    for number, task in enumerate(stream.tasks):
        if number != REMOVED:
            for part in torch.arange(len(task.train)).split(BATCH):
                never.observe(*task.train.take(part))
        never.end_task()
    return never


def _answers(stream: Stream, learner: Learner) -> list[Tensor]:
    return [learner.predict(x, task) for test in stream.tests for x, _, task in test.batches()]


def _accuracy(stream: Stream, learner: Learner, of_removed: bool) -> float:
    """In %: on the task that is removed, or mean over the others."""
    found = []
    for number, test in enumerate(stream.tests):
        if (number == REMOVED) == of_removed:
            right = sum(int((learner.predict(x, task).argmax(1) == y).sum()) for x, y, task in test.batches())
            found.append(PERCENT * right / len(test.examples))
    return sum(found) / len(found)


def _findings(seeds: Sequence[Unlearning], task: str) -> list[Finding]:
    worst = max(s.difference for s in seeds)
    gone = max(s.removed[PERCENT] for s in seeds)
    change = min(s.rest[PERCENT] - s.rest[0.0] for s in seeds)
    count = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    exact: Verdict = "holds" if worst <= SAME else "does not hold here"
    same = f"largest difference of a probability on any test example {worst:.1e} (rounding allows {SAME:g}); {count}"
    return [
        Finding(
            "After removal the learner is as if it had never seen the task", exact, same if math.isfinite(worst) else "not finite"
        ),
        Finding(
            f"Nothing of task {task} is left",
            "holds" if gone == 0.0 else "in part" if gone < 1.0 else "does not hold here",
            f"accuracy on it after removal at most {gone:.2f} %; {count}",
        ),
        Finding(
            "The other tasks lose nothing",
            "holds" if change >= 0.0 else "in part" if change > -0.5 else "does not hold here",
            f"their mean accuracy changes by at least {change:+.2f} points; {count}",
        ),
    ]


FIGURE = Forget()
