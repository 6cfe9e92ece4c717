"""Accuracy over a stream whose tasks nobody announces, with sharp and with blurred transitions."""

from __future__ import annotations

from collections.abc import Sequence

from hvcl.report.charts import series_style
from hvcl.report.figure import Key, Panel, across_of, figure
from hvcl.report.statistic import Statistic
from hvcl.reproduce import judge
from hvcl.reproduce.base import SEEDS, Finished, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH, chart, counted_axis, series
from hvcl.reproduce.outcome import Column, Outcome
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import supervised

METHODS = {"hvcl": "hvcl, softmax gates", "hvcl-growing": "hvcl, generative gate", "exact": "exact", "er": "er"}
BLURS = {"sharp": 0.0, "blurred": 0.5}


class StreamFigure:
    """Four methods on a sharp and on a blurred task-free stream."""

    name = "figure-stream"
    title = "Learning from a stream without boundaries"
    paper = ""
    seeds = SEEDS
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """Every method on both streams, Domain-IL, split MNIST."""
        return [
            supervised(scale, f"{method} {words}", "split-mnist", method, {"task_free": True, "blur": blur})
            for method in METHODS
            for words, blur in BLURS.items()
        ]

    def read(self, found: Found) -> Outcome:
        """Mean accuracy on the tasks seen so far, along the stream."""
        rows, panels, data = [], [], {}
        ends: dict[tuple[str, str], Statistic | None] = {}
        tasks = len(next(iter(found.values())).facts["task_names"])
        for words in BLURS:
            curves = {label: _curves(found[f"{method} {words}"]) for method, label in METHODS.items()}
            data[words] = {label: [list(curve.values()) for curve in of] for label, of in curves.items()}
            axis = counted_axis(tasks, "tasks seen")
            lines = chart(series(curves), axis, (across_of(2, WIDTH), 250), f"Accuracy over the {words} stream", ceiling=100.0)
            panels.append(Panel(f"{words} transitions: accuracy % on tasks seen", lines))
            for method, label in METHODS.items():
                run = found[f"{method} {words}"]
                ends[method, words] = run.over_seeds("average_accuracy", PERCENT)
                values = {"accuracy": ends[method, words], "forgetting": run.over_seeds("forgetting", PERCENT)}
                rows.append(supervised_row(run, f"{label}, {words}", values))
        keys = [Key(label, series_style(number)) for number, label in enumerate(METHODS.values())]
        findings = []
        for words in BLURS:
            for better, worse in (("hvcl-growing", "hvcl"), ("exact", "er")):
                claim = f"{words.capitalize()} stream: {METHODS[better]} ends above {METHODS[worse]}"
                findings.append(judge.claim_larger(claim, (better, worse), ends[better, words], ends[worse, words]))
        columns = {"accuracy": Column("accuracy %"), "forgetting": Column("forgetting")}
        width = f"{BLURS['blurred']:.0%}"
        note = f"Blurred: neighbouring tasks mix over {width} of a task. Softmax gates keep their first priors."
        return Outcome(rows, columns, figure([panels], keys, WIDTH, self.title), findings, [note], data)


def _curves(run: Finished) -> list[dict[float, float]]:
    """For each seed, by the number of tasks seen, the mean accuracy on them."""
    return [
        {float(n): PERCENT * sum(row[:n]) / n for n, row in enumerate(result["accuracy_matrix"], 1)} for result in run.results
    ]


FIGURE = StreamFigure()
