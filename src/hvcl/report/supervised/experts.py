"""Which expert serves which task: heat maps of every layer's gate, and what its choice tells about the example."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvcl.report import words
from hvcl.report.supervised.figures import Cell, clipped, padded, short_task_names
from hvcl.report.supervised.groups import Entry, Group
from hvcl.report.supervised.run import Layer


@dataclass(frozen=True)
class Measure:
    """An information measure of a gate in bits, and its share of the most there can be."""

    name: str
    meaning: str
    text: str
    share: float


@dataclass(frozen=True)
class LayerFigure:
    """One layer's heat maps of experts, a row for each task."""

    name: str
    experts: int
    measures: tuple[Measure, ...]
    rows: tuple[tuple[str, tuple[Cell, ...], tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class ExpertFigure:
    """The layers of one method for each finished seed, and the layers that have but one expert."""

    entry: Entry
    seeds: tuple[tuple[int, tuple[LayerFigure, ...]], ...]
    single: tuple[str, ...]


def expert_figures(group: Group) -> list[ExpertFigure]:
    """For every method with a layer of several experts: who serves which task, in each finished seed."""
    names = short_task_names(group.task_names)
    figures = []
    for entry in group.entries:
        seeds = []
        single: dict[str, None] = {}
        for seed in entry.run.finished:
            layers = seed.result.layers if seed.result else {}
            single |= dict.fromkeys(name for name, layer in layers.items() if layer.experts < 2)
            several = [_layer_figure(name, layer, names) for name, layer in layers.items() if layer.experts > 1]
            if several:
                seeds.append((seed.seed, tuple(several)))
        if seeds:
            figures.append(ExpertFigure(entry, tuple(seeds), tuple(single)))
    return figures


def _layer_figure(name: str, layer: Layer, names: Sequence[str]) -> LayerFigure:
    most = math.log2(layer.experts)
    measures = [
        ("H(M)", "entropy of the choice of expert over all data", layer.marginal_entropy),
        ("H(M|X)", "entropy of the choice once the example is known", layer.conditional_entropy),
        ("I(M;X)", "what the choice of expert tells about the example", layer.information),
    ]
    return LayerFigure(
        name=name,
        experts=layer.experts,
        measures=tuple(
            Measure(symbol, meaning, words.decimal(bits, 2), clipped(bits / most)) for symbol, meaning, bits in measures
        ),
        rows=tuple(
            (task, _shares(usage, task, "mean gate probability"), _shares(routed, task, "first choice of"))
            for task, usage, routed in zip(names, padded(layer.usage), padded(layer.routed), strict=True)
        ),
    )


def _shares(values: Sequence[float], task: str, what: str) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            text=words.percent(value, 0),
            strength=clipped(value),
            tip=f"task {task}, expert {expert}: {what} {words.percent(value)} %",
        )
        for expert, value in enumerate(values, start=1)
    )
