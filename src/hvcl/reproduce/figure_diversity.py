"""What the bonuses for diverse experts are worth: the paper's ablation on split CIFAR-10.

The paper's settings with neither bonus, with both entropy penalties (H(M|X) and H(M) are minimised), with the determinantal one
("DPP"), and with all. I(M;X), H(M) and H(M|X) are of each layer's gate, in bits; I(C;X) = H(p(c)) - E_x H(p(c|x)) of the
network's answer c, in bits. All on the test data of all tasks, after the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hvcl.report.charts import Axis, nice_axis, series_style
from hvcl.report.dots import Dot, DotRow, dot_plot
from hvcl.report.figure import Key, Panel, across_of, figure
from hvcl.report.statistic import Statistic, statistic
from hvcl.reproduce import judge
from hvcl.reproduce.base import Budget, Finished, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH, chart, series
from hvcl.reproduce.outcome import Column, Finding, Outcome
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import supervised
from hvcl.reproduce.trained import trained

WEIGHT = 0.01
"""Of each bonus: the paper states it for the diversity of its VAE, and none for the entropies."""

_ENTROPY = {"conditional_entropy": WEIGHT, "marginal_entropy": WEIGHT}
_DPP = {"diversity": WEIGHT}
_NONE = {"conditional_entropy": 0.0, "marginal_entropy": 0.0, "diversity": 0.0}
SETTINGS: Mapping[str, dict[str, float]] = {
    "no bonus": _NONE,
    "entropy penalties": _NONE | _ENTROPY,
    "DPP": _NONE | _DPP,
    "DPP and entropy": _NONE | _ENTROPY | _DPP,
}

MEASURES = {"information": "I(M;X)", "marginal_entropy": "H(M)", "conditional_entropy": "H(M|X)"}
"""Of a layer, by their names in a run's result."""


class Diversity:
    """Four settings of the bonuses, per layer and averaged over layers."""

    name = "figure-diversity"
    title = "What bonuses for diverse experts are worth"
    paper = "Ablation: Investigating Diversity Bonuses"
    seeds: Mapping[Budget, int] = {"paper": 3}
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """One run for each setting."""
        return [
            supervised(scale, label, "split-cifar10", "hvcl-paper", learner=dict(settings))
            for label, settings in SETTINGS.items()
        ]

    def read(self, found: Found) -> Outcome:
        """Accuracy and the information measures."""
        measured = {label: _measures(run) for label, run in found.items()}
        rows = [supervised_row(run, label, measured[label]) for label, run in found.items()]
        columns = {"accuracy": Column("accuracy %"), "class_information": Column("I(C;X)", 3)}
        columns |= {name: Column(f"{words}, mean of layers", 3) for name, words in MEASURES.items()}
        by_layer = {name: {label: _by_layer(run, name) for label, run in found.items()} for name in MEASURES}
        data = {
            name: {label: [list(c.values()) for c in curves] for label, curves in by.items()} for name, by in by_layer.items()
        }
        return Outcome(rows, columns, _picture(found, measured, by_layer), _findings(measured), _notes(), {"by layer": data})


def _measures(run: Finished) -> dict[str, Statistic | None]:
    found = {"accuracy": run.over_seeds("average_accuracy", PERCENT)}
    found["class_information"] = statistic(class_information(run, int(result["seed"])) for result in run.results)
    for name in MEASURES:
        found[name] = statistic(_mean([layer[name] for layer in result["layers"].values()]) for result in run.results)
    return found


def class_information(run: Finished, seed: int) -> float:
    """I(C;X) in bits of the finished network of one seed, every test example of every task weighing the same."""
    stream, learner = trained(run.folder, seed)
    answers = torch.cat([learner.predict(x, task) for test in stream.tests for x, _, task in test.batches()]).double()
    marginal = torch.special.entr(answers.mean(0)).sum()
    conditional = torch.special.entr(answers).sum(1).mean()
    return float((marginal - conditional) / torch.log(torch.tensor(2.0)))


def _by_layer(run: Finished, name: str) -> list[dict[float, float]]:
    """For each seed the measure by the number of the layer, from 1; after the last layer their mean."""
    curves = []
    for result in run.results:
        values: list[float] = [layer[name] for layer in result["layers"].values()]
        curves.append({float(place): value for place, value in enumerate([*values, _mean(values)], 1)})
    return curves


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _picture(found: Found, measured: Mapping[str, Mapping[str, Statistic | None]], by_layer: Mapping[str, Any]) -> Any:
    labels = list(found)
    half, third = across_of(2, WIDTH), across_of(3, WIDTH)
    top = []
    for key, title in (("accuracy", "Accuracy %, after the last task"), ("class_information", "I(C;X), bits")):
        dots = [
            DotRow(label, (Dot(value.mean, value.sd or 0.0, series_style(number)),))
            for number, label in enumerate(labels)
            if (value := measured[label][key]) is not None
        ]
        ends = [dot.value + sign * dot.spread for row in dots for dot in row.dots for sign in (-1, 1)]
        top.append(Panel(title, dot_plot(dots, width=half, x=nice_axis(ends, 3), description=title)))
    layers = len(next(iter(found.values())).results[0]["layers"])
    ticks = (*((float(n), str(n)) for n in range(1, layers + 1)), (float(layers + 1), "mean"))
    x = Axis(0.7, layers + 1.3, ticks, "layer")
    bottom = []
    for name, words in MEASURES.items():
        lines = series(by_layer[name], gap_before=float(layers + 1), bands=False)
        bottom.append(Panel(f"{words}, bits", chart(lines, x, (third, 190), f"{words} by layer", floor=0.0)))
    keys = [Key(label, series_style(number)) for number, label in enumerate(labels)]
    return figure([top, bottom], keys, WIDTH, Diversity.title)


def _findings(measured: Mapping[str, Mapping[str, Statistic | None]]) -> list[Finding]:
    def values(key: str) -> dict[str, Statistic]:
        return {label: value for label, of in measured.items() if (value := of[key]) is not None}

    return [
        judge.claim_extreme("I(M;X) is highest with the DPP bonus", "DPP", values("information"), "highest", 3),
        judge.claim_extreme(
            "H(M) is lowest with the entropy penalties", "entropy penalties", values("marginal_entropy"), "lowest", 3
        ),
        judge.claim_extreme("Both bonuses together are most accurate", "DPP and entropy", values("accuracy"), "highest"),
    ]


def _notes() -> list[str]:
    return [
        f"The paper's settings (hvcl-paper) with weights of {WEIGHT} for each bonus; the paper shows its figure without numbers "
        "and does not state its weights. It says ten seeds in its text and three in the caption.",
        "The paper's equation maximises H(M|X); its text (high certainty) asks for the opposite, which is what is done here.",
    ]


FIGURE = Diversity()
