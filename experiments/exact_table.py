"""The README's table of the exact learner, from results/*-exact.json.

.venv/bin/python experiments/exact_table.py            # prints it
.venv/bin/python experiments/exact_table.py --write    # puts it into README.md, between its marks
"""

import argparse
import statistics
from pathlib import Path

from hvcl.runs.state import read_json, write_atomically

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- exact table -->", "<!-- end of exact table -->"
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put it into README.md")
    text = table()
    print(text)
    if parser.parse_args().write:
        readme = ROOT / "README.md"
        before, rest = readme.read_text().split(BEGIN)
        write_atomically(readme, f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}".encode())


if __name__ == "__main__":
    main()
