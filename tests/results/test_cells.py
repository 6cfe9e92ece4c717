"""Cells: from a run to a file and back."""

import json

import pytest

from hvcl.core.errors import RunError
from hvcl.results import (
    Cell,
    cell_of,
    cell_path,
    check,
    html_table,
    load_cells,
    markdown_table,
    method_table,
    overview,
    save_cell,
)
from hvcl.runs import RunConfig, RunFolder
from hvcl.runs.seed import run_seed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of two seeds, and its results."""
    folder = tmp_path_factory.mktemp("run") / "naive"
    config = RunConfig.make("split-digits", "naive", (1, 2), {"scenario": "domain", "epochs": 1}, {"hidden": (8,)})
    names = [task.name for task in config.make_stream(1).tasks]
    RunFolder(folder).prepare(config, {"memory": "none", "task_names": names}, resume=False, force=False)
    return folder, [run_seed(RunFolder(folder), seed) for seed in (1, 2)]


RESULT = {"seed": 1, "average_accuracy": 0.5, "forgetting": 0.1, "seconds": 1.0}


def made_up(**changes):
    results = [{"seed": s, "average_accuracy": a, "forgetting": 0.1 * s, "seconds": 2.0 * s} for s, a in ((1, 0.5), (2, 0.7))]
    return Cell(
        {
            "benchmark": "split-mnist",
            "scenario": "domain",
            "supervision": "boundaries",
            "memory": "none",
            "method": "hvcl",
            "results": results,
            "stream": {"epochs": 4},
            "learner": {},
        }
        | changes
    )


def test_a_cell_holds_what_the_run_found_and_how(run, tmp_path):
    folder, results = run
    cell = cell_of(folder, results, "quick")
    path = save_cell(cell, tmp_path)
    assert path == tmp_path / "split-digits" / "domain-naive-quick.json"
    (loaded,) = load_cells(tmp_path)
    assert loaded.document == json.loads(json.dumps(cell.document))
    assert loaded.accuracies == [result["average_accuracy"] for result in results]
    assert loaded.seeds == [1, 2]
    assert loaded.document["stream"]["epochs"] == 1
    assert loaded.document["learner"]["hidden"] == [8]
    assert "commit" in loaded.document["environment"]
    assert all("layers" not in result for result in loaded.document["results"])


def test_a_sample_that_is_run_again_gives_the_committed_numbers(run):
    folder, results = run
    cell = cell_of(folder, results)
    found = list(check([cell], sample=5, seed=0))
    assert sorted(c.seed for c in found) == [1, 2]
    assert all(c.difference == 0 for c in found)
    wrong = Cell(cell.document | {"results": [results[0] | {"average_accuracy": 0.123}]})
    (one,) = check([wrong], sample=5, seed=0)
    assert one.found == results[0]["average_accuracy"]
    assert one.difference > 0.1


def test_what_took_too_long_is_not_run_again(run):
    folder, results = run
    slow = [results[0] | {"seconds": 1e6}, results[1]]
    found = list(check([cell_of(folder, slow)], sample=5, seed=0, most_seconds=1000.0))
    assert [c.seed for c in found] == [2]


def test_names_tell_cells_apart():
    names = {
        made_up().name,
        made_up(supervision="task-free").name,
        made_up(budget="quick").name,
        made_up(scenario="class").name,
        made_up(method="naive").name,
    }
    assert names == {
        "split-mnist-domain-hvcl",
        "split-mnist-domain-task-free-hvcl",
        "split-mnist-domain-hvcl-quick",
        "split-mnist-class-hvcl",
        "split-mnist-domain-naive",
    }


@pytest.mark.parametrize("content", ["{}", "[]", '{"results": []}', "not json", '{"results": [{"seed": 1}]}'])
def test_a_file_that_is_no_cell_is_named(content, tmp_path):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(RunError, match=r"bad\.json"):
        load_cells(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(RunError, match="nowhere"):
        load_cells(tmp_path / "nowhere")


def test_cells_lie_under_their_benchmark_or_in_the_folder_itself_and_nowhere_else(tmp_path):
    (tmp_path / "split-mnist-domain-hvcl.json").write_text(json.dumps(made_up(memory="old").document))
    (tmp_path / "flat.json").write_text(json.dumps(made_up(method="ewc").document))
    assert save_cell(made_up(), tmp_path) == cell_path(made_up(), tmp_path) == tmp_path / "split-mnist" / "domain-hvcl.json"
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "other.json").write_text("{}")
    save_cell(made_up(method="si"), tmp_path / "generative")
    assert [(cell.method, cell.memory) for cell in load_cells(tmp_path)] == [("ewc", "none"), ("hvcl", "none")]


def test_the_papers_figure_stands_beside_ours_of_the_same_scenario_only(tmp_path):
    figure = {"accuracy": 85.48, "deviation": 5.36, "supervision": "boundaries", "memory": "none"}
    (tmp_path / "paper.json").write_text(json.dumps({"figures": {"split-mnist": {"task": {"ewc": figure}}}}))
    cells = [made_up(method="ewc", scenario=scenario) for scenario in ("domain", "class", "task")]
    cells += [made_up(method="si", scenario="task"), made_up(method="ewc", scenario="task", benchmark="split-digits")]
    for cell in cells:
        save_cell(cell, tmp_path)
    loaded = load_cells(tmp_path)
    assert {cell.name: str(cell.paper) for cell in loaded if cell.paper} == {"split-mnist-task-ewc": "85.48 ± 5.36"}
    assert markdown_table(loaded).count("85.48") == method_table(loaded).count("85.48") == html_table(loaded).count("85.48") == 1


def test_markdown_has_mean_deviation_paper_and_seeds(tmp_path):
    figure = {"accuracy": 97.5, "deviation": 0.33, "supervision": None, "memory": None}
    (tmp_path / "paper.json").write_text(json.dumps({"figures": {"split-mnist": {"domain": {"hvcl": figure}}}}))
    save_cell(made_up(), tmp_path)
    save_cell(made_up(method="hvcl-paper"), tmp_path)
    text = markdown_table(load_cells(tmp_path))
    assert "**split-mnist, Domain-IL, boundaries**" in text
    # mean of 50 and 70; sample deviation of two numbers 20 apart is 20 / sqrt(2)
    assert "| hvcl | none | 4 | 60.00 ± 14.14 | 15.0 | 97.50 ± 0.33 | 3 | 2 |" in text
    assert "| hvcl-paper | none | 4 | 60.00 ± 14.14 | 15.0 | 97.50 ± 0.33 | 3 | 2 |" in text
    assert "97.50" not in markdown_table([made_up()]), "without the paper's file its figures are not known"


def test_only_what_may_be_compared_stands_in_one_table_and_the_best_is_first():
    cells = [
        made_up(budget="standard"),
        made_up(budget="standard", method="ewc", results=[RESULT | {"average_accuracy": 0.8}]),
        made_up(budget="standard", scenario="class"),
        made_up(budget="quick"),
        made_up(supervision="task-free"),
    ]
    text = markdown_table(cells)
    titles = [line for line in text.splitlines() if line.startswith("**")]
    assert titles == [
        "**split-mnist, Domain-IL, boundaries, budget quick**",
        "**split-mnist, Domain-IL, boundaries, budget standard**",
        "**split-mnist, Domain-IL, task-free**",
        "**split-mnist, Class-IL, boundaries, budget standard**",
    ]
    standard = text.split("**")[4]
    assert standard.index("| ewc | none | 4 | 80.00 |") < standard.index("| hvcl |")


def test_one_pass_is_the_same_with_every_budget():
    exact = made_up(method="exact", results=[RESULT | {"average_accuracy": 0.99}])
    text = markdown_table([made_up(budget="quick"), made_up(budget="standard"), exact])
    assert text.count("| exact |") == 2
    assert text.count("| hvcl |") == 2


def test_the_overview_has_a_row_a_method_and_a_column_a_setting():
    cells = [
        made_up(budget="standard"),
        made_up(budget="standard", benchmark="split-digits", scenario="class", results=[RESULT]),
        made_up(budget="standard", method="joint", memory="all examples", results=[RESULT | {"average_accuracy": 0.9}]),
        made_up(budget="standard", method="naive", results=[RESULT | {"average_accuracy": 0.95}]),
        made_up(budget="quick", method="ewc"),
        made_up(method="exact", results=[RESULT | {"average_accuracy": 0.99}]),
        made_up(supervision="task-free", method="er"),
    ]
    head = ["| method | training | memory | split-digits Class-IL | split-mnist Domain-IL |", "|---|---|---|---|---|"]
    assert overview(cells, "boundaries").splitlines() == [
        *head,
        "| naive | boundaries | none |  | 95.00 |",
        "| joint | boundaries | all examples |  | 90.00 |",
        "| hvcl | boundaries | none | 50.00 | 60.00 ± 14.14 |",
        "| exact | boundaries | none |  | 99.00 |",
        "| *seeds* |  |  | 1 | 1 or 2 |",
    ]
    both = [*cells, made_up(supervision="task-free", method="exact", results=[RESULT | {"average_accuracy": 0.98}])]
    assert [line for line in overview(both).splitlines() if "exact" in line] == [
        "| exact | task-free | none |  | 98.00 |",
        "| exact | boundaries | none |  | 99.00 |",
    ]
    assert "| er | task-free | none | 60.00 ± 14.14 |" in overview(cells, "task-free")
    pieces = made_up(method="exact", benchmark="split-digits", scenario="class", memory="pieces", results=[RESULT])
    assert "| exact | boundaries | pieces (split-digits); none (split-mnist) | 50.00 | 99.00 |" in overview([*cells, pieces])


def test_a_methods_table_names_every_setting():
    assert method_table([]) == ""
    text = method_table([made_up(scenario="task", budget="quick"), made_up()])
    first, second = text.splitlines()[2:]
    assert first.startswith("| split-mnist | Domain-IL | boundaries |  | none | 4 | 60.00 ± 14.14 |")
    assert second.startswith("| split-mnist | Task-IL | boundaries | quick | none |")


def test_html_escapes_and_holds_the_same_numbers():
    page = html_table([made_up(memory="<script>")], title="a & b")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &amp; b" in page
    assert "60.00 ± 14.14" in page
