"""The results table of supervised runs for terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvcl.report.folders import find_runs
from hvcl.report.load import load_run
from hvcl.report.statistic import Statistic
from hvcl.report.supervised import SupervisedRun
from hvcl.report.supervised.groups import Row, group_rows, group_runs

WIDE = 100
"""Characters that the whole table needs; narrower terminals get the columns that matter most."""


def print_table(folders: Sequence[Path], console: Console) -> None:
    """Print the results of the supervised runs in `folders`, with scenario, supervision, memory and seeds beside every figure."""
    columns = _COLUMNS if console.width >= WIDE else {name: _COLUMNS[name] for name in _NARROW}
    runs = [load_run(folder) for folder in find_runs(folders)]
    for group in group_runs([run for run in runs if isinstance(run, SupervisedRun)]):
        where = "" if group.evaluated_on == "test" else f", on {group.evaluated_on} data"
        title = escape(f"{group.benchmark}, {group.scenario.capitalize()}-IL, {group.supervision}{where}")
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method", no_wrap=True)
        table.add_column("memory", no_wrap=True)
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for row in group_rows(group):
            label = row["label"] + (f" ({row['bound']})" if row["bound"] else "")
            table.add_row(escape(label), escape(row["memory"]), *(show(row) for show in columns.values()))
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


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "accuracy %": lambda row: _percent(row["quantities"]["average_accuracy"]),
    "forgetting": lambda row: _percent(row["quantities"]["forgetting"]),
    "learning": lambda row: _percent(row["quantities"]["learning_accuracy"]),
    "NLL": lambda row: _number(row["quantities"]["nll"], 3),
    "ECE": lambda row: _number(row["quantities"]["calibration_error"], 3),
    "seconds": lambda row: _number(row["quantities"]["seconds"], 1),
    "seeds": _seeds,
}
_NARROW = ("accuracy %", "forgetting", "seconds", "seeds")
