"""The quality of the generator: the continual inception score over the tasks, and what it makes after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from hvcl.core.errors import RunError
from hvcl.core.pictures import data_uri
from hvcl.report.charts import Axis, element, nice_axis, series_style
from hvcl.report.figure import Key, Panel, across_of, figure
from hvcl.report.seed_files import SeedFiles
from hvcl.report.statistic import Statistic, statistic
from hvcl.reproduce import judge
from hvcl.reproduce.base import Budget, Finished, Found, Planned, Scale
from hvcl.reproduce.lines import WIDTH, Curve, chart, counted_axis, series
from hvcl.reproduce.outcome import Column, Finding, Outcome
from hvcl.reproduce.rows import PERCENT, supervised_row
from hvcl.reproduce.settings import benchmark_of, supervised
from hvcl.runs import RunFolder

BENCHMARKS = ("split-cifar10", "split-cifar100")
LOGGED = ("ELBO", "reconstruction")
SCORES = {"inception_score": "inception score", "inception_bound": "H(y), its bound"}
_LINE = 30
"""Height of a row of pictures."""


class GeneratorFigure:
    """Curves of the scores, and pictures."""

    name = "figure-generator"
    title = "What the generator is worth"
    paper = "Ablation: Generator Quality"
    seeds: Mapping[Budget, int] = {"paper": 3}
    from_results = False

    def plan(self, scale: Scale) -> Sequence[Planned]:
        """HVCL with generative replay, Domain-IL: the embedded digits, or both sets of photographs."""
        used = BENCHMARKS[:1] if scale.budget == "quick" else BENCHMARKS
        return [supervised(scale, name, name, "hvcl-replay") for name in used]

    def read(self, found: Found) -> Outcome:
        """The scores over tasks, and the pictures of the first seed."""
        rows, panels, findings, data = [], [], [], {}
        for benchmark, run in found.items():
            place = benchmark_of(found.scale.budget, benchmark)
            tasks = len(run.facts["task_names"])
            panels.append([_scores(run, place, tasks), _training(run, place)])
            panels.append([Panel(f"{place}: what was generated, first seed", _rows_of_pictures(run))])
            ends = {name: statistic(curve[float(tasks)] for curve in _curves(run, name)) for name in SCORES}
            first = statistic(curve[1.0] for curve in _curves(run, "inception_score"))
            accuracy = run.over_seeds("average_accuracy", PERCENT)
            rows.append(supervised_row(run, "HVCL with replay", {"accuracy": accuracy, "first": first, **ends}))
            findings += _findings(place, first, ends["inception_score"])
            data[place] = [result["generation"] for result in run.results]
        columns = {
            "accuracy": Column("accuracy %"),
            "first": Column("inception score after the first task, bits", 3),
            "inception_score": Column("after the last", 3),
            "inception_bound": Column("H(y) after the last", 3),
        }
        keys = [Key(words, series_style(number)) for number, words in enumerate((*SCORES.values(), *LOGGED))]
        note = "The score asks the classifier, which learned beside the generator, and nobody else: look at the pictures."
        return Outcome(rows, columns, figure(panels, keys, WIDTH, self.title), findings, [note], data)


def _curves(run: Finished, name: str) -> list[Curve]:
    return [{float(n): float(record[name]) for n, record in enumerate(r["generation"], 1)} for r in run.results]


def _scores(run: Finished, place: str, tasks: int) -> Panel:
    """The inception score and its bound over tasks."""
    curves = {words: _curves(run, name) for name, words in SCORES.items()}
    most = max(value for of_seeds in curves.values() for curve in of_seeds for value in curve.values())
    axis, size = counted_axis(tasks, "tasks learned"), (across_of(2, WIDTH), 220)
    return Panel(f"{place}, bits", chart(series(curves), axis, size, f"Scores on {place}", floor=0.0, ceiling=most))


def _training(run: Finished, place: str) -> Panel:
    """The ELBO and the part of it that is reconstruction, over the steps of training: nats a picture."""
    curves: dict[str, list[Curve]] = {words: [] for words in LOGGED}
    for result in run.results:
        records = list(SeedFiles(RunFolder(run.folder).seed(int(result["seed"])).path).log())
        terms = [(f.integer("step"), f.numbers_by_name("terms")) for f in records if f.get("kind") == "terms"]
        known = [(step, found) for step, found in terms if "elbo" in found]
        curves["ELBO"].append({float(step): found["elbo"] for step, found in known})
        curves["reconstruction"].append({float(step): found["elbo"] + found.get("latent_kl", 0.0) for step, found in known})
    lines = [replace(line, style=series_style(number)) for number, line in enumerate(series(curves, bands=False), len(SCORES))]
    x = nice_axis([0.0, *(point.x for line in lines for point in line.points)])
    named = Axis(x.low, x.high, x.ticks, "steps of training")
    drawn = chart(lines, named, (across_of(2, WIDTH), 220), f"ELBO on {place}", markers=False)
    return Panel(f"{place}, nats a picture", drawn)


def _rows_of_pictures(run: Finished) -> Markup:
    """Originals and reconstructions after the last task, then samples after each."""
    tasks = len(run.facts["task_names"])
    folder = RunFolder(run.folder).seed(int(run.results[0]["seed"])).path / "pictures"
    wanted = [("originals", tasks), ("reconstructions", tasks), *(("samples", after) for after in range(1, tasks + 1))]
    parts: list[Markup] = []
    for line, (name, after) in enumerate(wanted):
        label = name if name != "samples" else f"samples after task {after}"
        parts.append(element("text", label, class_="row-label", x=136.0, y=line * _LINE + 18.0, text_anchor="end"))
        path = folder / f"{after}-{name}.png"
        if not path.exists():
            raise RunError(f"{path} is missing: remove {run.folder} and run it again")
        content = path.read_bytes()
        width, height = _size(content)
        place: dict[str, Any] = {"x": 144.0, "y": float(line * _LINE), "height": _LINE - 4.0}
        shown = min((_LINE - 4.0) * width / height, WIDTH - 144.0)
        parts.append(element("image", href=data_uri(content), width=shown, **place, preserveAspectRatio="none"))
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {WIDTH} {len(wanted) * _LINE}", role="img", aria_label="pictures")


def _size(content: bytes) -> tuple[int, int]:
    """Width and height of a PNG file."""
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


def _findings(place: str, first: Statistic | None, last: Statistic | None) -> list[Finding]:
    claim = f"{place}: what is generated holds less and less about the classes, task by task"
    decreasing = judge.claim_larger(claim, ("score after the first task", "after the last"), first, last, 3)
    kept = f"{place}: after the last task it still holds some"
    if last is None:
        return [decreasing, Finding(kept, "not measured", "there is no score")]
    verdict = judge.compared(last, Statistic(0.0, 0.0, last.seeds))
    return [decreasing, Finding(kept, verdict, f"inception score {judge.text(last, 3)} bits; {judge.seeds_of(last)}")]


FIGURE = GeneratorFigure()
