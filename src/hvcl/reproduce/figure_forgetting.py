"""Learning against forgetting, every method: who is stable because it does not learn, and who is both."""

from __future__ import annotations

from collections.abc import Sequence

from hvcl.report.charts import Axis, nice_axis
from hvcl.report.dots import Named, named_points
from hvcl.report.figure import Key, Panel, figure
from hvcl.reproduce import judge
from hvcl.reproduce.base import SEEDS, Finished, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH
from hvcl.reproduce.outcome import Column, Outcome
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import supervised

METHODS = (
    *("naive", "joint", "hvcl-paper", "hvcl", "hvcl-growing", "hvcl-replay", "exact", "ewc", "si", "mas", "lwf", "vcl", "ucl"),
    *("ucb", "ncl", "tlr", "hibnn", "den", "pathnet", "sam", "er", "derpp", "agem", "gem", "hal", "bcl", "ccl-fp"),
    *("cldr", "merlin", "cn-dpm", "dgr", "dgr-distill", "rtf", "bir", "curl"),
)

_KINDS = {
    "series-1": "stores no example",
    "series-2": "stores examples",
    "series-3": "a few first examples",
    "upper": "sees all data again",
}


class Forgetting:
    """A point for each method."""

    name = "figure-forgetting"
    title = "Learning against forgetting, every method"
    paper = ""
    seeds = SEEDS
    from_results = True

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """Every method in Domain-IL on split MNIST."""
        return [supervised(scale, method, "split-mnist", method) for method in METHODS]

    def read(self, found: Found) -> Outcome:
        """Accuracy right after learning, and what was lost of it."""
        rows, points = [], []
        for method, run in found.items():
            values = {
                "accuracy": run.over_seeds("average_accuracy", PERCENT),
                "learning": run.over_seeds("learning_accuracy", PERCENT),
                "forgetting": run.over_seeds("forgetting", PERCENT),
            }
            rows.append(supervised_row(run, method, values))
            learning, lost = values["learning"], values["forgetting"]
            if learning is not None and lost is not None:
                points.append(Named(method, lost.mean, learning.mean, _kind(run)))
        x, y = nice_axis([p.x for p in points], 5), nice_axis([p.y for p in points], 5)
        chart = named_points(
            points,
            size=(WIDTH, 400),
            x=Axis(x.low, x.high, x.ticks, "forgetting, points of accuracy"),
            y=Axis(y.low, y.high, y.ticks, "accuracy % right after a task was learned"),
            description=self.title,
        )
        keys = [Key(words, style, "dot") for style, words in _KINDS.items() if any(p.style == style for p in points)]
        benchmark = rows[0].benchmark
        picture = figure([[Panel(f"{benchmark}, Domain-IL, boundaries in training", chart)]], keys, WIDTH, self.title)
        columns = {"accuracy": Column("accuracy %"), "learning": Column("when learned %"), "forgetting": Column("forgetting")}
        by_label = {row.label: row.values for row in rows}
        findings = [
            judge.claim_larger(
                f"Naive training forgets more than {method}",
                ("naive", method),
                by_label["naive"]["forgetting"],
                by_label[method]["forgetting"],
            )
            for method in ("hvcl-paper", "hvcl", "hvcl-growing", "exact")
        ]
        return Outcome(rows, columns, picture, findings)


def _kind(run: Finished) -> str:
    memory = str(run.facts["memory"])
    if memory == "none":
        return "series-1"
    if memory == "all examples":
        return "upper"
    return "series-3" if "then" in memory else "series-2"


FIGURE = Forgetting()
