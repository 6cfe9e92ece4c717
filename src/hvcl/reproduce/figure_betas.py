"""The weights of both KLs in continual reinforcement learning: a grid, as the paper's surface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvcl.report.figure import Panel, across_of, figure
from hvcl.report.heat import heat_map, shades
from hvcl.report.statistic import Statistic, statistic
from hvcl.report.words import decimal
from hvcl.reproduce import chain, judge
from hvcl.reproduce.base import Budget, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH
from hvcl.reproduce.outcome import Outcome
from hvcl.reproduce.rows import agent_row

Grid = tuple[tuple[float, ...], tuple[float, ...]]
GRIDS: Mapping[Budget, Grid] = {
    "quick": ((0.0002, 0.002, 0.2), (0.01, 0.1, 1.0)),
    "standard": ((0.0002, 0.002, 0.02, 0.2), (0.001, 0.01, 0.1, 1.0)),
    "paper": ((0.0002, 0.002, 0.02, 0.2), (0.001, 0.01, 0.1, 1.0)),
}
"""Values of beta1 (gates) and of beta2 (experts)."""
POOR = 0.1
"""The beta2 below which the paper finds poor performance."""


class Betas:
    """Performance and forgetting over the grid."""

    name = "figure-betas"
    title = "The weights of the KLs in continual reinforcement learning"
    paper = "Ablation: KL weights"
    seeds = chain.SEEDS
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """HVCL at every place of the grid."""
        gates, experts = GRIDS[scale.budget]
        return [
            chain.agent(scale, _label(gate, expert), "hvcl", {"beta_gate": gate, "beta_expert": expert})
            for gate in gates
            for expert in experts
        ]

    def read(self, found: Found) -> Outcome:
        """Two heat maps."""
        gates, experts = GRIDS[found.scale.budget]
        measured = {label: chain.measures(run) for label, run in found.items()}
        rows = [agent_row(run, label, measured[label], "boundaries") for label, run in found.items()]
        panels = []
        for key, title in (("performance", "Average performance at the end"), ("forgetting", "Forgetting")):
            values = [[_mean(measured[_label(gate, expert)][key]) for expert in experts] for gate in gates]
            cells = shades(values, [[decimal(value, 2) for value in row] for row in values])
            chart = heat_map(
                cells,
                [f"{gate:g}" for gate in gates],
                [f"{expert:g}" for expert in experts],
                width=across_of(2, WIDTH),
                description=title,
                row_title="beta1",
                column_title="beta2, experts",
            )
            panels.append(Panel(title, chart))

        def pooled(labels: Sequence[str]) -> Statistic | None:
            """The mean over these places of each seed, over seeds."""
            by_seed = zip(*([float(r["average_performance"]) for r in found[label].results] for label in labels), strict=True)
            return statistic(sum(values) / len(values) for values in by_seed)

        small = [_label(g, e) for g in gates for e in experts if e < POOR]
        large = [_label(g, e) for g in gates for e in experts if e >= POOR]
        low, high = ([_label(gate, e) for e in experts] for gate in (gates[0], gates[-1]))
        names = f"beta2 >= {POOR:g}", f"beta2 < {POOR:g}"
        findings = [
            judge.claim_larger(f"beta2 below {POOR:g} performs poorly", names, pooled(large), pooled(small), 3),
            judge.claim_larger(
                "A lower beta1 performs better", (f"beta1 = {gates[0]:g}", f"beta1 = {gates[-1]:g}"), pooled(low), pooled(high), 3
            ),
        ]
        note = "Verdicts compare, seed by seed, the means over all places of the grid on either side."
        return Outcome(rows, chain.COLUMNS, figure([panels], [], WIDTH, self.title), findings, [note, *chain.NOTES])


def _label(gate: float, expert: float) -> str:
    return f"beta1 {gate:g}, beta2 {expert:g}"


def _mean(value: Statistic | None) -> float:
    assert value is not None  # every finished run has it
    return value.mean


FIGURE = Betas()
