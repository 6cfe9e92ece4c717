"""The pages of results, made from results/: README's overview, docs/results, and a page for every method in docs/methods.

    .venv/bin/python experiments/tables.py            # prints the overview
    .venv/bin/python experiments/tables.py --write    # writes README.md (between its marks), docs/results and docs/methods

A method's page has its mathematics and deviations (the docstring of its file), its settings, what the search chose, and its
results.
"""

import argparse
import dataclasses
import importlib
import sys
import textwrap
from pathlib import Path

from hvcl.core.configuration import field_help
from hvcl.core.storage import write_atomically
from hvcl.learners import known_methods
from hvcl.learners.gradient import GradientConfig
from hvcl.results import load_cells, markdown_table, method_table, overview
from hvcl.runs import RunConfig
from hvcl.settings import load_settings, method_settings
from hvcl.streams import BENCHMARKS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "experiments"))
import forgetting  # noqa: E402
import gate_cost  # noqa: E402
import published  # noqa: E402


def fill(document, name, text):
    """The document with `text` between the marks called `name`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = document.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def page(method, cells):
    """What there is to know of a method."""
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
    """The methods of this package, by name: not those that somebody else has registered."""
    return {name: m for name, m in sorted(known_methods().items()) if m.learner.__module__.startswith("hvcl.")}


def index():
    lines = ["# Methods", "", "Made from each method's file and from results/ by `experiments/tables.py --write`.", ""]
    lines += [f"- [{name}]({name}.md): {method.description}" for name, method in ours().items()]
    return "\n".join(lines) + "\n"


def documents():
    """Every document that is made here, by its path."""
    cells = load_cells(ROOT / "results")
    readme, results = ROOT / "README.md", ROOT / "docs" / "results" / "README.md"
    made = {readme: fill(readme.read_text(), "overview", overview(cells))}
    text = results.read_text()
    for name, part in {
        "overview": overview(cells),
        "task-free": overview(cells, "task-free"),
        "published": published.table(),
        "forgetting": forgetting.table(),
        "gate cost": gate_cost.table(),
        "tables": markdown_table(cells),
    }.items():
        text = fill(text, name, part)
    made[results] = text
    folder = ROOT / "docs" / "methods"
    made |= {folder / f"{name}.md": page(method, cells) for name, method in ours().items()}
    made[folder / "README.md"] = index()
    return made


def main():
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
