"""The part of the page that shows supervised runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvcl.report import words
from hvcl.report.part import Part, template
from hvcl.report.supervised import accuracy
from hvcl.report.supervised.columns import COLUMNS, cell, seeds
from hvcl.report.supervised.drift import drift_figures
from hvcl.report.supervised.experts import expert_figures
from hvcl.report.supervised.figures import Styles, line_styles, short_task_names
from hvcl.report.supervised.generation import generation_figures
from hvcl.report.supervised.groups import Group, differing_stream_options, group_rows, group_runs, standings
from hvcl.report.supervised.run import SupervisedRun
from hvcl.report.supervised.terms import term_charts


def supervised_part(runs: Sequence[SupervisedRun], level: int) -> Part:
    """The supervised runs on the page; `level` is that of the part's own headings."""
    groups = group_runs(runs)
    styles = line_styles(groups)
    views = [_view(group, styles, number) for number, group in enumerate(groups, start=1)]
    content = template(
        "supervised.html",
        level=level,
        columns=COLUMNS,
        scenarios=[words.SCENARIOS[name] for name in words.SCENARIOS if name in {group.scenario for group in groups}],
        supervisions=[words.SUPERVISIONS[name] for name in words.SUPERVISIONS if name in {group.supervision for group in groups}],
        bounds={entry.bound for group in groups for entry in group.entries},
        several_seeds=any(len(run.seeds) > 1 for run in runs),
        validation=_validation(groups),
        groups=views,
        memory_words=words.memory_words,
    )
    subjects = tuple(dict.fromkeys(group.benchmark for group in groups))
    return Part("supervised", "Supervised learning", _title(groups), subjects, _lead(groups), _links(views), content)


def _links(views: Sequence[Mapping[str, object]]) -> tuple[tuple[str, str], ...]:
    links = [("results", "Results")]
    if len(views) > 1:
        return (*links, *((str(view["id"]), str(view["name"])) for view in views))
    (view,) = views
    sections = [
        ("time", "Accuracy over time", True),
        ("matrices", "Every task after every task", view["matrices"]),
        ("drift", "Drift", view["drift"]),
        ("experts", "Experts", view["experts"]),
        ("generation", "Generators", view["generation"]),
        ("terms", "Loss terms", view["term_charts"]),
        ("settings", "Settings", True),
    ]
    return (*links, *((f"{view['id']}-{name}", text) for name, text, there in sections if there))


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


def _view(group: Group, styles: Styles, number: int) -> dict[str, object]:
    rows = group_rows(group)
    return {
        "id": f"group-{number}",
        "name": _name(group),
        "benchmark": group.benchmark,
        "scenario": words.scenario_name(group.scenario),
        "supervision": group.supervision,
        "evaluated_on": group.evaluated_on,
        "task_names": group.task_names,
        "short_names": short_task_names(group.task_names),
        "rows": [(row, [cell(row, column) for column in COLUMNS], seeds(row)) for row in rows],
        "overview": accuracy.overview(group, styles),
        "standings": standings(rows),
        "notes": _notes(group),
        "legend": [(entry, styles[entry.label]) for entry in group.entries],
        "wide_chart": accuracy.accuracy_over_time(group, styles, (960, 340), direct_labels=True),
        "narrow_chart": accuracy.accuracy_over_time(group, styles, (380, 280), direct_labels=False),
        "accuracy_numbers": accuracy.accuracy_numbers(group),
        "task_charts": accuracy.task_charts(group, styles),
        "matrices": accuracy.accuracy_matrices(group),
        "boundaries_known": group.supervision == "boundaries" or group.scenario == "task",
        "drift": drift_figures(group, styles),
        "experts": expert_figures(group),
        "generation": generation_figures(group),
        "term_charts": term_charts(group, styles),
        "labels": [entry.label for entry in group.entries],
        "settings": _settings(group),
    }


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


def _run_settings(run: SupervisedRun) -> dict[str, object]:
    config = run.config
    return {
        "method": config.method,
        "memory": config.memory,
        "seeds": [seed.seed for seed in run.seeds],
        "evaluated on": config.evaluated_on,
        "folder": run.folder.name,
    }


def _environment(run: SupervisedRun) -> dict[str, object]:
    """What the seeds ran on; a value in which they differ is listed for each of them."""
    seeds = [seed for seed in run.seeds if seed.environment]
    merged: dict[str, object] = {}
    for name in dict.fromkeys(name for seed in seeds for name in seed.environment if name != "seed"):
        values = {seed.seed: words.setting(seed.environment.get(name)) for seed in seeds}
        same = len(set(values.values())) == 1
        merged[name] = next(iter(values.values())) if same else {f"seed {key}:": text for key, text in values.items()}
    return merged
