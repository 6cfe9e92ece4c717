"""The paper's tables of accuracies: ours where the method exists, the paper's figure alone where it does not.

A row is run in the scenario that the paper's figure is of, and the two stand beside each other in that scenario only. Where the
paper lists a figure of another scenario among single-head methods or baselines, our Domain-IL figure has a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvcl.report.charts import Axis, nice_axis
from hvcl.report.dots import Dot, DotRow, dot_plot
from hvcl.report.figure import Key, Panel, figure
from hvcl.report.words import scenario_name
from hvcl.reproduce import judge
from hvcl.reproduce.base import SEEDS, Budget, Found, Planned, Scale
from hvcl.reproduce.outcome import Column, Finding, Outcome, Row
from hvcl.reproduce.paper import PaperRow
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import benchmark_of, supervised

ACCURACY = "accuracy"
WIDTH = 640
COMPARABLE = 2.0
"""Points below the best that still count as comparable."""
_STYLES = {"Domain-IL": "series-1", "Task-IL": "series-2", "Class-IL": "series-3"}

_HVCL = {"hvcl-paper": "HVCL, paper's settings", "hvcl": "HVCL, our settings"}
_BEYOND = {"hvcl-growing": "HVCL, generative gate", "exact": "Exact recursion"}


class AccuracyTable:
    """A table of the paper with its two benchmarks; at the quick budget the embedded digits stand for the first."""

    seeds = SEEDS
    from_results = True

    def __init__(self, name: str, title: str, paper: str, rows: Sequence[PaperRow], benchmarks: tuple[str, str]) -> None:
        self.name, self.title, self.paper = name, title, paper
        self._rows, self._benchmarks = rows, benchmarks

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """Every method that exists, on both benchmarks."""
        planned: dict[str, Planned] = {}
        for benchmark in self._used(scale.budget):
            for row in self._rows:
                for method, scenario in _runs(row, benchmark):
                    key = _key(benchmark, method, scenario)
                    planned[key] = supervised(scale, key, benchmark, method, {"scenario": scenario})
            for method in _BEYOND:
                key = _key(benchmark, method, "domain")
                planned[key] = supervised(scale, key, benchmark, method)
        return list(planned.values())

    def _used(self, budget: Budget) -> tuple[str, ...]:
        return self._benchmarks[:1] if budget == "quick" else self._benchmarks

    def read(self, found: Found) -> Outcome:
        """The table, a dot plot of it, and how far it agrees."""
        budget = found.scale.budget
        by_benchmark = {benchmark: self._read_rows(found, benchmark) for benchmark in self._used(budget)}
        rows = [row for group in by_benchmark.values() for row in group]
        every = [v.mean for row in rows for v in (row.values.get(ACCURACY), row.paper.get(ACCURACY)) if v is not None]
        axis = nice_axis(every, 5)
        x = Axis(axis.low, axis.high, axis.ticks, "accuracy % after the last task")
        panels = [[self._panel(group, benchmark, budget, x)] for benchmark, group in by_benchmark.items()]
        scenarios = [name for name in _STYLES if any(row.scenario == name for row in rows)]
        keys = [Key(f"ours, {name}", _STYLES[name], "dot") for name in scenarios] + [Key("the paper's", "series-1", "ring")]
        findings = []
        for benchmark, group in by_benchmark.items():
            findings += _findings(group, benchmark_of(budget, benchmark), budget)
        findings.append(judge.order(rows, ACCURACY, "Methods stand in the order that the paper's table gives them"))
        return Outcome(
            rows, {ACCURACY: Column("accuracy %")}, figure(panels, keys, WIDTH, self.title), findings, self._notes(budget)
        )

    def _notes(self, budget: Budget) -> list[str]:
        notes = [
            "The paper's rows mix scenarios: its figures stand beside ours of the same scenario only, and a second row has ours "
            "in Domain-IL where the paper lists the figure of another scenario among baselines or single-head methods.",
        ]
        if budget == "quick":
            shown = f"The 8x8 digits stand for {self._benchmarks[0]}, which the paper's figures are of: levels cannot agree."
            notes.append(f"{shown} Of {self._benchmarks[1]} nothing is run at this budget.")
        return notes

    def _read_rows(self, found: Found, benchmark: str) -> list[Row]:
        rows = []
        for row in self._rows:
            quoted = row.figures.get(benchmark)
            if quoted is None:
                continue
            if row.method is None:
                scenario, paper = scenario_name(quoted.scenario), {ACCURACY: quoted.statistic}
                told = "boundaries" if quoted.scenario == "task" else "not stated"
                rows.append(Row(row.label, benchmark, scenario, told, "not stated", 0, {}, paper, "quoted"))
                continue
            for method, scenario in _runs(row, benchmark):
                run = found[_key(benchmark, method, scenario)]
                same = scenario == quoted.scenario
                label = _HVCL.get(method, row.label)
                note = f"the paper's figure is of {benchmark}" if same and found.scale.budget == "quick" else ""
                values = {ACCURACY: run.over_seeds("average_accuracy", PERCENT)}
                rows.append(supervised_row(run, label, values, {ACCURACY: quoted.statistic} if same else {}, note))
        for method, label in _BEYOND.items():
            run = found[_key(benchmark, method, "domain")]
            values = {ACCURACY: run.over_seeds("average_accuracy", PERCENT)}
            rows.append(supervised_row(run, label, values, note="beyond the paper"))
        return rows

    def _panel(self, rows: Sequence[Row], benchmark: str, budget: Budget, x: Axis) -> Panel:
        lines = []
        for row in rows:
            style, dots = _STYLES[row.scenario], []
            for value, ring in ((row.paper.get(ACCURACY), True), (row.values.get(ACCURACY), False)):
                if value is not None:
                    dots.append(Dot(value.mean, value.sd or 0.0, style, ring))
            lines.append(DotRow(f"{row.label}, {row.scenario}", tuple(dots)))
        place = benchmark_of(budget, benchmark)
        title = benchmark if place == benchmark else f"{place}, beside the paper's figures of {benchmark}"
        return Panel(title, dot_plot(lines, width=WIDTH, x=x, description=f"Accuracies on {place}"))


def _runs(row: PaperRow, benchmark: str) -> list[tuple[str, str]]:
    """(method, scenario) of the runs that a row of the paper asks for on a benchmark."""
    quoted = row.figures.get(benchmark)
    if row.method is None or quoted is None:
        return []
    methods = list(_HVCL) if row.method == "hvcl" else [row.method]
    scenarios = [quoted.scenario] if row.section == "multi-head and task-aware" else dict.fromkeys((quoted.scenario, "domain"))
    return [(method, scenario) for method in methods for scenario in scenarios]


def _key(benchmark: str, method: str, scenario: str) -> str:
    return f"{benchmark} {scenario} {method}"


def _findings(rows: Sequence[Row], benchmark: str, budget: Budget) -> list[Finding]:
    """The paper's claims about a table, on one benchmark."""
    domain = {row.label: value for row in rows if row.scenario == "Domain-IL" and (value := row.values.get(ACCURACY)) is not None}
    hvcl = max((name for name in _HVCL.values() if name in domain), key=lambda name: domain[name].mean)
    lower = next(name for name in ("Dense network", "Convolutional network") if name in domain)
    found = []
    if budget != "quick":
        found.append(judge.level(rows, ACCURACY, f"{benchmark}: accuracies are at the paper's level"))
    names = (hvcl, lower)
    found.append(judge.claim_larger(f"{benchmark}: HVCL is above naive training", names, domain[hvcl], domain[lower]))
    replay = "HVCL with replay"
    improves = judge.claim_larger(
        f"{benchmark}: generative replay improves HVCL", (replay, hvcl), domain.get(replay), domain.get(hvcl)
    )
    rivals = [
        row
        for row in rows
        if row.scenario == "Domain-IL" and row.memory == "none" and not row.label.startswith("HVCL") and row.label in domain
    ]
    return [*found, improves, _comparable(rows, rivals, hvcl, benchmark)]


def _comparable(rows: Sequence[Row], rivals: Sequence[Row], hvcl: str, benchmark: str) -> Finding:
    claim = f"{benchmark}: HVCL is comparable with the other task-agnostic methods"
    ours = next(value for row in rows if row.label == hvcl and (value := row.values[ACCURACY]) is not None)
    others = [(value, row.label) for row in rivals if (value := row.values[ACCURACY]) is not None]
    best, name = max(others, key=lambda pair: pair[0].mean)
    close = ours.mean >= best.mean - COMPARABLE
    because = (
        f"{hvcl} {judge.text(ours)}, the best of {len(others)} others in Domain-IL that store no example is {name} with "
        f"{judge.text(best)} (comparable: at most {COMPARABLE:.0f} points below); {judge.seeds_of(ours, best)}"
    )
    return Finding(claim, "holds" if close else "does not hold here", because)
