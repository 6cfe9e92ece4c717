"""Which expert of which layer every task takes: right after it was learned, and after the last task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvcl.report.figure import Panel, across_of, figure
from hvcl.report.heat import Shade, heat_map
from hvcl.report.statistic import Statistic, statistic
from hvcl.reproduce.base import SEEDS, Finished, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH
from hvcl.reproduce.outcome import Column, Finding, Outcome, Verdict
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import supervised
from hvcl.runs import RunFolder

METHODS = {
    "hvcl-paper": "softmax gates, the paper's settings",
    "hvcl": "softmax gates, our settings",
    "hvcl-growing": "generative gate",
}
DIVIDED, ALIKE = 0.5, 0.1
"""Shares of the largest possible I(M;T) from which tasks count as divided among experts, and below which as not."""

Routes = list[list[list[float]]]
"""By layer, task and expert: the share of the task's test examples whose first choice the expert is."""


@dataclass(frozen=True)
class Paths:
    """The routes of one seed."""

    learned: Routes
    """Of each task right after it was learned."""
    ended: Routes
    """Of each task after the last one."""


class PathsFigure:
    """Routes of three kinds of gates."""

    name = "figure-paths"
    title = "The paths that tasks take through the experts"
    paper = ""
    seeds = SEEDS
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """The three in Domain-IL on split MNIST."""
        return [supervised(scale, method, "split-mnist", method) for method in METHODS]

    def read(self, found: Found) -> Outcome:
        """Routes of the first seed as pictures; information about the task, over seeds, as numbers."""
        rows, panels, findings, data = [], [], [], {}
        for method, run in found.items():
            paths = [paths_of(run, int(result["seed"])) for result in run.results]
            best = statistic(max(map(task_information, of_seed.ended)) for of_seed in paths)
            moved = statistic(PERCENT * _moved(of_seed) for of_seed in paths)
            accuracy = run.over_seeds("average_accuracy", PERCENT)
            rows.append(supervised_row(run, method, {"accuracy": accuracy, "task_information": best, "moved": moved}))
            panels.append([_panel(run, METHODS[method], "when learned", paths[0].learned)])
            panels[-1].append(_panel(run, METHODS[method], "at the end", paths[0].ended))
            findings.append(_finding(method, best, paths[0]))
            data[method] = [{"learned": of_seed.learned, "ended": of_seed.ended} for of_seed in paths]
        columns = {
            "accuracy": Column("accuracy %"),
            "task_information": Column("I(M;T), bits, best layer", 3),
            "moved": Column("% on another path than when learned", 1),
        }
        note = "Pictures are of the first seed: shares of a task's test examples, in %, whose first choice an expert is."
        return Outcome(rows, columns, figure(panels, [], WIDTH, self.title), findings, [note], data)


def paths_of(run: Finished, seed: int) -> Paths:
    """The routes of one seed, from its log."""
    evaluations = {record["after"]: record["layers"] for record in RunFolder(run.folder).seed(seed).evaluations()}
    tasks = len(run.facts["task_names"])
    last: Mapping[str, Any] = evaluations[tasks]
    ended = [layer["routed"] for layer in last.values()]
    learned = []
    for name, layer in last.items():
        width = len(layer["routed"][0])
        found = [evaluations[task + 1][name]["routed"][task] for task in range(tasks)]
        learned.append([[*row, *[0.0] * (width - len(row))] for row in found])
    return Paths(learned, ended)


def task_information(routed: Sequence[Sequence[float]]) -> float:
    """I(M;T) in bits of the chosen experts m and the tasks t, all equally probable."""
    marginal = [sum(column) / len(routed) for column in zip(*routed, strict=True)]
    return _entropy(marginal) - sum(map(_entropy, routed)) / len(routed)


def _entropy(p: Sequence[float]) -> float:
    return -sum(value * math.log2(value) for value in p if value > 0)


def _moved(paths: Paths) -> float:
    """At least this share of examples has another expert at the end than when it was learned, mean over layers and old tasks."""
    shares = []
    for learned, ended in zip(paths.learned, paths.ended, strict=True):
        for before, after in list(zip(learned, ended, strict=True))[:-1]:
            shares.append(sum(abs(a - b) for a, b in zip(before, after, strict=True)) / 2)
    return sum(shares) / len(shares) if shares else 0.0


def _panel(run: Finished, words: str, when: str, routes: Routes) -> Panel:
    columns = [f"{layer + 1}.{expert + 1}" for layer, of in enumerate(routes) for expert in range(len(of[0]))]
    tasks = [str(name) for name in run.facts["task_names"]]
    cells = [[Shade(f"{100 * share:.0f}", share) for of in routes for share in of[task]] for task in range(len(tasks))]
    chart = heat_map(
        cells,
        tasks,
        columns,
        width=across_of(2, WIDTH),
        description=f"{words}, {when}",
        column_title="layer.expert" if len(routes) > 1 else "gate.expert",
    )
    return Panel(f"{words}, {when}", chart)


def _finding(method: str, best: Statistic | None, paths: Paths) -> Finding:
    claim = f"{method}: different tasks take different experts"
    if best is None:
        return Finding(claim, "not measured", "there is no finished seed")
    experts = max(len(layer[0]) for layer in paths.ended)
    most = min(math.log2(experts), math.log2(len(paths.ended[0]))) if experts > 1 else 0.0
    share = best.mean / most if most else 0.0
    verdict: Verdict = "holds" if share >= DIVIDED else "in part" if share >= ALIKE else "does not hold here"
    because = (
        f"the chosen expert of the best layer tells {best.mean:.3f} bits of the task, of {most:.2f} possible; {best.seeds} seeds"
    )
    return Finding(claim, verdict, because)


FIGURE = PathsFigure()
