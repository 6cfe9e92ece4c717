"""Draws docs/speed/layers.svg and fills the tables of docs/speed/README.md, from the JSON files beside them and nothing else."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from hvcl.core.files import write_atomically

PAGE = Path(__file__).resolve().parent.parent / "docs" / "speed"
MAX_BYTES = 300_000

FLIPOUT, FAST, PEER, INK, FAINT = "#2f5fa8", "#1a9274", "#a9adb5", "#24272c", "#d9dce1"

Document = dict[str, Any]
Row = dict[str, Any]


# -- figure -------------------------------------------------------------------------------------------------------------------


def bars(axes: Axes, rows: dict[str, Row], kind: str, title: str) -> None:
    """Our layers and the peers', the cheapest on top."""
    entries: list[tuple[Row, str, str]] = []
    for mode, words, colour in (("flipout/weight", "flipout", FLIPOUT), ("local/unit", "fast mode", FAST)):
        for experts in (1, 2, 8):
            row = rows.get(f"{kind}/{mode}/{experts}" + ("/diversity" if experts > 1 else ""))
            if row:
                entries.append((row, f"hvcl {words}, {experts} expert{'s' * (experts > 1)}", colour))
    for name, row in rows.items():
        if name.startswith(f"{kind}/") and row["library"] != "hvcl":
            entries.append((row, row["library"], PEER))
    entries.sort(key=lambda entry: entry[0]["ratio"])
    goal_label: str | None = "goal"
    for place, (row, _, colour) in enumerate(entries):
        ratio = row["ratio"]
        spread = [[ratio - row["ratio_q1"]], [row["ratio_q3"] - ratio]]
        axes.barh(place, ratio, height=0.7, color=colour, xerr=spread, error_kw={"ecolor": INK, "elinewidth": 0.8})
        style = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{ratio:.2f}", (row["ratio_q3"], place), **style)
        if "goal" in row:
            goal = row["goal"]
            axes.plot([goal, goal], [place - 0.42, place + 0.42], color="#d1495b", lw=2, label=goal_label, solid_capstyle="butt")
            goal_label = None
    axes.set_yticks(range(len(entries)), [words for _, words, _ in entries], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color=INK, lw=0.8, ls=":")
    axes.set_xlim(0, 1.13 * max(row["ratio_q3"] for row, _, _ in entries))
    axes.set_xlabel("cost of a training step, plain torch.nn = 1", fontsize=8.5)
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
    if goal_label is None:
        axes.legend(fontsize=8, frameon=False, loc="upper right")


STYLES: list[tuple[str, dict[str, Any]]] = [
    ("flipout, sigma per weight, all used", {"color": FLIPOUT, "marker": "o", "label": "flipout, all used"}),
    ("local, sigma per unit, all used", {"color": FAST, "marker": "o", "label": "fast mode, all used"}),
    (
        "flipout, sigma per weight, 4 used, lazy",
        {"color": FLIPOUT, "marker": "s", "ls": "--", "label": "flipout, 4 used, lazy, no diversity"},
    ),
    (
        "local, sigma per unit, 4 used, lazy",
        {"color": FAST, "marker": "s", "ls": "--", "label": "fast mode, 4 used, lazy, no diversity"},
    ),
    ("flipout, 2 experts", {"color": FLIPOUT, "marker": "o"}),
    ("flipout, 8 experts", {"color": FLIPOUT, "marker": "s", "ls": "--"}),
    ("fast mode, 2 experts", {"color": FAST, "marker": "o"}),
    ("fast mode, 8 experts", {"color": FAST, "marker": "s", "ls": "--"}),
    ("bayesian-torch Flipout, 1 expert", {"color": "#7d828b", "marker": "^", "ls": "-."}),
]


