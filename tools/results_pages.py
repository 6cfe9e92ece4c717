"""The pages of results, made from results/: README's overview, docs/results, and a page for every method in docs/methods.

    .venv/bin/python -m tools.results_pages            # prints the overview
    .venv/bin/python -m tools.results_pages --write    # writes README.md (between its marks), docs/results and docs/methods

A method's page has its mathematics and deviations (the docstring of its file), its settings, what the search chose, and its
results.
"""

import argparse
import dataclasses
import importlib
import json
import statistics
import textwrap
from pathlib import Path

from experiments.literature.baselines import PUBLISHED
from experiments.records import read_records
from experiments.search import load_topic
from hvcl.core.configuration import field_help
from hvcl.core.files import write_atomically
from hvcl.learners import known_methods
from hvcl.learners.gradient import GradientConfig
from hvcl.results import load_cells, markdown_table, method_table, overview
from hvcl.runs import RunConfig
from hvcl.settings import load_settings, method_settings
from hvcl.streams import BENCHMARKS
from tools.marks import ROOT, fill

EXPERIMENTS = ROOT / "experiments"


def published():
    """The baselines beside the figures of their literature."""
    found = read_records(EXPERIMENTS / "literature" / "baselines.jsonl")
    lines = ["| Domain-IL, boundaries | method | strength | ours | published |", "|---|---|---|---|---|"]
    for benchmark, methods in PUBLISHED.items():
        for method, (low, high) in methods.items():
            of_method = [r for r in found if (r["benchmark"], r["method"]) == (benchmark, method) and r["seed"]]
            for strength in sorted({r["strength"] for r in of_method}, key=lambda value: value or 0):
                values = [100 * r["accuracy"] for r in of_method if r["strength"] == strength]
                spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else " (one seed)"
                literature = f"{low}" if low == high else f"{low} to {high}"
                shown = "" if strength is None else f"{strength:g}"
                lines.append(f"| {benchmark} | {method} | {shown} | {statistics.mean(values):.2f}{spread} | {literature} |")
    return "\n".join(lines)


def forgetting():
    """Accuracy on old tasks with parts of the network put back to how they were when the task was learned."""
    found = read_records(EXPERIMENTS / "forgetting" / "parts.jsonl")
    names = list(found[0]["restored"]) if found else []
    lines = [f"| accuracy on old tasks, % | when learned | {' | '.join(names)} | other expert |", "|---" * (len(names) + 3) + "|"]
    for key in dict.fromkeys((r["benchmark"], r["method"]) for r in found):
        same = [r for r in found if (r["benchmark"], r["method"]) == key]
        values = [statistics.mean(r["restored"][name] for r in same) for name in names]
        moved = statistics.mean(statistics.mean(r["moved"]) for r in same)
        learned = statistics.mean(r["learned"] for r in same)
        shown = " | ".join(f"{100 * value:.1f}" for value in [learned, *values])
        lines.append(f"| {key[0]} {key[1]} ({len(same)} seeds) | {shown} | {100 * moved:.0f} % |")
    return "\n".join(lines)


def gate_cost():
    """Accuracy on the first task, by the number of experts and the routing."""
    found = read_records(EXPERIMENTS / "forgetting" / "gate_cost.jsonl")
    rates = list(dict.fromkeys(record["learning_rate"] for record in found))
    lines = [f"| first task of split CIFAR-10, accuracy % | {' | '.join(f'step size {rate:g}' for rate in rates)} |"]
    lines.append("|---" * (len(rates) + 1) + "|")
    for variant in dict.fromkeys(record["variant"] for record in found):
        shown = []
        for rate in rates:
            same = [r for r in found if (r["variant"], r["learning_rate"]) == (variant, rate)]
            values = [100 * accuracy for record in same for accuracy in record["accuracies"]]
            shown.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if values else "")
        lines.append(f"| {variant} | {' | '.join(shown)} |")
    return "\n".join(lines)


