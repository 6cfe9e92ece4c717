from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hvcl.commands.main import main
from hvcl.core.errors import RunError
from hvcl.report import find_runs, load_run, render, write_report

WriteRun = Callable[..., Path]
MATRIX = [[0.9, 0.5], [0.7, 0.8]]


class Elements(HTMLParser):
    """All elements of a page with their attributes, and its text without style sheet and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] not in {"style", "script"}:
            self.text += f" {data}"


def page_of(folder: Path) -> str:
    return render([load_run(run) for run in find_runs([folder])])


def words_of(page: str) -> str:
    return " ".join(Elements(page).text.split())


def test_the_page_needs_nothing_but_itself(realistic_runs: Path) -> None:
    page = page_of(realistic_runs)

    assert not re.search(r"https?:|//[\w.]+\.\w|@import|url\(", page)
    for tag, attributes in Elements(page).elements:
        assert "src" not in attributes, tag
        assert tag not in {"iframe", "object", "embed", "img", "base"}
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", "data:")), tag


def test_links_within_the_page_lead_somewhere(realistic_runs: Path) -> None:
    elements = Elements(page_of(realistic_runs)).elements
    names = [attributes["id"] for _, attributes in elements if attributes.get("id")]
    targets = {attributes["href"] for tag, attributes in elements if tag == "a"}

    assert len(names) == len(set(names))
    assert targets <= {f"#{name}" for name in names}
    assert len(targets) == 6


def test_scenario_supervision_and_memory_stand_beside_the_numbers(realistic_runs: Path) -> None:
    text = words_of(page_of(realistic_runs))

    assert text.count("Domain-IL · boundaries · test data") >= 5
    for row in ("joint upper bound all examples", "naive lower bound none", "hvcl none"):
        assert row in text
    assert "joint memory: all examples" in text
    assert "hvcl no memory" in text


def test_only_what_is_at_hand_is_explained(realistic_runs: Path, write_run: WriteRun) -> None:
    assert "tasks share one output" in words_of(page_of(realistic_runs))
    assert "all classes of all tasks" not in words_of(page_of(realistic_runs))
    page = words_of(page_of(write_run("run", {1: MATRIX}, scenario="class", supervision="task-free")))
    assert "all classes of all tasks" in page
    assert "batches and labels and nothing else" in page
    assert "no run of naive (the lower bound) and joint (the upper bound)" in page


def test_validation_figures_say_so(realistic_runs: Path, write_run: WriteRun) -> None:
    assert "Not test results." not in page_of(realistic_runs)
    page = words_of(page_of(write_run("run", {1: MATRIX}, evaluated_on="validation")))
    assert "Not test results. All figures were measured on validation data." in page
    assert "Domain-IL · boundaries · validation data" in page


def test_one_seed_has_no_standard_deviation(write_run: WriteRun) -> None:
    page = page_of(write_run("run", {1: MATRIX}))

    assert "75.00" in page
    assert "±" not in page


def test_unfinished_seeds_are_counted(write_run: WriteRun) -> None:
    assert "2 of 3 seeds finished" in page_of(write_run("run", {1: MATRIX, 2: None, 3: MATRIX}))


def test_a_run_that_has_only_begun_is_a_page_too(write_run: WriteRun) -> None:
    page = page_of(write_run("run", {1: None}))

    assert "0 of 1 seeds finished" in page
    assert "unfinished" in page


def test_a_stream_of_one_task_is_a_page_too(write_run: WriteRun) -> None:
    assert "87.50" in page_of(write_run("run", {1: [[0.875]]}, task_names=["only"]))


def test_missing_numbers_are_dashes(write_run: WriteRun, outcome: Callable[..., dict[str, object]]) -> None:
    layer = {
        "marginal_entropy": None,
        "conditional_entropy": None,
        "information": None,
        "usage": [[None, None], [0.5, 0.5]],
        "routed": [[None, None], [1.0, 0.0]],
    }
    result = outcome(MATRIX, nll=None, layers={"body": layer}, accuracy_matrix=[[0.9, None], [None, 0.8]])
    page = page_of(write_run("run", {1: result}))

    assert not re.search(r"\b(nan|NaN|inf|None)\b", words_of(page))


def test_layers_with_one_expert_are_only_named(write_run: WriteRun, outcome: Callable[..., dict[str, object]]) -> None:
    single = {"marginal_entropy": 0.0, "conditional_entropy": 0.0, "information": 0.0, "usage": [[1.0], [1.0]]}
    layer = {**single, "usage": [[0.25, 0.75], [0.5, 0.5]], "routed": [[0.0, 1.0], [1.0, 0.0]]}
    layers = {"body": layer, "head": {**single, "routed": [[1.0], [1.0]]}}
    text = words_of(page_of(write_run("run", {1: outcome(MATRIX, layers=layers)})))

    assert "nothing to choose: head." in text
    assert "first 25 75 0 100 second 50 50 100 0" in text


EXPERTS = [
    {"expert": 0, "opened_step": 0, "opened_after": 0, "examples": 60, "labels": {"0": 60}, "stretches": [[0, 5, 60]]},
    {"expert": 1, "opened_step": 6, "opened_after": 60, "examples": 40, "labels": {"1": 40}, "stretches": [[6, 9, 40]]},
]


def test_the_drift_of_growing_learners_is_shown(
    write_run: WriteRun, outcome: Callable[..., dict[str, object]], realistic_runs: Path
) -> None:
    page = page_of(write_run("run", {1: outcome(MATRIX, experts=EXPERTS, steps=10)}, supervision="task-free"))
    elements = Elements(page).elements
    classes = [attributes.get("class") for _, attributes in elements]

    assert classes.count("strip lane") == classes.count("opening") == classes.count("bar") == 2
    descriptions = [attributes["aria-label"] for _, attributes in elements if attributes.get("role") == "img"]
    assert any("2 experts: expert 1 opened at step 0" in (text or "") for text in descriptions)
    text = words_of(page)
    assert "Expert 2 opened at step 6, after 60 examples" in text
    assert "which the learner is not told" in text
    assert ("a", {"href": "#group-1-drift"}) in elements
    assert "drift" not in str(Elements(page_of(realistic_runs)).elements), "no learner there opens experts"


def test_boundaries_and_given_tasks_are_told(write_run: WriteRun, outcome: Callable[..., dict[str, object]]) -> None:
    for number, told in enumerate(({"supervision": "boundaries"}, {"supervision": "task-free", "scenario": "task"})):
        page = page_of(write_run(f"run-{number}", {1: outcome(MATRIX, experts=EXPERTS)}, **told))
        assert "which the learner is told" in words_of(page)


def test_hostile_names_stay_text(write_run: WriteRun, outcome: Callable[..., dict[str, object]]) -> None:
    attacks = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(2)'>", "</title></style></svg><b>", "{{ 7 * 7 }}"]
    for number, attack in enumerate(attacks):
        layer = {
            "marginal_entropy": 1.0,
            "conditional_entropy": 0.5,
            "information": 0.5,
            "usage": [[0.5, 0.5], [0.5, 0.5]],
            "routed": [[0.5, 0.5], [0.5, 0.5]],
        }
        folder = write_run(
            f"run-{number}",
            {1: outcome(MATRIX, layers={attack: layer, "gate": layer}, experts=[{**EXPERTS[0], "labels": {attack: 60}}])},
            benchmark=attack,
            scenario=attack,
            supervision=attack,
            memory=attack,
            method=attack,
            task_names=[attack, "a"],
            learner={attack: attack},
            stream={attack: [attack, {attack: attack}], "blur": attack},
        )
        (folder / "seed-1" / "environment.json").write_text(json.dumps({attack: attack}))
        terms = {"kind": "terms", "step": 1, "task": 0, "terms": {attack: 1.0}}
        rows = [[0.5, 0.5], *MATRIX]
        moments = [{"kind": "evaluation", "step": 100 * after, "after": after, "accuracy": rows[after]} for after in range(3)]
        (folder / "seed-1" / "metrics.jsonl").write_text("\n".join(map(json.dumps, [terms, *moments])))

        page = Elements(render([load_run(folder)], title=attack))

        tags = [tag for tag, _ in page.elements]
        assert tags.count("script") == tags.count("style") == 1
        assert "img" not in tags
        assert "b" not in tags
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert page.text.count(attack) > 10
        assert f"{attack}: 60" in page.text


def test_the_same_runs_give_the_same_page(realistic_runs: Path) -> None:
    assert page_of(realistic_runs) == page_of(realistic_runs)


def test_a_title_may_be_given(realistic_runs: Path) -> None:
    runs = [load_run(realistic_runs / "hvcl")]

    assert "<h1>split-digits in Domain-IL</h1>" in render(runs)
    assert "<h1>My runs</h1>" in render(runs, title="My runs")


def test_environments_that_differ_are_listed_by_seed(write_run: WriteRun) -> None:
    folder = write_run("run", {1: MATRIX, 2: MATRIX})
    for seed, version in [(1, "2.4"), (2, "2.5")]:
        environment = {"torch": version, "python": "3.11.2", "seed": seed, "commit": None}
        (folder / f"seed-{seed}" / "environment.json").write_text(json.dumps(environment))
    text = words_of(page_of(folder))

    assert "torch seed 1: 2.4, seed 2: 2.5" in text
    assert "python 3.11.2 commit –" in text


def test_the_report_is_written_whole(realistic_runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "report.html"

    assert write_report([realistic_runs], output) == output
    assert output.read_text(encoding="utf-8") == page_of(realistic_runs)
    assert os.listdir(output.parent) == ["report.html"]


def test_a_failure_leaves_the_old_report(realistic_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "report.html"
    output.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunError, match=r"report\.html cannot be written: No space left"):
        write_report([realistic_runs], output)
    assert output.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_what_cannot_be_written_is_said(realistic_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is a folder"):
        write_report([realistic_runs], tmp_path)
    with pytest.raises(RunError, match="no run in"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(RunError, match="no run to report"):
        render([])


@pytest.fixture
def mixed(write_run: WriteRun, write_reinforcement_run: WriteRun, tmp_path: Path) -> Path:
    """A folder with runs of both kinds."""
    write_run("digits/hvcl", {1: MATRIX, 2: MATRIX})
    write_run("digits/naive", {1: MATRIX}, method="naive")
    write_reinforcement_run("robots", {1: [80.0, 60.0]})
    return tmp_path


def test_both_kinds_are_parts_of_one_page(mixed: Path) -> None:
    page = page_of(mixed)
    text = words_of(page)

    assert "<h1>split-digits and classic</h1>" in page
    assert "2 supervised runs and 1 of reinforcement learning." in text
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", page) == ["Supervised learning", "Reinforcement learning"]
    assert page.count("<h3>Results</h3>") == 2
    for words in ("75.00", "Domain-IL · boundaries · test data", "Returns in every task", "J above random"):
        assert words in text


def test_headings_of_a_mixed_page_skip_no_level(mixed: Path) -> None:
    levels = [int(tag[1]) for tag, _ in Elements(page_of(mixed)).elements if re.fullmatch(r"h\d", tag)]

    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_links_of_a_mixed_page_lead_somewhere(mixed: Path) -> None:
    elements = Elements(page_of(mixed)).elements
    names = [attributes["id"] for _, attributes in elements if attributes.get("id")]
    targets = {attributes["href"] for tag, attributes in elements if tag == "a"}

    assert len(names) == len(set(names))
    assert targets <= {f"#{name}" for name in names}
    assert {"#supervised", "#reinforcement", "#results", "#chain-1-time"} <= targets


def test_each_part_of_a_mixed_page_shows_what_its_own_page_shows(mixed: Path) -> None:
    def figures(page: str) -> list[str]:
        return re.findall(r"<svg class=\"chart\".*?</svg>|<td[^>]*>.*?</td>", page, re.S)

    apart = figures(page_of(mixed / "digits")) + figures(page_of(mixed / "robots"))
    assert figures(page_of(mixed)) == apart


def test_a_damaged_run_among_others_is_named(mixed: Path, tmp_path: Path) -> None:
    (mixed / "robots" / "seed-1" / "result.json").write_text("{")

    with pytest.raises(RunError, match=r"robots/seed-1/result\.json is damaged: it is not valid JSON"):
        write_report([mixed], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("command", [["report"], ["rl", "report"]])
def test_both_commands_write_the_same_page(mixed: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, str(mixed)]) == 0
    assert (mixed / "report.html").read_text() == page_of(mixed)
    assert str(mixed / "report.html") in capsys.readouterr().out


@pytest.mark.parametrize("command", [["report"], ["rl", "report"]])
def test_damage_is_one_sentence_at_the_command_line(mixed: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (mixed / "robots" / "config.json").write_text('{"sequence": "classic", "format": "rl-1"}')

    assert main([*command, str(mixed)]) == 2
    error = capsys.readouterr().err
    assert "config.json is damaged: 'task_names' is missing" in error
    assert len(error.splitlines()) == 1


def test_the_report_needs_neither_torch_nor_gymnasium() -> None:
    check = "import sys, hvcl.report; sys.exit(bool({'torch', 'numpy', 'gymnasium'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