def curves(axes: Axes, rows: list[Row], what: str, title: str) -> None:
    """Cost against one size, both axes logarithmic."""
    places: set[int] = set()
    for curve, style in STYLES:
        points = sorted((row["at"], row["ratio"]) for row in rows if row.get("curve") == curve and row["name"].startswith(what))
        if points:
            places |= {at for at, _ in points}
            axes.plot(*zip(*points, strict=True), **({"label": curve, "ms": 4.5, "lw": 1.6, "mec": "white", "mew": 0.6} | style))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    low, high = axes.get_ylim()
    ticks = [tick for tick in (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100, 200) if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
    axes.legend(fontsize=7.5, frameon=False)
    axes.grid(axis="y", color=FAINT, lw=0.7)
    axes.tick_params(labelsize=8)
    axes.set_ylabel("plain torch.nn of that size = 1", fontsize=8.5)


def draw(document: Document, target: Path) -> None:
    rows = [row for row in document["rows"] if "ratio" in row]
    by_name = {row["name"]: row for row in rows}
    plt.rcParams.update({"svg.hashsalt": "hvcl", "font.family": "sans-serif", "axes.edgecolor": "#8b9099", "text.color": INK})
    figure = plt.figure(figsize=(11, 8.4), layout="constrained", facecolor="white")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.12, 1))
    left, right = top.subplots(1, 2)
    bars(left, by_name, "mlp", "Dense, 784-256-256-2, batch 256")
    bars(right, by_name, "conv", "Convolutions, 3-8-16-32-64-128, batch 256")
    three = bottom.subplots(1, 3)
    curves(three[0], rows, "experts", "Number of experts")
    curves(three[1], rows, "width", "Width of the hidden layers")
    curves(three[2], rows, "batch", "Batch size")
    for axes in (left, right, *three):
        axes.spines[["top", "right"]].set_visible(False)
    part = target.with_name(target.name + ".part")
    figure.savefig(part, format=target.suffix[1:], metadata={"Date": None} if target.suffix == ".svg" else None, dpi=110)
    os.replace(part, target)
    plt.close(figure)


# -- tables -------------------------------------------------------------------------------------------------------------------


def table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def met(row: Row) -> str:
    return "" if row.get("met") is None else "yes" if row["met"] else "**no**"


def ratio(row: Row | None) -> str:
    return "" if row is None else f"{row['ratio']:.2f}"


def between(row: Row) -> str:
    return f"{row['ratio_q1']:.2f} to {row['ratio_q3']:.2f}"


