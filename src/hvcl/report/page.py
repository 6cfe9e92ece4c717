"""The HTML page: its parts, one for each kind of run, and writing it to a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.core.files import write_atomically
from hvcl.report import words
from hvcl.report.folders import find_runs
from hvcl.report.load import Run, load_run
from hvcl.report.part import asset, template
from hvcl.report.reinforcement import Episode, ReinforcementRun, reinforcement_part
from hvcl.report.supervised import SupervisedRun, supervised_part

Episodes = Callable[[Path], Sequence[Episode]]
"""Shows, for the run folder of a reinforcement-learning agent, one episode in each of its tasks."""


def render(runs: Sequence[Run], title: str | None = None, episodes: Episodes | None = None) -> str:
    """The report as one HTML page that needs nothing but itself. The same runs always give the same page.

    Args:
        runs: At least one run, or a `RunError` is raised. Supervised runs and those of reinforcement learning are a part of
            the page each, with headings if there are both.
        title: The heading; by default what was run.
        episodes: Where pictures of what agents do come from (`hvcl.runs.frames.frames_of`); by default there are none.
    """
    if not runs:
        raise RunError("there is no run to report on")
    supervised = [run for run in runs if isinstance(run, SupervisedRun)]
    reinforcement = [run for run in runs if isinstance(run, ReinforcementRun)]
    level = 3 if supervised and reinforcement else 2
    parts = []
    if supervised:
        parts.append(supervised_part(supervised, level))
    if reinforcement:
        parts.append(
            reinforcement_part(reinforcement, level, [episodes(run.folder) for run in reinforcement] if episodes else [])
        )
    if len(parts) == 1:
        subject, lead = parts[0].title, parts[0].lead
    else:
        subject = words.listing(list(dict.fromkeys(name for part in parts for name in part.subjects)))
        lead = f"{words.counted(len(supervised), 'supervised run')} and {len(reinforcement)} of reinforcement learning."
    return template("page.html", title=title or subject, lead=lead, parts=parts, style=asset("page.css"), script=asset("page.js"))


def write_report(folders: Sequence[Path], output: Path, title: str | None = None, episodes: Episodes | None = None) -> Path:
    """Render the runs in `folders`, of either kind, to the file `output`, which appears whole or not at all; returns its path.

    A folder that is not a run itself stands for the runs in it. No run at all, a damaged one, or a place that cannot be
    written to raises a `RunError`. `title` and `episodes` are those of `render`.
    """
    output = Path(output)
    page = render([load_run(folder) for folder in find_runs(folders)], title, episodes)
    if output.is_dir():
        raise RunError(f"{output} is a folder: give the name of the HTML file to write, such as {output / 'report.html'}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, page)
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror}") from None
    return output
