"""The part of the page that shows runs of reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hvcl.report import words
from hvcl.report.charts import series_style
from hvcl.report.part import Part, template
from hvcl.report.reinforcement import figures
from hvcl.report.reinforcement.groups import Group, group_runs
from hvcl.report.reinforcement.run import ReinforcementRun
from hvcl.report.reinforcement.table import rows


class Episode(Protocol):
    """Pictures of one episode of an agent in one task."""

    @property
    def task(self) -> str:
        """The task's name."""

    @property
    def pictures(self) -> Sequence[str]:
        """Data URIs, in the order of time."""

    @property
    def reason(self) -> str:
        """Why there are no pictures, if there are none."""


def reinforcement_part(runs: Sequence[ReinforcementRun], level: int, episodes: Sequence[Sequence[Episode]]) -> Part:
    """The runs of reinforcement learning on the page.

    Args:
        runs: At least one run.
        level: The level of the part's own headings.
        episodes: For each run, an episode in each of its tasks; or empty, and there are no pictures.
    """
    groups = group_runs(runs)
    labels = dict.fromkeys(entry.label for group in groups for entry in group.entries)
    styles = {label: series_style(number) for number, label in enumerate(labels)}
    shown = {run.folder: of_run for run, of_run in zip(runs, episodes, strict=False)}
    views = [_view(group, styles, f"chain-{number}", shown) for number, group in enumerate(groups, start=1)]
    sequences = tuple(dict.fromkeys(group.sequence for group in groups))
    return Part(
        id="reinforcement",
        heading="Reinforcement learning",
        title=f"Continual reinforcement learning: {words.listing(sequences)}",
        subjects=sequences,
        lead=_lead(groups),
        links=_links(views),
        content=template("reinforcement.html", level=level, groups=views),
    )


def _lead(groups: Sequence[Group]) -> str:
    if len(groups) == 1:
        return _tasks(groups[0])
    return f"{words.counted(len(groups), 'chain')} of tasks, each learned one after another."


def _tasks(group: Group) -> str:
    names = group.task_names
    return f"{words.counted(len(names), 'task')} learned one after another: {', '.join(names)}."


def _links(views: Sequence[Mapping[str, object]]) -> tuple[tuple[str, str], ...]:
    if len(views) > 1:
        return tuple((str(view["id"]), str(view["name"])) for view in views)
    (view,) = views
    sections = [
        ("results", "Results", True),
        ("time", "Over time", True),
        ("experts", "Experts", view["usage"]),
        ("frames", "Frames", view["pictures"]),
        ("settings", "Settings", True),
    ]
    return tuple((f"{view['id']}-{name}", text) for name, text, there in sections if there)


def _view(group: Group, styles: figures.Styles, name: str, episodes: Mapping[Path, Sequence[Episode]]) -> dict[str, object]:
    entries = group.entries
    return {
        "id": name,
        "name": group.sequence,
        "lead": _tasks(group),
        "tasks": group.task_names,
        "rows": rows(group),
        "legend": [(entry, styles[entry.label]) for entry in entries],
        "reward": [figures.reward_chart(group, styles, size) for size in (figures.WIDE, figures.NARROW)],
        "performance": [figures.performance_chart(group, styles, size) for size in ((960, 260), figures.NARROW)],
        "returns": figures.return_charts(group, styles),
        "usage": [(entry.label, tables) for entry in entries if (tables := figures.usage_tables(entry))],
        "pictures": [(entry.label, episodes[entry.run.folder]) for entry in entries if entry.run.folder in episodes],
        "settings": [
            (entry.label, sorted((name, words.setting(value)) for name, value in entry.run.settings.items())) for entry in entries
        ],
    }