def machine(document: Document) -> str:
    facts = document["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in {"torch": facts["torch"], **facts["peers"]}.items())
    words = f"{facts['processor']}, one thread; {versions}; commit {facts['commit']}; "
    words += f"{document['rounds']} rounds."
    if document["quick"]:
        words = "**A quick run: a look, not a measurement.** " + words
    if facts.get("source_changed"):
        words = "**The source changed during the run: measure again.** " + words
    return words


def goals_table(document: Document) -> str:
    def line(goal: Row) -> list[str]:
        sign = "<" if goal["strict"] else "≤"
        return [goal["name"], f"{goal['value']:.2f}", f"{sign} {goal['goal']:.1f}", met(goal)]

    return machine(document) + "\n\n" + table(["", "measured", "goal", "met"], [line(goal) for goal in document["goals"]])


def layers_table(document: Document, kind: str) -> str:
    def words(row: Row) -> str:
        if row["library"] != "hvcl":
            return f"{row['library']}, 1 expert"
        update = ", torch.optim.Adam" if row["optimizer"] == "adam" else ""
        name = f"{row['estimator']}, sigma per {row['sigma']}" + (" (fast mode)" if row["fast_mode"] else "")
        return f"{name}, {row['experts']} expert{'s' * (row['experts'] > 1)}{', diversity' * row['diversity']}{update}"

    rows = [row for row in document["rows"] if row["name"].startswith(f"{kind}/") and "ratio" in row]
    lines = []
    for row in rows:
        used = " ".join(f"{count:g}" for count in row.get("experts_used", []))
        goal = f"{row['goal']:.1f}" if "goal" in row else ""
        lines.append([words(row), ratio(row), between(row), f"{row['milliseconds']:.1f}", goal, met(row), used])
    head = ["over plain torch.nn", "ratio", "quartiles", "ms", "goal", "met", "experts used, by layer"]
    return table(head, lines)


def growth_table(document: Document, what: str) -> str:
    rows = [row for row in document["rows"] if row["name"].startswith(what) and "curve" in row and "ratio" in row]
    places = sorted({row["at"] for row in rows})
    named: dict[str, dict[int, Row]] = {}
    for row in rows:
        named.setdefault(row["curve"], {})[row["at"]] = row
    lines = [[curve, *(ratio(found.get(at)) for at in places)] for curve, found in named.items()]
    return table([what, *map(str, places)], lines)


def inference_table(document: Document) -> str:
    rows = [row for row in document["rows"] if row["name"].startswith("inference ") and "ratio" in row]
    lines = []
    for row in rows:
        kind, way, what = row["name"].removeprefix("inference ").split("/")
        who = f"hvcl, {what} expert{'s' * (what != '1')}" if row["library"] == "hvcl" else what
        lines.append([f"{kind}: {who}, {way}", ratio(row), between(row), f"{row['milliseconds']:.2f}"])
    return table(["over plain torch.nn", "ratio", "quartiles", "ms"], lines)


def memory_table(document: Document) -> str:
    rows = [row for row in document["rows"] if row["name"].startswith("memory ") and "megabytes" in row]
    lines = [
        [row["name"].removeprefix("memory ").replace("/", ": ", 1).replace("/", ", "), f"{row['megabytes']:.0f}", ratio(row)]
        for row in rows
    ]
    return table(["peak while training", "MB", "over plain"], lines)


def harness_table(document: Document, part: str) -> str:
    lines = []
    for row in document.get(part, []):
        goal = f"{'≥' if row['at_least'] else '≤'} {row['goal']:g}" if "goal" in row else ""
        lines.append([row["name"], ratio(row), between(row), f"{row['seconds_per_epoch']:.2f}", goal, met(row)])
    head = "over a hand-written loop" if part == "overhead" else "over hvcl's stream and learner"
    note = ""
    if part == "overhead":
        note = machine(document) + ("" if document["mnist"] else " Random images in place of MNIST.") + "\n\n"
    return note + table([head, "ratio", "quartiles", "s an epoch", "goal", "met"], lines)


def breakdown_table(document: Document) -> str:
    parts = list(dict.fromkeys(part for row in document["rows"] for part in row["parts"]))
    names = [row["name"] for row in document["rows"]]
    lines = [[part, *(f"{row['parts'].get(part, 0):.2f}" for row in document["rows"])] for part in parts]
    lines.append(["**all**", *(f"**{row['total']:.2f}**" for row in document["rows"])])
    lines += [
        [f"floor: {part}", *(f"{row['floor'][part]:.2f}" for row in document["rows"])] for part in document["rows"][0]["floor"]
    ]
    return table(["in plain steps", *names], lines)


def features_table(document: Document) -> str:
    def line(row: Row) -> list[str]:
        return [row["name"], ratio(row), between(row), "" if row["goal"] is None else f"≤ {row['goal']}", met(row)]

    return machine(document) + "\n\n" + table(["", "ratio", "quartiles", "goal", "met"], [line(row) for row in document["rows"]])


def fill(page: Path, tables: dict[str, Callable[[], str]]) -> list[str]:
    """Put every table between its two markers; returns the names that have none on the page."""
    text = page.read_text()
    missing = []
    for name, make in tables.items():
        pattern = re.compile(rf"(<!-- table {re.escape(name)} -->).*?(<!-- end -->)", re.DOTALL)
        content = make()
        text, count = pattern.subn(lambda found, content=content: f"{found[1]}\n{content}\n{found[2]}", text)
        if not count:
            missing.append(name)
    write_atomically(page, text)
    return missing


def main() -> int:
    tables: dict[str, Callable[[], str]] = {}
    layers, harness = PAGE / "layers.json", PAGE / "harness.json"
    if layers.exists():
        document = json.loads(layers.read_text())
        target = PAGE / "layers.svg"
        draw(document, target)
        print(f"written: {target} ({target.stat().st_size / 1000:.0f} kB)")
        if target.stat().st_size > MAX_BYTES:
            print(f"it is larger than {MAX_BYTES / 1000:.0f} kB", file=sys.stderr)
            return 1
        tables |= {
            "goals": lambda: goals_table(document),
            "mlp": lambda: layers_table(document, "mlp"),
            "conv": lambda: layers_table(document, "conv"),
            "experts": lambda: growth_table(document, "experts"),
            "width": lambda: growth_table(document, "width"),
            "batch": lambda: growth_table(document, "batch"),
            "inference": lambda: inference_table(document),
            "memory": lambda: memory_table(document),
        }
    if harness.exists():
        results = json.loads(harness.read_text())
        tables |= {
            "overhead": lambda: harness_table(results, "overhead"),
            "avalanche": lambda: harness_table(results, "avalanche"),
        }
    breakdown = PAGE / "breakdown.json"
    if breakdown.exists():
        shares = json.loads(breakdown.read_text())
        tables["breakdown"] = lambda: breakdown_table(shares)
    features = PAGE / "features.json"
    if features.exists():
        measured = json.loads(features.read_text())
        tables["features"] = lambda: features_table(measured)
    runs = PAGE / "runs.json"
    if runs.exists():
        over_naive = json.loads(runs.read_text())
        tables["runs"] = lambda: features_table(over_naive)
    if not tables:
        print("nothing to draw: run make bench-layers or make bench-harness first", file=sys.stderr)
        return 2
    missing = fill(PAGE / "README.md", tables)
    if missing:
        print(f"the page has no markers for: {', '.join(missing)}", file=sys.stderr)
    print(f"written: {PAGE / 'README.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
