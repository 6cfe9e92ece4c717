"""docs/streams/comparison.md, from what experiments/streams has measured.

.venv/bin/python -m tools.streams_page            # prints it
.venv/bin/python -m tools.streams_page --write    # puts it into the page, between its marks
"""

import argparse

from experiments.records import read_records
from experiments.streams.compare import METHODS
from experiments.streams.data import STREAMS
from hvcl.core.files import write_atomically
from tools.marks import ROOT, fill

PAGE = ROOT / "docs" / "streams" / "comparison.md"
FOLDER = ROOT / "experiments" / "streams"
TITLES = {"hvcl": "hvcl", "arf": "ARF", "hat": "HAT", "logistic": "logistic", "sgd": "SGD"}
NEAR = 0.01
"""A point."""


def results():
    """The last record of every stream, method and size of batch."""
    return {(r["stream"], r["method"], r["batch"]): r for r in read_records(FOLDER / "results.jsonl")}


def complete(found, batch):
    """Streams of which every method has a figure, in their order."""
    return [name for name in STREAMS if all((name, method, batch) in found for method in METHODS)]


def table(found, batch):
    """A row a stream: accuracy and seconds of each method, the best in bold."""
    head = ["stream", "rows", "majority", *TITLES.values()]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in complete(found, batch):
        mine = {method: found[name, method, batch] for method in METHODS}
        best = max(round(100 * record["accuracy"], 1) for record in mine.values())
        shown = []
        for record in mine.values():
            accuracy = round(100 * record["accuracy"], 1)
            shown.append(f"{f'**{accuracy:.1f}**' if accuracy == best else f'{accuracy:.1f}'} ({seconds(record['seconds'])})")
        rows, majority = mine["hvcl"]["rows"], mine["hvcl"]["majority"]
        lines.append(f"| {name} | {rows:,} | {100 * majority:.1f} | {' | '.join(shown)} |")
    totals = [sum(found[name, method, batch]["seconds"] for name in complete(found, batch)) for method in METHODS]
    lines.append(f"| all, seconds | | | {' | '.join(f'{total:.0f}' for total in totals)} |")
    return "\n".join(lines)


def seconds(value):
    """Two figures."""
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}"


def behind(found, name, batch):
    """How far ours is behind the best other method, as a share; negative: ahead."""
    return max(found[name, method, batch]["accuracy"] for method in METHODS[1:]) - found[name, "hvcl", batch]["accuracy"]


def counts(found, batch):
    """What follows from a table, beside the goals."""
    names = complete(found, batch)
    gaps = {name: behind(found, name, batch) for name in names}
    best, near = (sum(gap <= limit for gap in gaps.values()) for limit in (0, NEAR))
    below = [name for name in names if found[name, "hvcl", batch]["accuracy"] < found[name, "hvcl", batch]["majority"]]
    ours, forest = (sum(found[name, method, batch]["seconds"] for name in names) for method in ("hvcl", "arf"))
    far = sorted((name for name in names if gaps[name] > NEAR), key=gaps.get, reverse=True)
    lines = [
        f"Of {len(names)} streams hvcl is the best on {best}, and the best or within one point of it on {near}; "
        f"below the majority class on {listed(below) or 'none'}. It takes {ours / forest:.2f} times the processor time of ARF."
    ]
    if far:
        lines.append(f"More than a point behind: {', '.join(f'{name} ({100 * gaps[name]:.1f})' for name in far)}.")
    slow = [name for name in names if found[name, "hvcl", batch]["seconds"] > found[name, "arf", batch]["seconds"] / 5]
    lines.append(f"More than a fifth of ARF's time on {len(slow)} of {len(names)} streams{f': {listed(slow)}' if slow else ''}.")
    return "\n".join(lines)


def listed(names):
    """With commas."""
    return ", ".join(names)


def flips(found):
    """Batches after each flip until five in a row are above 90 %."""
    lines = [f"| stream, rows of a batch | {' | '.join(TITLES.values())} |", "|---" * (len(METHODS) + 1) + "|"]
    for name in ("flip", "flips"):
        for batch in (1, 32, 256):
            if name in complete(found, batch):
                shown = [
                    ", ".join("–" if n is None else str(n) for n in found[name, method, batch]["recovery"]) for method in METHODS
                ]
                lines.append(f"| {name}, {batch} | {' | '.join(shown)} |")
    return "\n".join(lines)


def fuzz():
    """How many random streams were run, and what failed."""
    records, lines = read_records(FOLDER / "fuzz.jsonl"), []
    for rows in sorted({record["rows"] for record in records}):
        mine = [record for record in records if record["rows"] == rows]
        count, failures = sum(record["count"] for record in mine), sum(len(record["failures"]) for record in mine)
        drifts = sum(record.get("drifts", 0) for record in mine)
        noticed = f"; {drifts} changes of the concept were noticed" if drifts else ""
        lines.append(f"- {count:,} of {rows} rows: {failures or 'none'} failed{noticed}")
    still = read_records(FOLDER / "stationary.jsonl")
    opened = sum(record["experts"] > 1 for record in still)
    lines.append(
        f"- {len(still):,} stationary streams of 10,000 examples through the gate: {opened or 'none'} with an expert too many"
    )
    return "Run so far:\n" + "\n".join(lines)


def page():
    """The page with all its parts."""
    found, text = results(), PAGE.read_text()
    for batch in (1, 32, 256):
        made = f"{table(found, batch)}\n\n{counts(found, batch)}" if complete(found, batch) else "Not measured yet."
        missing = [name for name in STREAMS if name not in complete(found, batch)]
        if missing and len(missing) < len(STREAMS):
            made += f"\nNot measured yet: {listed(missing)}."
        text = fill(text, f"batches of {batch}", made)
    return fill(fill(text, "flips", flips(found)), "random streams", fuzz())


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put it into the page")
    if parser.parse_args().write:
        write_atomically(PAGE, page().encode())
    else:
        print(page())


if __name__ == "__main__":
    main()
