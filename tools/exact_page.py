"""The tables of the exact learner, from results/*-exact.json and from what the scripts beside this one have measured.

.venv/bin/python experiments/exact_table.py            # prints them
.venv/bin/python experiments/exact_table.py --write    # puts them into README.md and docs/exact/README.md, between their marks
"""

import argparse
import json
import statistics
from pathlib import Path

from hvcl.runs.state import read_json, write_atomically

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {
    "domain-task-free": "Domain-IL, task-free",
    "domain": "Domain-IL, boundaries",
    "class": "Class-IL, boundaries",
    "task": "Task-IL, boundaries",
}
PAPER = {
    "split-mnist": "97.50 (.33)",
    "permuted-mnist": "97.07 (.62)",
    "split-cifar10": "78.41 (1.18)",
    "split-cifar100": "33.10 (.62)",
}


def cell(document):
    accuracies = [100 * result["average_accuracy"] for result in document["results"]]
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"**{statistics.mean(accuracies):.2f}**{spread}"


def table():
    lines = [
        "| accuracy % after all tasks | " + " | ".join(COLUMNS.values()) + " | the paper's HVCL | features | seconds | seeds |",
        "|---" * (len(COLUMNS) + 5) + "|",
    ]
    for benchmark, paper in PAPER.items():
        found = {}
        for column in COLUMNS:
            path = ROOT / "results" / f"{benchmark}-{column}-exact.json"
            if path.exists():
                found[column] = read_json(path)
        if not found:
            continue
        results = [result for document in found.values() for result in document["results"]]
        seconds = statistics.mean(result["seconds"] for result in results)
        seeds = sorted({len(document["seeds"]) for document in found.values()})
        cells = [cell(found[column]) if column in found else "" for column in COLUMNS]
        last = [paper, f"{results[0]['features']:,}", f"{seconds:.0f}", "/".join(map(str, seeds))]
        lines.append(f"| {' | '.join([benchmark, *cells, *last])} |")
    return "\n".join(lines)


def records(name):
    path = ROOT / "experiments" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def curve():
    lines = ["| | filters | features | Class-IL | Domain-IL | Task-IL |", "|---|---|---|---|---|---|"]
    for record in records("exact_curve"):
        accuracies = " | ".join(f"{100 * record[name]:.1f}" for name in ("class", "domain", "task"))
        lines.append(f"| {record['benchmark']} | {record['filters']} | {record['features']:,} | {accuracies} |")
    return "\n".join(lines)


def ablation():
    lines = ["| | features | accuracy % |", "|---|---|---|"]
    for record in records("exact_ablation"):
        lines.append(f"| {record['variant']} | {record['features']:,} | {100 * record['accuracy']:.1f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into the documents")
    write = parser.parse_args().write
    page = ROOT / "docs" / "exact" / "README.md"
    for path, name, text in (
        (ROOT / "README.md", "exact table", table()),
        (page, "curve", curve()),
        (page, "ablation", ablation()),
    ):
        print(text, end="\n\n")
        if write:
            begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
            before, rest = path.read_text().split(begin)
            write_atomically(path, f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}".encode())


if __name__ == "__main__":
    main()
