"""The tables of the exact learner, from results/ and from what experiments/exact has measured.

.venv/bin/python -m tools.exact_page            # prints them
.venv/bin/python -m tools.exact_page --write    # puts them into README.md and docs/exact/README.md, between their marks
"""

import argparse
import statistics

from experiments.records import read_records
from hvcl.core.files import write_atomically
from hvcl.results import load_cells, load_paper
from tools.marks import ROOT, fill

COLUMNS = {
    "domain-task-free": "Domain-IL, task-free",
    "domain": "Domain-IL, boundaries",
    "class": "Class-IL, boundaries",
    "task": "Task-IL, boundaries",
}
BENCHMARKS = ("split-mnist", "permuted-mnist", "split-cifar10", "split-cifar100")


def accuracy(cell):
    """Mean and standard deviation over seeds, in %."""
    accuracies = [100 * value for value in cell.accuracies]
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"**{statistics.mean(accuracies):.2f}**{spread}"


def table():
    """A row for each benchmark, beside the paper's HVCL, whose figures are of Domain-IL."""
    cells = {cell.name: cell for cell in load_cells(ROOT / "results")}
    paper = load_paper(ROOT / "results")
    last = ("the paper's HVCL, Domain-IL", "features", "seconds", "seeds")
    lines = [f"| accuracy % after all tasks | {' | '.join((*COLUMNS.values(), *last))} |", "|---" * (len(COLUMNS) + 5) + "|"]
    for benchmark in BENCHMARKS:
        found = {column: cells.get(f"{benchmark}-{column}-exact") for column in COLUMNS}
        there = [cell for cell in found.values() if cell]
        results = [result for cell in there for result in cell.results]
        seconds = statistics.mean(result["seconds"] for result in results)
        seeds = sorted({len(cell.seeds) for cell in there})
        shown = [accuracy(cell) if cell else "" for cell in found.values()]
        figure = str(paper[benchmark, "domain", "hvcl"])
        shown += [figure, f"{results[0]['features']:,}", f"{seconds:.0f}", "/".join(map(str, seeds))]
        lines.append(f"| {' | '.join([benchmark, *shown])} |")
    return "\n".join(lines)


def records(name):
    """What experiments/exact has measured."""
    return read_records(ROOT / "experiments" / "exact" / f"{name}.jsonl")


def curve():
    """Accuracy by the number of features."""
    lines = ["| | filters | features | Class-IL | Domain-IL | Task-IL |", "|---|---|---|---|---|---|"]
    for record in records("curve"):
        accuracies = " | ".join(f"{100 * record[name]:.1f}" for name in ("class", "domain", "task"))
        lines.append(f"| {record['benchmark']} | {record['filters']} | {record['features']:,} | {accuracies} |")
    return "\n".join(lines)


def ablation():
    """Accuracy without parts of the feature map."""
    lines = ["| | features | accuracy % |", "|---|---|---|"]
    for record in records("ablation"):
        lines.append(f"| {record['variant']} | {record['features']:,} | {100 * record['accuracy']:.1f} |")
    return "\n".join(lines)


def documents():
    """Every document that is filled here, by its path."""
    readme, page = ROOT / "README.md", ROOT / "docs" / "exact" / "README.md"
    return {
        readme: fill(readme.read_text(), "exact table", table()),
        page: fill(fill(page.read_text(), "curve", curve()), "ablation", ablation()),
    }


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into the documents")
    if parser.parse_args().write:
        for path, text in documents().items():
            write_atomically(path, text.encode())
    else:
        print(table(), curve(), ablation(), sep="\n\n")


if __name__ == "__main__":
    main()
