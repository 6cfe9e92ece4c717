"""What a seed writes down of a learner's own experts and of its generator."""

import json

import pytest

from hvcl.core.errors import InterruptedRun
from hvcl.runs import RunConfig, RunFolder
from hvcl.runs.seed import run_seed

FACTS = {"memory": "none", "task_names": ["a"]}


def prepared(path, method, learner, **stream):
    folder = RunFolder(path)
    config = RunConfig.make("split-digits", method, (1,), {"epochs": 1, "batch_size": 32} | stream, learner)
    folder.prepare(config, FACTS, resume=False, force=False)
    return folder


def test_experts_are_written_as_they_read_back(tmp_path):
    folder = prepared(tmp_path / "run", "exact", {"random_features": 200})
    result = run_seed(folder, 1)
    written = json.loads(folder.seed(1).result_path.read_text())
    assert written == result, "the same whether the seed has just run or is read from its file"
    experts = written["experts"]
    assert [expert["expert"] for expert in experts] == [0, 1, 2, 3, 4]
    assert [expert["opened_step"] for expert in experts] == [e["step"] for e in folder.seed(1).evaluations()[:-1]]
    seen = 0
    for expert in experts:
        assert expert["opened_after"] == seen
        assert list(expert["labels"]) == ["0", "1"]
        assert sum(expert["labels"].values()) == expert["examples"] == sum(count for *_, count in expert["stretches"])
        seen += expert["examples"]
    assert experts[-1]["stretches"][-1][1] == written["steps"] - 1
    gate = written["layers"]["gate"]
    assert [len(row) for row in gate["usage"]] == [5] * 5


def test_a_resumed_run_has_the_same_experts(tmp_path):
    whole, broken = (prepared(tmp_path / name, "exact", {"random_features": 100}, task_free=True) for name in "ab")
    asked = iter([False] * 20 + [True])
    with pytest.raises(InterruptedRun):
        run_seed(broken, 1, stop=lambda: next(asked))
    first, second = run_seed(whole, 1), run_seed(broken, 1)
    assert first["experts"] == second["experts"] != []
    assert first["layers"] == second["layers"]


def test_other_learners_have_none(tmp_path):
    result = run_seed(prepared(tmp_path / "run", "naive", {"hidden": (4,)}), 1)
    assert result["experts"] == []
    assert result["layers"] == {}


def test_generators_leave_their_scores_and_pictures_also_after_an_interruption(tmp_path):
    settings = {"hidden": (8,), "latent": 2, "generated": 50}
    whole, broken = (prepared(tmp_path / name, "hvcl-replay", settings, batch_size=128) for name in "ab")
    asked = iter([False] * 5 + [True])
    with pytest.raises(InterruptedRun):
        run_seed(broken, 1, stop=lambda: next(asked))
    first, second = run_seed(whole, 1), run_seed(broken, 1)
    assert first["generation"] == second["generation"]
    assert [set(entry) for entry in first["generation"]] == [
        {"inception_score", "inception_bound", "frechet_distance", "experts"}
    ] * 5
    pictures = [folder.seed(1).path / "pictures" for folder in (whole, broken)]
    names = sorted(path.name for path in pictures[0].iterdir())
    assert names == sorted(f"{t}-{row}.png" for t in range(1, 6) for row in ("originals", "reconstructions", "samples"))
    assert all((pictures[0] / name).read_bytes() == (pictures[1] / name).read_bytes() for name in names)


def test_a_logged_term_is_the_mean_of_those_of_its_steps(tmp_path, monkeypatch):
    """Streams of a few batches log every step; longer ones a mean over some."""
    logged = {}
    for lines in (1000, 8):
        monkeypatch.setattr("hvcl.runs.supervised.LOG_LINES", lines)
        folder = prepared(tmp_path / str(lines), "naive", {"hidden": (8,)}, batch_size=16)
        run_seed(folder, 1)
        records = map(json.loads, folder.seed(1).metrics_path.read_text().splitlines())
        logged[lines] = [(record["step"], record["terms"]["loss"]) for record in records if record["kind"] == "terms"]
    every = dict(logged[1000])
    assert sorted(every) == list(range(1, len(every) + 1))
    window = logged[8][0][0]
    assert window > 5
    for last, mean in logged[8]:
        assert mean == pytest.approx(sum(every[step] for step in range(last - window + 1, last + 1)) / window, rel=1e-12)
