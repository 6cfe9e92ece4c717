"""The results table for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvcl.report.load import find_runs, load_run
from hvcl.report.summary import Row, Statistic, group_rows, group_runs


def print_table(folders: Sequence[Path], console: Console) -> None:
    """Print the results of the runs in `folders`, with scenario, supervision, memory and seeds beside every figure."""
    for group in group_runs([load_run(folder) for folder in find_runs(folders)]):
        where = "" if group.evaluated_on == "test" else f", on {group.evaluated_on} data"
        title = escape(f"{group.benchmark}, {group.scenario.capitalize()}-IL, {group.supervision}{where}")
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method")
        table.add_column("memory")
        for name in ("accuracy %", "forgetting", "learning", "NLL", "ECE", "seconds", "seeds"):
            table.add_column(name, justify="right")
        for row in group_rows(group):
            table.add_row(
                escape(row["label"] + (f" ({row['bound']} bound)" if row["bound"] else "")),
                escape(row["memory"]),
                _percent(row["average_accuracy"]),
                _percent(row["forgetting"]),
                _percent(row["learning_accuracy"]),
                _number(row["nll"], 3),
                _number(row["calibration_error"], 3),
                _number(row["seconds"], 1),
                _seeds(row),
            )
        console.print(table)
        console.print()


def _seeds(row: Row) -> str:
    done, planned = row["seeds_finished"], row["seeds_planned"]
    return str(done) if done == planned else f"{done} of {planned}"


def _percent(value: Statistic | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value.mean:.2f}" + ("" if value.sd is None else f" ± {100 * value.sd:.2f}")


def _number(value: Statistic | None, digits: int) -> str:
    return "-" if value is None else f"{value.mean:.{digits}f}"
