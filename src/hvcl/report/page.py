"""The HTML page: everything the template shows, gathered; and writing it to a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hvcl.core.errors import RunError
from hvcl.report import figures, words
from hvcl.report.generation import generation_figures
from hvcl.report.load import find_runs, load_run
from hvcl.report.run import Run
from hvcl.report.summary import (
    Group,
    Row,
    Statistic,
    differing_stream_options,
    group_rows,
    group_runs,
    standings,
)

_Quantity = Literal[
    "average_accuracy",
    "learning_accuracy",
    "forgetting",
    "backward_transfer",
    "forward_transfer",
    "nll",
    "calibration_error",
    "parameters",
    "stored_bytes",
    "seconds",
]


@dataclass(frozen=True)
class Column:
    """A column of the results table: what it holds, how it is headed and explained, how it is written."""

    quantity: _Quantity
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


def render(runs: Sequence[Run], title: str | None = None) -> str:
    """The report as one HTML page that needs nothing but itself. The same runs always give the same page.

    Args:
        runs: At least one run, or a `RunError` is raised.
        title: The heading; by default what was run.
    """
    if not runs:
        raise RunError("there is no run to report on")
    groups = group_runs(runs)
    styles = figures.line_styles(groups)
    environment = Environment(
        loader=PackageLoader("hvcl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html").render(
        title=title or _title(groups),
        lead=_lead(groups),
        style=_asset("page.css"),
        script=_asset("page.js"),
        columns=COLUMNS,
        scenarios=[words.SCENARIOS[name] for name in words.SCENARIOS if name in {group.scenario for group in groups}],
        supervisions=[words.SUPERVISIONS[name] for name in words.SUPERVISIONS if name in {group.supervision for group in groups}],
        bounds={entry.bound for group in groups for entry in group.entries},
        several_seeds=any(len(run.seeds) > 1 for run in runs),
        validation=_validation(groups),
        groups=[_view(group, styles, number) for number, group in enumerate(groups, start=1)],
        memory_words=words.memory_words,
    )
    return page.lstrip()  # the template's macros leave empty lines before the document


def write_report(folders: Sequence[Path], output: Path, title: str | None = None) -> Path:
    """Render the runs in `folders` to the file `output`, which appears whole or not at all; returns its path.

    A folder that is not a run itself stands for the runs in it. No run at all, a damaged one, or a place that cannot be
    written to raises a `RunError`.
    """
    output = Path(output)
    page = render([load_run(folder) for folder in find_runs(folders)], title)
    if output.is_dir():
        raise RunError(f"{output} is a folder: give the name of the HTML file to write, such as {output / 'report.html'}")
    temporary: Path | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=output.parent, prefix=f".{output.name}.", suffix=".part", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(page)
        temporary.chmod(0o644)  # temporary files are private, a report is not
        os.replace(temporary, output)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise RunError(f"{output} cannot be written: {error.strerror}") from None
    return output


def _asset(name: str) -> Markup:
    return Markup(resources.files("hvcl.report").joinpath(name).read_text(encoding="utf-8"))


def _name(group: Group) -> str:
    return f"{group.benchmark}, {words.scenario_name(group.scenario)}, {group.supervision}"


def _title(groups: Sequence[Group]) -> str:
    if len(groups) == 1:
        return f"{groups[0].benchmark} in {words.scenario_name(groups[0].scenario)}"
    return words.listing(list(dict.fromkeys(group.benchmark for group in groups)))


def _lead(groups: Sequence[Group]) -> str:
    entries = [entry for group in groups for entry in group.entries]
    methods = list(dict.fromkeys(entry.run.config.method for entry in entries if entry.bound is None))
    bounds = sorted({entry.run.config.method for entry in entries if entry.bound}, reverse=True)
    tasks = sorted({len(group.task_names) for group in groups})
    seeds = sorted({len(entry.run.seeds) for entry in entries})
    return (
        f"{' beside '.join(words.listing(names) for names in (methods, bounds) if names)} "
        f"on {words.listing([str(number) for number in tasks])} tasks learned one after another, "
        f"{_range(seeds)} seed{'' if seeds == [1] else 's'} each."
    )


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _validation(groups: Sequence[Group]) -> str:
    """The warning that figures are not test results, or an empty text."""
    affected = [_name(group) for group in groups if group.evaluated_on == "validation"]
    if not affected:
        return ""
    which = "All figures" if len(affected) == len(groups) else f"The figures of {words.listing(affected)}"
    return f"{which} were measured on validation data. They serve to choose settings and are not test results."


def _view(group: Group, styles: figures.Styles, number: int) -> dict[str, object]:
    rows = group_rows(group)
    return {
        "id": f"group-{number}",
        "name": _name(group),
        "benchmark": group.benchmark,
        "scenario": words.scenario_name(group.scenario),
        "supervision": group.supervision,
        "evaluated_on": group.evaluated_on,
        "task_names": group.task_names,
        "short_names": figures.short_task_names(group.task_names),
        "rows": [(row, [_cell(row, column) for column in COLUMNS], _seeds(row)) for row in rows],
        "overview": figures.overview(group, styles),
        "standings": standings(rows),
        "notes": _notes(group),
        "legend": [(entry, styles[entry.label]) for entry in group.entries],
        "wide_chart": figures.accuracy_over_time(group, styles, (960, 340), direct_labels=True),
        "narrow_chart": figures.accuracy_over_time(group, styles, (380, 280), direct_labels=False),
        "accuracy_numbers": figures.accuracy_numbers(group),
        "task_charts": figures.task_charts(group, styles),
        "matrices": figures.accuracy_matrices(group),
        "told": group.supervision == "boundaries" or group.scenario == "task",
        "drift": figures.drift_figures(group, styles),
        "experts": figures.expert_figures(group),
        "generation": generation_figures(group),
        "term_charts": figures.term_charts(group, styles),
        "labels": [entry.label for entry in group.entries],
        "settings": _settings(group),
    }


def _cell(row: Row, column: Column) -> TableCell:
    value: Statistic | None = row[column.quantity]
    if value is None:
        return TableCell(words.MISSING)
    spread = column.spread(value.sd) if column.spread and value.sd is not None else ""
    note = "" if value.seeds == row["seeds_finished"] else f"{value.seeds} of {row['seeds_finished']} seeds"
    return TableCell(column.form(value.mean), spread, note)


def _seeds(row: Row) -> str:
    finished, planned = row["seeds_finished"], row["seeds_planned"]
    return str(finished) if finished == planned else f"{finished} of {planned} seeds finished"


def _notes(group: Group) -> list[str]:
    """What a reader must know before comparing the rows of a group."""
    notes = []
    missing = {"lower": "naive (the lower bound)", "upper": "joint (the upper bound)"}
    for entry in group.entries:
        missing.pop(entry.bound or "", None)
    if missing:
        names = words.listing(list(missing.values()))
        notes.append(f"There is no run of {names} here, so these numbers cannot be placed between the bounds.")
    differing = differing_stream_options(group)
    if differing:
        notes.append(f"The streams of these runs differ in {words.listing(differing)}; see the settings.")
    memories = list(dict.fromkeys(e.run.config.memory for e in group.entries if e.bound is None))
    if len(memories) > 1:
        notes.append(f"These methods may store different amounts ({words.listing(memories)}): compare with care.")
    return notes


def _settings(group: Group) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Sections of settings: a name and, for each entry of the group, its value as text."""
    runs = [entry.run for entry in group.entries]
    sections = [
        ("Run", [_run_settings(run) for run in runs]),
        ("Stream", [dict(run.config.stream) for run in runs]),
        ("Learner", [dict(run.config.learner) for run in runs]),
        ("Environment", [_environment(run) for run in runs]),
    ]
    tables = []
    for heading, options in sections:
        names = dict.fromkeys(name for values in options for name in values)
        rows = [(name, [words.setting(values.get(name)) for values in options]) for name in names]
        if rows:
            tables.append((heading, rows))
    return tables


def _run_settings(run: Run) -> dict[str, object]:
    config = run.config
    return {
        "method": config.method,
        "memory": config.memory,
        "seeds": [seed.seed for seed in run.seeds],
        "evaluated on": config.evaluated_on,
        "folder": run.folder.name,
    }


def _environment(run: Run) -> dict[str, object]:
    """What the seeds ran on; a value in which they differ is listed for each of them."""
    seeds = [seed for seed in run.seeds if seed.environment]
    merged: dict[str, object] = {}
    for name in dict.fromkeys(name for seed in seeds for name in seed.environment if name != "seed"):
        values = {seed.seed: words.setting(seed.environment.get(name)) for seed in seeds}
        same = len(set(values.values())) == 1
        merged[name] = next(iter(values.values())) if same else {f"seed {key}:": text for key, text in values.items()}
    return merged
