"""The number of experts in continual reinforcement learning: 1, 2 and 4 in every layer."""

from __future__ import annotations

from collections.abc import Sequence

from hvcl.report.charts import series_style
from hvcl.report.figure import Key, Panel, across_of, figure
from hvcl.reproduce import chain, judge
from hvcl.reproduce.base import Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH
from hvcl.reproduce.outcome import Outcome
from hvcl.reproduce.rows import agent_row

EXPERTS = (1, 2, 4)


class Experts:
    """Three sizes of the same network."""

    name = "figure-experts"
    title = "The number of experts in continual reinforcement learning"
    paper = "Ablation: Number of Experts"
    seeds = chain.SEEDS
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """HVCL with each number of experts."""
        return [chain.agent(scale, _label(count), "hvcl", {"experts": count}) for count in EXPERTS]

    def read(self, found: Found) -> Outcome:
        """J and performances over time."""
        tasks = len(chain.tasks_of(next(iter(found.values()))))
        measured = {label: chain.measures(run) for label, run in found.items()}
        rows = [agent_row(run, label, measured[label], "boundaries") for label, run in found.items()]
        size = (across_of(2, WIDTH), 240)
        reward = {label: chain.rewards(run) for label, run in found.items()}
        performance = {label: chain.performances(run) for label, run in found.items()}
        panels = [
            Panel("Cumulative normalised reward J", chain.over_time(reward, tasks, size, "J over time")),
            Panel("Sum of performances", chain.over_time(performance, tasks, size, "Performances over time")),
        ]
        keys = [Key(label, series_style(number)) for number, label in enumerate(found)]
        few, many = _label(EXPERTS[0]), _label(EXPERTS[-1])
        findings = [
            judge.claim_larger(
                "More experts forget less", (few, many), measured[few]["forgetting"], measured[many]["forgetting"], 3
            ),
            judge.claim_larger(
                "More experts end with more (average performance)",
                (many, few),
                measured[many]["performance"],
                measured[few]["performance"],
                3,
            ),
        ]
        data = {label: {"curve": [r["curve"] for r in run.results]} for label, run in found.items()}
        return Outcome(rows, chain.COLUMNS, figure([panels], keys, WIDTH, self.title), findings, chain.NOTES, data)


def _label(count: int) -> str:
    return f"{count} expert{'' if count == 1 else 's'}"


FIGURE = Experts()
