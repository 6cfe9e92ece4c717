"""The part of the page that shows runs of reinforcement learning, against numbers worked out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hvcl.report import load_run, render
from hvcl.report.reinforcement import over, transfer_of
from hvcl.report.reinforcement.groups import group_runs
from hvcl.report.reinforcement.table import rows

WriteRun = Callable[..., Path]
Outcome = Callable[..., dict[str, object]]


class Text(HTMLParser):
    """The text of a page without style sheet and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tag, self.text = "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag

    def handle_data(self, data: str) -> None:
        self.text += "" if self.tag in {"style", "script"} else f" {data}"


def words_of(page: str) -> str:
    return " ".join(Text(page).text.split())


def test_values_over_seeds() -> None:
    assert over([1.0, 3.0]) == "2.000 ± 1.414"
    assert over([1.0, None]) == "1.000"
    assert over([None]) == over([]) == "–"
    # From scratch 0.5 and 0.25: (0.75 - 0.5) / 0.5 and (0.25 - 0.25) / 0.75.
    assert transfer_of([[0.75, 0.25], None], [[0.5, 0.25]], 2) == "0.25"
    assert transfer_of([[0.75, 0.25]], []) == "–"


def test_the_rows_of_the_table(write_reinforcement_run: WriteRun, reinforcement_outcome: Outcome) -> None:
    lost = reinforcement_outcome([40.0, 50.0], cumulative_reward=None, forgetting=-0.5, learning_areas=[0.75, 0.25])
    folders = [
        write_reinforcement_run("hvcl", {1: reinforcement_outcome([80.0, 60.0], forgetting=-0.5), 2: lost}),
        write_reinforcement_run("reset", {1: [10.0, 20.0], 2: None}, method="reset"),
    ]
    (group,) = group_runs([load_run(folder) for folder in folders])
    ours, scratch = rows(group)

    assert ours.scores[0] == ("1.500", "1 of 2 seeds")
    assert ours.scores[3] == ("−0.500 ± 0.000", "")
    assert ours.scores[4] == ("0.125 ± 0.177", ""), "0 and 0.25 against what was learned from scratch"
    assert ours.returns == ("30 ± 14", "55 ± 7")
    assert (ours.seeds, ours.finished) == ("2", True)
    assert scratch.scores[4] == ("–", "")
    assert (scratch.seeds, scratch.finished) == ("1 of 2 seeds finished", False)


def test_the_page_of_one_chain(write_reinforcement_run: WriteRun) -> None:
    page = render([load_run(write_reinforcement_run("run", {1: [80.0, 60.0]}))])
    text = words_of(page)

    assert "<h1>Continual reinforcement learning: classic</h1>" in page
    assert "<h2>Results</h2>" in page
    assert "2 tasks learned one after another: Reach, Swing." in text
    assert "task E1 E2 E3 Reach 75 25 Swing 10 40 50" in text
    assert "Supervised" not in text
    assert 'aria-label="Returns in Swing over time"' in page
    assert not re.search(r"\b(nan|NaN|inf|None)\b", text)


def test_several_chains_are_a_group_each(write_reinforcement_run: WriteRun) -> None:
    folders = [
        write_reinforcement_run("a", {1: [80.0, 60.0]}),
        write_reinforcement_run("b", {1: [80.0, 60.0]}, sequence="own", task_names=["One", "Two"]),
        write_reinforcement_run("c/a", {1: [80.0, 60.0]}),
    ]
    page = render([load_run(folder) for folder in folders])
    text = words_of(page)

    assert "<h1>Continual reinforcement learning: classic and own</h1>" in page
    assert re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', page) == [("chain-1", "classic"), ("chain-2", "own")]
    assert "hvcl (a) #1" in text
    assert "hvcl (a) #2" in text
    assert text.count("J sums, over the tasks") == 1


def test_a_run_that_has_only_begun_is_a_page_too(write_reinforcement_run: WriteRun) -> None:
    text = words_of(render([load_run(write_reinforcement_run("run", {1: None}))]))

    assert "0 of 1 seeds finished" in text
    assert "hvcl unfinished" in text
    assert "There is none yet: no run has been evaluated" in text


def test_performances_need_references_of_any_run_of_the_chain(write_reinforcement_run: WriteRun) -> None:
    begun = write_reinforcement_run("begun", {1: [80.0, 60.0]}, method="ewc")
    (begun / "seed-1" / "result.json").unlink()
    finished = write_reinforcement_run("finished", {1: [80.0, 60.0]})
    chart = 'aria-label="Sum of performances over time"'

    assert chart not in render([load_run(begun)])
    assert chart in render([load_run(begun), load_run(finished)])


@dataclass(frozen=True)
class Shown:
    task: str
    pictures: list[str] = field(default_factory=list)
    reason: str = ""


def test_episodes_are_shown_or_why_not(write_reinforcement_run: WriteRun) -> None:
    run = load_run(write_reinforcement_run("run", {1: [80.0, 60.0]}))
    page = render([run], episodes=lambda folder: [Shown("Reach", ["data:image/png;base64,AAAA"]), Shown("Swing", [], "no <GL>")])

    assert '<img src="data:image/png;base64,AAAA" width="150" alt="hvcl in Reach, picture 1">' in page
    assert "This task cannot be rendered here (no &lt;GL&gt;)." in page
    assert "Frames" not in words_of(render([run]))


@pytest.mark.parametrize("attack", ["<script>alert(1)</script>", "\"><img src=x onerror='alert(2)'>", "{{ 7 * 7 }}"])
def test_hostile_names_stay_text(write_reinforcement_run: WriteRun, attack: str) -> None:
    folder = write_reinforcement_run(
        "run", {1: [80.0, 60.0]}, method=attack, sequence=attack, task_names=[attack, "a"], agent={attack: attack}
    )
    line = json.loads((folder / "seed-1" / "metrics.jsonl").read_text().splitlines()[-1]) | {"usage": [{attack: [1.0]}, {}]}
    (folder / "seed-1" / "metrics.jsonl").write_text(json.dumps(line))
    page = render([load_run(folder)])

    assert page.count("<script") == 1
    assert "<img" not in page
    assert Text(page).text.count(attack) > 5
