"""The exact learner over its number of features: accuracy, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hvcl.report.charts import Axis, Series, nice_axis, series_style
from hvcl.report.charts import Point as At
from hvcl.report.figure import Key, Panel, across_of, figure
from hvcl.reproduce import judge
from hvcl.reproduce.base import SEEDS, Finished, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH, chart, series
from hvcl.reproduce.outcome import Column, Outcome
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import EMBEDDED, supervised
from hvcl.runs import RunConfig

RANDOM = (60, 125, 250, 500, 1000)
"""Random features of the embedded digits."""
FILTERS = (125, 250, 500, 1000)
"""Filters of photographs, each of which makes eight features."""
SCENARIOS = {"domain": "Domain-IL", "class": "Class-IL"}


class Features:
    """Accuracy by the number of features and by seconds."""

    name = "figure-features"
    title = "The exact learner: accuracy over features and seconds"
    paper = ""
    seeds = SEEDS
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """Every size in both scenarios."""
        option, sizes = ("random_features", RANDOM) if scale.budget == "quick" else ("filters", FILTERS)
        return [
            supervised(scale, f"{scenario} {size}", "split-cifar10", "exact", {"scenario": scenario}, {option: size}, size / 250)
            for scenario in SCENARIOS
            for size in sizes
        ]

    def read(self, found: Found) -> Outcome:
        """Two curves for each scenario."""
        rows, by_size, by_seconds = [], {}, []
        for number, (scenario, words) in enumerate(SCENARIOS.items()):
            runs = [run for key, run in found.items() if key.startswith(f"{scenario} ")]
            places: list[dict[float, float]] = [{} for _ in runs[0].results]
            line = []
            for run in runs:
                accuracy, seconds = run.over_seeds("average_accuracy", PERCENT), run.over_seeds("seconds")
                rows.append(supervised_row(run, f"{features_of(run):,} features", {"accuracy": accuracy, "seconds": seconds}))
                for place, result in zip(places, run.results, strict=True):
                    place[math.log2(features_of(run))] = PERCENT * result["average_accuracy"]
                if accuracy is not None and seconds is not None:
                    line.append(At(math.log10(seconds.mean), accuracy.mean, accuracy.sd or 0.0))
            by_size[words] = places
            by_seconds.append(Series(words, series_style(number), tuple(sorted(line, key=lambda point: point.x))))
        counts = sorted({features_of(run) for run in found.values()})
        ends = math.log2(counts[0]) - 0.2, math.log2(counts[-1]) + 0.2
        x = Axis(*ends, tuple((math.log2(n), f"{n:,}") for n in counts), "features")
        size = (across_of(2, WIDTH), 250)
        panels = [
            Panel("Accuracy % by the number of features", chart(series(by_size), x, size, "Accuracy by features")),
            Panel("Accuracy % by seconds of a run", chart(by_seconds, _seconds_axis(by_seconds), size, "Accuracy by seconds")),
        ]
        keys = [Key(words, series_style(number)) for number, words in enumerate(SCENARIOS.values())]
        most = {scenario: [run for key, run in found.items() if key.startswith(scenario)] for scenario in SCENARIOS}
        findings = [
            judge.claim_larger(
                f"{SCENARIOS[scenario]}: more features are more accurate",
                (f"{features_of(runs[-1]):,} features", f"{features_of(runs[0]):,} features"),
                runs[-1].over_seeds("average_accuracy", PERCENT),
                runs[0].over_seeds("average_accuracy", PERCENT),
            )
            for scenario, runs in most.items()
        ]
        columns = {"accuracy": Column("accuracy %"), "seconds": Column("seconds", 1)}
        note = "Seconds are wall time of training and evaluation on one core that may have been shared: a rough guide."
        return Outcome(rows, columns, figure([panels], keys, WIDTH, self.title), findings, [note])


def features_of(run: Finished) -> int:
    """The number of features of a run's map."""
    config = run.planned.experiment
    assert isinstance(config, RunConfig)
    if config.benchmark == EMBEDDED:
        return int(config.learner.random_features)
    return int(2 * config.learner.filters * config.learner.grid**2)


def _seconds_axis(lines: Sequence[Series]) -> Axis:
    places = [point.x for line in lines for point in line.points]
    low, high = min(places) - 0.1, max(places) + 0.1
    known = [step * 10.0**power for power in range(-3, 6) for step in (1, 2, 5)]
    ticks = tuple((math.log10(value), f"{value:g}") for value in known if low <= math.log10(value) <= high)
    return Axis(low, high, ticks or nice_axis(places).ticks, "seconds")


FIGURE = Features()