def trials(found):
    """Recorded trials by benchmark: what was changed against the first of each, and what came of it."""
    parts = []
    for benchmark in dict.fromkeys(record["benchmark"] for record in found):
        same = [record for record in found if record["benchmark"] == benchmark]
        base = same[0]["settings"]
        lines = [f"**{benchmark}**", "", f"First row: {_settings(base)}. The others: what they change.", ""]
        lines += [
            "| settings | accuracy % | when learned | forgetting | I(M;X), bits, largest | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for record in same:
            changed = {name: value for name, value in record["settings"].items() if base.get(name) != value}
            asked = dict(pair.split("=") for pair in record.get("asked", ()))  # chosen by hand, with its own stream
            changed = {name: value for name, value in asked.items() if name not in record["settings"]} | changed
            changed |= {name: "default" for name in base if name not in record["settings"] and not asked}
            most = max(record["information"].values(), default=0.0)
            shown = [f"{100 * record[name]:.2f}" for name in ("accuracy", "learning_accuracy", "forgetting")]
            words = "as above" if record is same[0] else _settings(changed)
            lines.append(f"| {words} | {' | '.join(shown)} | {most:.3f} | {record['seconds']:.0f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _settings(settings):
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in settings.items())


def _value(value):
    return "-".join(map(str, value)) or "none" if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else value


def budget():
    """Joint training over epochs a task."""
    lines = ["| joint training, held-out data, seed 0 | epochs a task | accuracy % | seconds |", "|---|---|---|---|"]
    for record in sorted(load_topic("budget").records(), key=lambda r: (r["benchmark"], r["epochs"])):
        lines.append(f"| {record['benchmark']} | {record['epochs']} | {100 * record['accuracy']:.1f} | {record['seconds']:.0f} |")
    return "\n".join(lines)


def paper_budget():
    """`hvcl-paper` and naive training over epochs a task, beside the paper's figure."""
    found = read_records(EXPERIMENTS / "budget" / "paper.jsonl")
    theirs = json.loads((ROOT / "results" / "paper.json").read_text())["figures"]
    order = list(theirs)
    lines = [
        "| accuracy % | epochs a task | hvcl-paper | learned, forgotten | naive | learned, forgotten | the paper's |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = {(r["benchmark"], r["epochs"]) for r in found}
    for benchmark, epochs in sorted(rows, key=lambda row: (order.index(row[0]), row[1])):
        shown = []
        for method in ("hvcl-paper", "naive"):
            same = [r for r in found if (r["benchmark"], r["method"], r["epochs"]) == (benchmark, method, epochs)]
            shown.append(f"{100 * same[0]['accuracy']:.1f}" if same else "")
            shown.append(f"{100 * same[0]['learning_accuracy']:.1f}, {100 * same[0]['forgetting']:.1f}" if same else "")
        lines.append(f"| {benchmark} | {epochs} | {' | '.join(shown)} | {theirs[benchmark]['domain']['hvcl']['accuracy']:.1f} |")
    return "\n".join(lines)


def page(method, cells):
    """A method's page: mathematics, settings, results."""
    module = importlib.import_module(method.learner.__module__)
    config = method.config
    lines = [f"# {method.name}", "", *module.__doc__.strip().splitlines()]
    source = Path(module.__file__).relative_to(ROOT).as_posix()
    lines += ["", f"Source: [{source}](../../{source}). All settings: `hvcl run --method {method.name} --help`.", ""]
    shared = {field.name for field in dataclasses.fields(GradientConfig)}
    own = [field for field in dataclasses.fields(config) if field.name not in shared]
    if own:
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        helps = field_help(config)
        lines += [f"| `{f.name}` | {f.default} | {helps.get(f.name, '').replace('|', chr(92) + '|')} |" for f in own]
        lines.append("")
    chosen = []
    for name in BENCHMARKS:
        if name in load_settings(method.name):
            made = RunConfig.make(name, method.name).learner
            values = {key: getattr(made, key) for key in method_settings(name, method.name)}
            chosen.append(f"| {name} | {', '.join(f'{key} {value}' for key, value in values.items())} |")
    if chosen:
        lines += ["| on the benchmark | settings |", "|---|---|", *chosen, ""]
    found = method_table([cell for cell in cells if cell.method == method.name])
    lines += ["## Results", "", found or "None committed yet.", ""]
    return "\n".join(lines)


def ours():
    """The methods of this package, by name: not those that are registered from outside."""
    return {name: m for name, m in sorted(known_methods().items()) if m.learner.__module__.startswith("hvcl.")}


def index():
    """The list of all methods."""
    lines = ["# Methods", "", "Made from each method's file and from results/ by `python -m tools.results_pages --write`.", ""]
    lines += [f"- [{name}]({name}.md): {method.description}" for name, method in ours().items()]
    return "\n".join(lines) + "\n"


def documents():
    """Every document that is made here, by its path."""
    every = load_cells(ROOT / "results")
    fronts = [name for name, benchmark in BENCHMARKS.items() if benchmark.front]
    cells = [cell for cell in every if cell.benchmark not in fronts]
    on_features = overview([cell for cell in every if cell.benchmark in fronts])
    readme, results = ROOT / "README.md", ROOT / "docs" / "results" / "README.md"
    made = {readme: fill(readme.read_text(), "overview", overview(cells))}
    text = results.read_text()
    for name, part in {
        "overview": overview(cells, "boundaries"),
        "task-free": overview(cells, "task-free"),
        "on fixed features": on_features,
        "published": published(),
        "forgetting": forgetting(),
        "gate cost": gate_cost(),
        "tables": markdown_table(every),
    }.items():
        text = fill(text, name, part)
    made[results] = text
    parts = ROOT / "docs" / "hvcl" / "README.md"
    text = parts.read_text()
    made_of = {name: trials(load_topic(name).records()) for name in ("gates", "retention", "paths")}
    made_of["paths, earlier"] = trials(read_records(EXPERIMENTS / "paths" / "earlier.jsonl"))
    for name, part in (made_of | {"budget": budget(), "paper's budget": paper_budget()}).items():
        text = fill(text, name, part)
    made[parts] = text
    folder = ROOT / "docs" / "methods"
    made |= {folder / f"{name}.md": page(method, cells) for name, method in ours().items()}
    made[folder / "README.md"] = index()
    return made


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__).splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the documents")
    if parser.parse_args().write:
        for path, text in documents().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
    else:
        print(overview(load_cells(ROOT / "results")))


if __name__ == "__main__":
    main()
