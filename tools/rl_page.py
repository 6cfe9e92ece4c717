"""Draws docs/rl/bullet.svg and fills the tables of docs/rl/README.md, from results/rl/bullet and the comparison with
Stable-Baselines3, and nothing else.

    .venv-bench/bin/python -m tools.rl_page

The figure is laid out as the paper's: cumulative normalised reward J above, the returns in every task below; beside J, which
means nothing once a return right after learning is negative, the sum of performances.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

from experiments.records import read_records
from hvcl.core.files import write_atomically
from hvcl.report.reinforcement import over, transfer_of
from hvcl.rl import scores
from tools.marks import ROOT, fill

PAGE = ROOT / "docs" / "rl" / "README.md"
ORDER = ("reset", "naive", "ewc", "ucl", "hvcl", "hvcl-growing")
COLOURS = ("#8b9099", "#24272c", "#b8860b", "#a23b72", "#2f5fa8", "#1a9274")
INK, FAINT = "#24272c", "#d9dce1"


def documents() -> dict[str, dict[str, Any]]:
    """The committed results by method, in a fixed order."""
    found = {path: json.loads(path.read_text()) for path in sorted((ROOT / "results" / "rl" / "bullet").glob("*.json"))}
    by_method = {document["method"]: document for document in found.values()}
    return {method: by_method[method] for method in ORDER if method in by_method}


def curve(result: dict[str, Any]) -> list[scores.Point]:
    """The returns in all tasks over time."""
    return [scores.Point(time, tuple(values)) for time, *values in result["curve"]]


def reward(result: dict[str, Any], above_random: bool) -> dict[float, float]:
    """J over time, where it means something."""
    references = [scores.Reference(*pair) for pair in result["references"]]
    return scores.cumulative_curve(curve(result), references, result["returns_when_learned"], above_random)


def performance(result: dict[str, Any]) -> dict[float, float]:
    """Sum of the performances in the tasks seen so far, over time."""
    references = [scores.Reference(*pair) for pair in result["references"]]
    return {p.time: scores.cumulative_performance(p, references) for p in curve(result)}


def line(axes: Any, curves: list[dict[float, float]], colour: str, label: str) -> None:
    """The mean over seeds where all have a value, and each seed as a thin line."""
    times = sorted(set.intersection(*(set(curve) for curve in curves)))
    axes.plot(times, [statistics.fmean(c[t] for c in curves) for t in times], color=colour, lw=1.8, label=label)
    for one in curves:
        axes.plot(sorted(one), [one[t] for t in sorted(one)], color=colour, lw=0.6, alpha=0.5)


def draw(found: dict[str, dict[str, Any]], target: Path) -> None:
    """The figure, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    names = next(iter(found.values()))["results"][0]["task_names"]
    plt.rcParams.update({"svg.hashsalt": "hvcl", "font.family": "sans-serif", "axes.edgecolor": "#8b9099", "text.color": INK})
    figure = plt.figure(figsize=(11, 6.4), layout="constrained", facecolor="white")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    left, right = top.subplots(1, 2)
    axes = [left, right, *bottom.subplots(1, len(names))]
    for method, document in found.items():
        colour, results = COLOURS[ORDER.index(method)], document["results"]
        line(left, [reward(result, False) for result in results], colour, method)
        line(right, [performance(result) for result in results], colour, method)
        for task in range(len(names)):
            values = [{p.time: r for p in curve(result) if (r := p.returns[task]) is not None} for result in results]
            line(axes[task + 2], values, colour, method)
    left.set_title("Cumulative normalised reward J", fontsize=10, loc="left", fontweight="bold")
    right.set_title("Sum of performances (0 random, 1 good)", fontsize=10, loc="left", fontweight="bold")
    right.legend(fontsize=8, frameon=False, loc="upper left")
    for name, one in zip(names, axes[2:], strict=True):
        one.set_title(name, fontsize=8.5, loc="left", fontweight="bold")
    axes[2].set_ylabel("return", fontsize=8.5)
    for one in axes:
        one.set_xlim(0, len(names))
        one.set_xticks(range(len(names) + 1))
        one.tick_params(labelsize=8)
        one.spines[["top", "right"]].set_visible(False)
        for boundary in range(1, len(names)):
            one.axvline(boundary, color=FAINT, lw=0.8)
    for one in (left, right):
        one.set_xlabel("tasks learned", fontsize=8.5)
    part = target.with_name(target.name + ".part")
    figure.savefig(part, format="svg", metadata={"Date": None})
    os.replace(part, target)
    plt.close(figure)


def chain_table(found: dict[str, dict[str, Any]]) -> str:
    """A row a method: scores, then the return in each task right after it was learned and at the end."""
    names = next(iter(found.values()))["results"][0]["task_names"]
    head = ["method", "J(5)", "J(5) above random", "average performance", "forgetting", "forward transfer", *names, "seeds"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    scratch = [result["learning_areas"] for result in found.get("reset", {"results": []})["results"]]
    for method, document in found.items():
        results = document["results"]
        ends = [[reward(r, above).get(float(len(names))) for r in results] for above in (False, True)]
        cells = [over(values, 2) + _of(values) for values in ends]
        cells += [over([r[key] for r in results], 2) for key in ("average_performance", "forgetting")]
        cells.append("–" if method == "reset" else transfer_of([r["learning_areas"] for r in results], scratch, 2))
        for task in range(len(names)):
            then = over([r["returns_when_learned"][task] for r in results], 0)
            now = over([r["returns_at_the_end"][task] for r in results], 0)
            cells.append(f"{then} → {now}")
        lines.append(f"| {method} | {' | '.join(cells)} | {len(results)} |")
    return "\n".join(lines)


def _of(values: list[float | None]) -> str:
    """Of how many seeds a mean is, where it is not all of them."""
    there = sum(value is not None for value in values)
    return f" ({there} of {len(values)} seeds)" if 0 < there < len(values) else ""


def peer_table() -> str:
    """Our dense SAC and Stable-Baselines3's."""
    rows = read_records(ROOT / "experiments" / "rl" / "against_sb3.jsonl")
    lines = ["| task | steps | ours | Stable-Baselines3 | seeds |", "|---|---|---|---|---|"]
    for task, steps in dict.fromkeys((row["task"], row["steps"]) for row in rows):
        mine = [row for row in rows if (row["task"], row["steps"]) == (task, steps)]
        returns = {who: [row["mean_return"] for row in mine if row["who"] == who] for who in ("ours", "sb3")}
        if min(map(len, returns.values())):
            shown = " | ".join(f"{over(values, 0)} ({', '.join(f'{v:.0f}' for v in values)})" for values in returns.values())
            lines.append(f"| {task} | {steps:,} | {shown} | {min(map(len, returns.values()))} |")
    return "\n".join(lines)


def page(found: dict[str, dict[str, Any]]) -> str:
    """docs/rl/README.md with the tables that belong to what was found."""
    return fill(fill(PAGE.read_text(), "against stable-baselines3", peer_table()), "chain", chain_table(found))


def main() -> None:
    """The command."""
    found = documents()
    draw(found, PAGE.with_name("bullet.svg"))
    write_atomically(PAGE, page(found).encode())


if __name__ == "__main__":
    main()
