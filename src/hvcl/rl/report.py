"""The HTML report of runs of reinforcement learning, laid out as the paper's figure: J(t) above, returns per task below."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hvcl.core.errors import RunError
from hvcl.core.storage import read_json, write_atomically
from hvcl.report.charts import Axis, Point, Series, line_chart, nice_axis
from hvcl.rl import scores
from hvcl.rl.frames import Strip, frames_of
from hvcl.rl.sequences import tasks_of
from hvcl.runs.folder import RunFolder
from hvcl.runs.reinforcement import FORMAT, points_of

COLOURS = 7
"""Colours of lines in the style sheet; beyond them, dashes tell lines apart."""


@dataclass(frozen=True)
class RLRun:
    """What one run folder holds."""

    method: str
    sequence: str
    tasks: list[str]
    references: list[list[float]]
    """Returns of random actions and of a good agent, for each task."""
    settings: dict[str, Any]
    evaluations: list[list[dict[str, Any]]]
    """Of every seed that has begun."""
    results: list[dict[str, Any]]
    """Of every seed that has finished."""
    label: str
    """What it is called on the page."""


def load_rl_run(folder: Path) -> RLRun:
    """The run in a folder."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise RunError(f"{folder} holds no run of reinforcement learning: for others there is hvcl report")
    missing = [name for name in ("sequence", "method", "seeds", "protocol", "agent", "task_names") if name not in config]
    if missing:
        raise RunError(f"{folder / 'config.json'} is damaged: {', '.join(missing)} missing")
    seeds = [RunFolder(folder).seed(seed) for seed in config["seeds"]]
    begun = [seed.evaluations() for seed in seeds if seed.metrics_path.exists()]
    results = [result for seed in seeds if (result := seed.result()) is not None]
    settings = {**config["protocol"], **config["agent"]}
    scales = [[task.low, task.high] for task in tasks_of(config["sequence"])]
    names = config["method"], config["sequence"], config["task_names"]
    return RLRun(*names, scales, settings, [e for e in begun if e], results, config["method"])


def write_rl_report(folders: Sequence[Path], output: Path, frames: bool = False) -> Path:
    """Render the runs in `folders` (or one level below) to one HTML page that needs nothing but itself.

    With `frames`, every agent is let loose in every task once more for pictures.
    """
    found = [p for folder in folders for p in (folder, *sorted(folder.glob("*"))) if (p / "config.json").is_file()]
    if not found:
        raise RunError(f"no run in {', '.join(map(str, folders))}: a run folder holds a config.json")
    folders = list(dict.fromkeys(found))
    runs = [load_rl_run(folder) for folder in folders]
    counts = Counter(run.method for run in runs)
    runs = [  # several runs of one method are told apart by their folders
        replace(run, label=f"{run.method} ({folder.name})" if counts[run.method] > 1 else run.method)
        for run, folder in zip(runs, folders, strict=True)
    ]
    if len({run.sequence for run in runs}) > 1:
        raise RunError("these runs are on different sequences of tasks: report on those of one sequence at a time")
    output.parent.mkdir(parents=True, exist_ok=True)
    pictures = [(run.label, frames_of(folder)) for run, folder in zip(runs, folders, strict=True)] if frames else []
    write_atomically(output, render(runs, pictures).encode())
    return output


