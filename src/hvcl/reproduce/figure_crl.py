"""Continual reinforcement learning: cumulative normalised reward over time, and the return in each environment."""

from __future__ import annotations

from collections.abc import Sequence

from hvcl.report.charts import series_style
from hvcl.report.figure import Key, Panel, across_of, figure
from hvcl.report.statistic import Statistic
from hvcl.reproduce import chain, judge
from hvcl.reproduce.base import Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH
from hvcl.reproduce.outcome import Finding, Outcome, Verdict
from hvcl.reproduce.rows import agent_row

METHODS = {
    "naive": "dense SAC",
    "ewc": "EWC",
    "ucl": "UCL",
    "hvcl": "HVCL",
    "hvcl-growing": "HVCL, generative gate",
}
IN_A_ROW = 3
"""Small charts beside each other."""


class ContinualRL:
    """The paper's figure of the robots."""

    name = "figure-crl"
    title = "Continual reinforcement learning"
    paper = "Continual Reinforcement Learning, with its figure"
    seeds = chain.SEEDS
    from_results = True

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """Every method on the chain."""
        return [chain.agent(scale, method, method) for method in METHODS]

    def read(self, found: Found) -> Outcome:
        """J, performances and returns over time."""
        names = chain.tasks_of(next(iter(found.values())))
        measured = {method: chain.measures(run) for method, run in found.items()}
        rows = [
            agent_row(run, METHODS[method], measured[method], "task-free" if method == "hvcl-growing" else "boundaries")
            for method, run in found.items()
        ]
        half, small = (across_of(2, WIDTH), 230), (across_of(IN_A_ROW, WIDTH), 170)
        reward = {METHODS[method]: chain.rewards(run) for method, run in found.items()}
        performance = {METHODS[method]: chain.performances(run) for method, run in found.items()}
        panels = [
            [
                Panel("Cumulative normalised reward J", chain.over_time(reward, len(names), half, "J over time")),
                Panel("Sum of performances", chain.over_time(performance, len(names), half, "Performances over time")),
            ]
        ]
        for start in range(0, len(names), IN_A_ROW):
            panels.append([])
            for task in range(start, min(start + IN_A_ROW, len(names))):
                curves = {METHODS[method]: chain.returns(run, task) for method, run in found.items()}
                drawn = chain.over_time(curves, len(names), small, f"Returns in {names[task]}")
                panels[-1].append(Panel(f"Return, {names[task]}", drawn))
        keys = [Key(label, series_style(number)) for number, label in enumerate(METHODS.values())]
        data = {METHODS[method]: {"curve": [r["curve"] for r in run.results], "tasks": names} for method, run in found.items()}
        picture = figure(panels, keys, WIDTH, self.title)
        return Outcome(rows, chain.COLUMNS, picture, _findings(measured), chain.NOTES, data)


def _findings(measured: dict[str, dict[str, Statistic | None]]) -> list[Finding]:
    found = []
    for rival in ("ewc", "ucl"):
        names = "HVCL", METHODS[rival]
        ours, theirs = measured["hvcl"], measured[rival]
        claim = f"HVCL ends with more than {METHODS[rival]} (average performance)"
        found.append(judge.claim_larger(claim, names, ours["performance"], theirs["performance"], 3))
        claim = f"HVCL forgets less than {METHODS[rival]}"
        found.append(judge.claim_larger(claim, names[::-1], theirs["forgetting"], ours["forgetting"], 3))
        claim = f"{METHODS[rival]} learns single tasks better than HVCL"
        found.append(judge.claim_larger(claim, names[::-1], theirs["when_learned"], ours["when_learned"], 3))
        found.append(_steadier(measured, rival))
    claim = "Dense SAC forgets more than HVCL"
    dense, ours = measured["naive"], measured["hvcl"]
    found.append(judge.claim_larger(claim, ("dense SAC", "HVCL"), dense["forgetting"], ours["forgetting"], 3))
    claim = "HVCL behind a generative gate ends with more than the paper's gates"
    growing = measured["hvcl-growing"]["performance"]
    return [*found, judge.claim_larger(claim, ("generative gate", "softmax gates"), growing, ours["performance"], 3)]


def _steadier(measured: dict[str, dict[str, Statistic | None]], rival: str) -> Finding:
    """The paper's remark that its variance is lower."""
    claim = f"HVCL varies less over seeds than {METHODS[rival]} (average performance)"
    ours, theirs = measured["hvcl"]["performance"], measured[rival]["performance"]
    if ours is None or theirs is None or ours.sd is None or theirs.sd is None:
        return Finding(claim, "not measured", "one seed has no deviation")
    verdict: Verdict = "undecided" if min(ours.seeds, theirs.seeds) < judge.FEWEST else "holds"
    if verdict == "holds" and ours.sd >= theirs.sd:
        verdict = "does not hold here"
    because = f"standard deviations {ours.sd:.3f} (HVCL) and {theirs.sd:.3f} ({METHODS[rival]}); {judge.seeds_of(ours, theirs)}"
    return Finding(claim, verdict, because)


FIGURE = ContinualRL()
