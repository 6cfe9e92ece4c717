"""The results table for terminals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvcl.report.load import find_runs, load_run
from hvcl.report.summary import Row, Statistic, results_table


def print_table(folders: Sequence[Path], console: Console) -> None:
    """Print the results of the runs in `folders`, with scenario, supervision, memory and seeds beside every figure."""
    rows = results_table([load_run(folder) for folder in find_runs(folders)])
    for (benchmark, scenario, supervision, evaluated_on), group in itertools.groupby(rows, key=_group):
        where = "" if evaluated_on == "test" else f", on {evaluated_on} data"
        title = f"{benchmark}, {scenario.capitalize()}-IL, {supervision}{where}"
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method")
        table.add_column("memory")
        for name in ("accuracy %", "forgetting", "learning", "NLL", "ECE", "seconds", "seeds"):
            table.add_column(name, justify="right")
        for row in group:
            table.add_row(
                row["label"] + (f" ({row['bound']} bound)" if row["bound"] else ""),
                row["memory"],
                _percent(row["average_accuracy"]),
                _percent(row["forgetting"]),
                _percent(row["learning_accuracy"]),
                _number(row["nll"], 3),
                _number(row["calibration_error"], 3),
                _number(row["seconds"], 1),
                str(row["seeds_finished"]),
            )
        console.print(table)
        console.print()


def _group(row: Row) -> tuple[str, str, str, str]:
    return row["benchmark"], row["scenario"], row["supervision"], row["evaluated_on"]


def _percent(value: Statistic | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value.mean:.2f}" + ("" if value.sd is None else f" ± {100 * value.sd:.2f}")


def _number(value: Statistic | None, digits: int) -> str:
    return "-" if value is None else f"{value.mean:.{digits}f}"
