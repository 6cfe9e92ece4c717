"""Rows of the table from finished runs."""

from __future__ import annotations

from collections.abc import Mapping

from hvcl.report.statistic import Statistic
from hvcl.report.words import scenario_name
from hvcl.reproduce.base import Finished
from hvcl.reproduce.outcome import Row

PERCENT = 100.0


def supervised_row(
    run: Finished,
    label: str,
    values: Mapping[str, Statistic | None],
    paper: Mapping[str, Statistic] | None = None,
    note: str = "",
) -> Row:
    """A row of a supervised run: scenario, training and memory are the run's own."""
    facts = run.facts
    scenario = scenario_name(str(facts["scenario"]))
    supervision, memory = str(facts["supervision"]), str(facts["memory"])
    return Row(
        label, str(facts["benchmark"]), scenario, supervision, memory, len(run.results), values, paper or {}, run.source, note
    )


def agent_row(run: Finished, label: str, values: Mapping[str, Statistic | None], supervision: str, note: str = "") -> Row:
    """A row of a run of reinforcement learning: no task is given at test time, and the replay is emptied at a switch."""
    sequence = f"chain {run.facts['sequence']}"
    memory = "none of earlier tasks"
    return Row(label, sequence, "task not given", supervision, memory, len(run.results), values, {}, run.source, note)
