"""What a reproduction comes to: rows with the paper's value beside ours, pictures, and what follows of the paper's claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from markupsafe import Markup

from hvcl.report.statistic import Statistic

Source = Literal["run", "committed", "quoted"]
"""Where our figures of a row come from: run here, read from committed results, or there are none (the paper's only)."""

Verdict = Literal["holds", "in part", "does not hold here", "undecided", "not measured"]


@dataclass(frozen=True)
class Column:
    """A quantity of the table: its heading, and the decimals it is shown with."""

    title: str
    digits: int = 2


@dataclass(frozen=True)
class Row:
    """One setting: what it is a figure of, our values by column, and the paper's."""

    label: str
    benchmark: str
    scenario: str
    """Domain-IL, Class-IL, Task-IL; for agents: not given."""
    supervision: str
    memory: str
    seeds: int
    values: Mapping[str, Statistic | None]
    paper: Mapping[str, Statistic] = field(default_factory=dict)
    source: Source = "run"
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """A claim in our words, what became of it, and the figures that say so."""

    claim: str
    verdict: Verdict
    because: str


@dataclass(frozen=True)
class Outcome:
    """All that is shown and written."""

    rows: Sequence[Row]
    columns: Mapping[str, Column]
    picture: Markup
    findings: Sequence[Finding]
    notes: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """Curves and the like, as plain JSON values."""
