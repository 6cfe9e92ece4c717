import json

import pytest

from hvcl.core.errors import InputError, InterruptedRun, RunError
from hvcl.runs import RunConfig, RunFolder
from hvcl.runs.seed import run_seed

FACTS = {"memory": "none", "task_names": ["a"]}


def make(method="naive", seeds=(1,), stream=None, learner=None):
    return RunConfig.make(
        "split-digits",
        method,
        seeds,
        {"epochs": 1, "batch_size": 64} | (stream or {}),
        {"hidden": (8,)} if learner is None else learner,
    )


def contents(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_configuration_round_trip(tmp_path):
    config = make(
        "hvcl", (3, 1), {"scenario": "class", "validation": 0.1}, {"experts": 3, "kernel_width": None, "hidden": (8, 9)}
    )
    folder = RunFolder(tmp_path / "run")
    folder.prepare(config, FACTS, resume=False, force=False)
    assert folder.config() == config
    document = json.loads(folder.config_path.read_text())
    assert document["scenario"] == "class"
    assert document["supervision"] == "boundaries"
    assert document["evaluated_on"] == "validation"
    assert document["memory"] == "none"


def test_benchmark_defaults_are_taken_where_they_fit():
    assert make("naive", learner={}).learner.hidden == (64, 64)
    assert make("hvcl", learner={}).learner.beta_expert == 0.01  # of split-digits
    assert not hasattr(make("naive", learner={}).learner, "beta_expert")


def test_the_same_run_is_refused_without_resume_and_left_alone(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(make(), FACTS, resume=False, force=False)
    run_seed(folder, 1)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="--resume"):
        folder.prepare(make(), FACTS, resume=False, force=False)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"method": "joint"}, "method naive, not joint"),
        ({"stream": {"epochs": 2}}, "epochs 1, not 2"),
        ({"learner": {"hidden": (9,)}}, "hidden"),
    ],
)
def test_another_run_is_refused_and_left_alone_even_with_resume(tmp_path, other, word):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(make(), FACTS, resume=False, force=False)
    before = contents(tmp_path)
    for resume in (False, True):
        with pytest.raises(RunError, match=word):
            folder.prepare(make(**other), FACTS, resume=resume, force=False)
    assert contents(tmp_path) == before


def test_force_replaces_the_run_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(make(), FACTS, resume=False, force=False)
    run_seed(folder, 1)
    (folder.path / "notes.txt").write_text("mine")
    folder.prepare(make(method="joint"), FACTS, resume=False, force=True)
    assert folder.config().method == "joint"
    assert folder.seed(1).result() is None
    assert (folder.path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_with_foreign_files_is_never_used(tmp_path, force):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="not empty"):
        RunFolder(tmp_path).prepare(make(), FACTS, resume=False, force=force)
    assert contents(tmp_path) == {(tmp_path / "thesis.tex").relative_to(tmp_path): b"precious"}


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        RunFolder(tmp_path / "run").prepare(make(), FACTS, resume=False, force=True)


def test_more_seeds_can_be_added_on_resume(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(make(), FACTS, resume=False, force=False)
    first = run_seed(folder, 1)
    folder.prepare(make(seeds=(1, 2)), FACTS, resume=True, force=False)
    assert run_seed(folder, 1) == first
    assert folder.config().seeds == (1, 2)


@pytest.mark.parametrize("seeds", [(), (1, 1), (-1,)])
def test_bad_seeds(seeds):
    with pytest.raises(InputError, match="seeds"):
        make(seeds=seeds)


def test_stopping_saves_and_resuming_ends_the_same(tmp_path):
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    for folder in (whole, broken):
        folder.prepare(make("hvcl"), FACTS, resume=False, force=False)
    result = run_seed(whole, 1)
    for _ in range(3):
        asked = iter([False] * 4 + [True] * 100)
        with pytest.raises(InterruptedRun):
            run_seed(broken, 1, stop=lambda asked=asked: next(asked))
    resumed = run_seed(broken, 1)
    assert resumed["accuracy_matrix"] == result["accuracy_matrix"]
    assert whole.seed(1).metrics_path.read_bytes() == broken.seed(1).metrics_path.read_bytes()


def test_a_damaged_checkpoint_is_named_and_nothing_is_overwritten(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(make(), FACTS, resume=False, force=False)
    with pytest.raises(InterruptedRun):
        run_seed(folder, 1, stop=lambda: True)
    tensors = next(folder.seed(1).path.glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-10])
    before = contents(tmp_path)
    with pytest.raises(RunError, match=tensors.name):
        run_seed(folder, 1)
    assert contents(tmp_path) == before


def test_a_log_shorter_than_its_checkpoint_is_noticed(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(make(), FACTS, resume=False, force=False)
    with pytest.raises(InterruptedRun):
        run_seed(folder, 1, stop=lambda: True)
    folder.seed(1).metrics_path.write_bytes(b"")
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        run_seed(folder, 1)


def test_metrics_hold_the_terms_averaged_and_every_evaluation(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(
        make("hvcl", stream={"epochs": 3}, learner={"hidden": (8,), "diversity": 0.01}), FACTS, resume=False, force=False
    )
    result = run_seed(folder, 1)
    lines = [json.loads(line) for line in folder.seed(1).metrics_path.read_text().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert [e["after"] for e in evaluations] == [0, 1, 2, 3, 4, 5]
    assert [e["accuracy"] for e in evaluations[1:]] == result["accuracy_matrix"]
    assert result["initial_accuracy"] == evaluations[0]["accuracy"]
    terms = [line for line in lines if line["kind"] == "terms"]
    assert {"loss", "utility", "expert_kl", "gate_kl", "conditional_entropy", "diversity"} <= set(terms[0]["terms"])
    assert terms[-1]["step"] == result["steps"]
    assert [t["task"] for t in terms] == sorted(t["task"] for t in terms)
    assert set(evaluations[-1]["layers"]) == {"dense0", "head"}
    for usage in evaluations[-1]["layers"]["head"]["usage"]:
        assert sum(usage) == pytest.approx(1.0)
    environment = json.loads((folder.seed(1).path / "environment.json").read_text())
    assert environment["seed"] == 1
    assert environment["torch"]


def test_result_counts_parameters_and_bytes(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.prepare(make(), FACTS, resume=False, force=False)
    result = run_seed(folder, 1)
    parameters = 64 * 8 + 8 + 8 * 2 + 2
    assert result["parameters"] == parameters
    # weights and two Adam moments in float32, four step counters, torch's random state
    assert result["stored_bytes"] == 3 * 4 * parameters + 4 * 4 + 5056
    assert result["steps"] == 25