def render(runs: Sequence[RLRun], pictures: Sequence[tuple[str, list[Strip]]] = ()) -> str:
    """The page; `pictures` are methods with the pictures of each task."""
    first = runs[0]
    styles = [f"series-{n % COLOURS + 1} dashes-{n // COLOURS % 3}" for n in range(len(runs))]
    names = ["cumulative_reward", "cumulative_above_random", "average_performance", "forgetting"]
    scratch = [r["learning_areas"] for run in runs if run.method == "reset" for r in run.results]

    def transfer(run: RLRun) -> str:
        return "–" if run.method == "reset" else transfer_of([r["learning_areas"] for r in run.results], scratch)

    rows = []
    for run in runs:
        cells = [over([r[name] for r in run.results]) for name in names] + [transfer(run)]
        ends = [over([r["returns_at_the_end"][k] for r in run.results], 0) for k in range(len(run.tasks))]
        rows.append((run.label, len(run.results), cells, ends))
    environment = Environment(loader=PackageLoader("hvcl.report", ""), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("rl.html").render(
        title=f"Continual reinforcement learning: {first.sequence}",
        lead=f"{len(first.tasks)} tasks learned one after another: {', '.join(first.tasks)}.",
        style=_asset("page.css"),
        script=_asset("page.js"),
        tasks=first.tasks,
        rows=rows,
        legend=list(zip([run.label for run in runs], styles, strict=True)),
        cumulative=_cumulative_chart(runs, styles),
        performance=_performance_chart(runs, styles),
        returns=[(task, _return_chart(runs, styles, k)) for k, task in enumerate(first.tasks)],
        pictures=pictures,
        usage=[(run.label, table) for run in runs if (table := _usage(run))],
        settings=[(run.label, sorted(run.settings.items())) for run in runs],
    )


def _asset(name: str) -> Markup:
    return Markup(resources.files("hvcl.report").joinpath(name).read_text(encoding="utf-8"))


def over(values: list[Any], digits: int = 3) -> str:
    """Mean and standard deviation over seeds."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):.{digits}f}"
    return mean if len(known) < 2 else f"{mean} ± {statistics.stdev(known):.{digits}f}"


def transfer_of(areas: list[list[float] | None], scratch: list[list[float]], digits: int = 3) -> str:
    """Forward transfer of runs with these learning areas against those of agents that learned every task from scratch."""
    if not scratch:
        return "–"
    base = [statistics.fmean(values) for values in zip(*scratch, strict=True)]
    return over([scores.forward_transfer(area, base) for area in areas if area], digits)


def _series(label: str, style: str, curves: list[dict[float, float]]) -> Series:
    """The mean over seeds where all of them have a value, with their standard deviation as band."""
    times = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    points = []
    for time in times:
        values = [curve[time] for curve in curves]
        points.append(Point(time, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0))
    return Series(label, style, tuple(points))


def _cumulative_chart(runs: Sequence[RLRun], styles: Sequence[str]) -> Markup:
    series = []
    for run, style in zip(runs, styles, strict=True):
        curves = []
        for result in run.results:
            references = [scores.Reference(*pair) for pair in result["references"]]
            points = [scores.Point(time, tuple(values)) for time, *values in result["curve"]]
            found = {p.time: scores.cumulative(p, references, result["returns_when_learned"]) for p in points}
            curves.append({time: value for time, value in found.items() if value is not None})
        series.append(_series(run.label, style, curves))
    return _chart(series, len(runs[0].tasks), (960, 340), "Cumulative normalised reward J over time", True)


def _performance_chart(runs: Sequence[RLRun], styles: Sequence[str]) -> Markup:
    series = []
    for run, style in zip(runs, styles, strict=True):
        references = [scores.Reference(*pair) for pair in run.references]
        curves = [{p.time: scores.cumulative_performance(p, references) for p in points_of(log)} for log in run.evaluations]
        series.append(_series(run.label, style, curves))
    return _chart(series, len(runs[0].tasks), (960, 260), "Sum of performances over time", True)


def _return_chart(runs: Sequence[RLRun], styles: Sequence[str], task: int) -> Markup:
    series = []
    for run, style in zip(runs, styles, strict=True):
        curves = [
            {point.time: value for point in points_of(log) if (value := point.returns[task]) is not None}
            for log in run.evaluations
        ]
        series.append(_series(run.label, style, curves))
    name = runs[0].tasks[task]
    return _chart(series, len(runs[0].tasks), (380, 260), f"Returns in {name} over time", False)


def _chart(series: list[Series], tasks: int, size: tuple[int, int], description: str, labels: bool) -> Markup:
    values = [value for line in series for p in line.points for value in (p.y - p.spread, p.y + p.spread)]
    return line_chart(
        series,
        size=size,
        x=Axis(0.0, float(tasks), tuple((float(n), str(n)) for n in range(tasks + 1)), "tasks"),
        y=nice_axis(values if any(map(math.isfinite, values)) else [0.0, 1.0]),
        description=description,
        tip=lambda time: f"{time:.2f} tasks",
        value=lambda point: f"{point.y:.2f}",
        boundaries=[float(n) for n in range(1, tasks)],
        markers=False,
        direct_labels=labels,
    )


def _usage(run: RLRun) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """For each layer with experts: for each task the share of observations that goes to each, at the end of the first seed."""
    if not run.evaluations:
        return []
    last = run.evaluations[0][-1]["usage"]
    layers = dict.fromkeys(layer for of_task in last for layer in of_task)
    tables = []
    for layer in layers:
        parts = zip(run.tasks, last, strict=True)
        tables.append((layer, [(task, [f"{100 * share:.0f}" for share in of.get(layer, [])]) for task, of in parts]))
    return tables
