"""The columns of the results table, and its cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvcl.report import words
from hvcl.report.supervised.groups import Row
from hvcl.report.supervised.run import Quantity


@dataclass(frozen=True)
class Column:
    """A column of the results table: what it holds, how it is headed and explained, how it is written."""

    quantity: Quantity
    title: str
    unit: str
    meaning: str
    form: Callable[[float], str]
    spread: Callable[[float], str] | None


@dataclass(frozen=True)
class TableCell:
    """A value over seeds as text; `note` says when not all finished seeds gave it."""

    mean: str
    spread: str = ""
    note: str = ""


COLUMNS = (
    Column(
        "average_accuracy",
        "Average accuracy",
        "%",
        "Over all tasks, after the last one",
        words.percent,
        words.percent,
    ),
    Column(
        "learning_accuracy",
        "Learning accuracy",
        "%",
        "On each task right after it was learned, averaged",
        words.percent,
        words.percent,
    ),
    Column(
        "forgetting",
        "Forgetting",
        "points",
        "How far each earlier task has fallen from its best, averaged; lower is better",
        words.percent,
        words.percent,
    ),
    Column(
        "backward_transfer",
        "Backward transfer",
        "points",
        "How later tasks changed the accuracy on earlier ones; negative is forgetting",
        words.signed_percent,
        words.percent,
    ),
    Column(
        "forward_transfer",
        "Forward transfer",
        "points",
        "Accuracy on a task just before it is learned, against an untrained network",
        words.signed_percent,
        words.percent,
    ),
    Column("nll", "NLL", "nats", "Negative log likelihood of the true labels; lower is better", words.decimal, words.decimal),
    Column(
        "calibration_error",
        "Calibration error",
        "%",
        "Gap between stated confidence and actual accuracy; lower is better",
        words.percent,
        words.percent,
    ),
    Column("parameters", "Parameters", "", "Numbers the network learns", words.whole, None),
    Column("stored_bytes", "Stored", "", "Everything the learner must keep to go on", words.size, None),
    Column("seconds", "Time", "", "For one seed, training and evaluation", words.duration, None),
)


def cell(row: Row, column: Column) -> TableCell:
    """What stands in one column of a row."""
    value = row["quantities"][column.quantity]
    if value is None:
        return TableCell(words.MISSING)
    spread = column.spread(value.sd) if column.spread and value.sd is not None else ""
    note = "" if value.seeds == row["seeds_finished"] else f"{value.seeds} of {row['seeds_finished']} seeds"
    return TableCell(column.form(value.mean), spread, note)


def seeds(row: Row) -> str:
    """How many seeds a row is of, and how many were planned if that is more."""
    finished, planned = row["seeds_finished"], row["seeds_planned"]
    return str(finished) if finished == planned else f"{finished} of {planned} seeds finished"
