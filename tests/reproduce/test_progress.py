import io
from pathlib import Path

from rich.console import Console

from hvcl.reproduce.progress import Together
from hvcl.runs.engine import Job
from hvcl.runs.record import Progress


def together():
    jobs = [Job(Path("long"), 1, "long seed 1"), Job(Path("short"), 1, "short seed 1")]
    text = io.StringIO()
    return Together(jobs, {Path("long"): 3.0, Path("short"): 1.0}, Console(file=text)), text


def at(position, total=100):
    return Progress(position, total, 0, 5, "", 1.0)


def test_the_rest_is_estimated_from_the_effort_done():
    view, _ = together()
    assert view.left(10.0) is None
    view.show(0, at(50))
    assert view.done == 3.0 * 0.5 / 4.0
    assert view.left(15.0) == 25.0
    view.show(1, at(100))
    view.show(0, at(100))
    assert view.left(40.0) == 0.0


def test_in_a_log_there_is_a_line_for_each_run_that_ends():
    view, text = together()
    with view:
        view.show(1, at(99))
        assert text.getvalue() == ""
        view.show(1, at(100))
        view.show(1, at(100))
    (line,) = text.getvalue().splitlines()
    assert line.startswith("1 of 2 runs, ")
    assert line.endswith("done: short seed 1")
