"""The experiment's script: figures in one file, seeds that are done not run again."""

import json

import pytest

from experiments.generative import figures as module
from hvcl.runs import RunConfig


@pytest.fixture
def script(monkeypatch, tmp_path):
    class Small:
        @staticmethod
        def make(benchmark, method, seeds, stream, learner):
            small = {"hidden": (4,), "latent": 2, "generated": 20}
            return RunConfig.make(benchmark, method, seeds, stream | {"epochs": 1, "batch_size": 256}, small | learner)

    monkeypatch.setattr(module, "RunConfig", Small)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def test_figures_are_written_once_and_seeds_are_not_run_again(script, tmp_path, monkeypatch):
    arguments = ("split-digits", "hvcl-replay", (1,), tmp_path / "runs", "best", "domain")
    script.one(*arguments, {})
    path = tmp_path / "results" / "split-digits" / "domain-hvcl-replay.json"
    written = json.loads(path.read_text())
    assert written["seeds"] == [1]
    assert written["memory"] == "none"
    assert [len(result["generation"]) for result in written["results"]] == [5]
    monkeypatch.setattr("hvcl.runs.supervised.run", None)  # nothing is learned again
    script.one(*arguments, {})
    assert json.loads(path.read_text()) == written


def test_the_papers_variant_goes_elsewhere_and_held_out_data_nowhere(script, tmp_path):
    script.one("split-digits", "hvcl-replay", (1,), tmp_path / "runs", "paper", "domain", {})
    found = json.loads((tmp_path / "results" / "generative" / "paper" / "split-digits" / "domain-hvcl-replay.json").read_text())
    assert (found["learner"]["separate"], found["learner"]["conditional"]) == (False, False)
    script.one("split-digits", "hvcl-replay", (1,), tmp_path / "held-out", "best", "domain", {"validation": 0.2})
    assert not (tmp_path / "results" / "split-digits").exists()


def test_without_replay_the_classifier_is_the_same(script, tmp_path, monkeypatch):
    class Small:
        @staticmethod
        def make(benchmark, method, seeds, stream, learner):
            own = {"hidden": (4,), "beta_expert": 0.3} if method == "hvcl-replay" else {}
            return RunConfig.make(benchmark, method, seeds, {"epochs": 1, "batch_size": 99} | stream, own | learner)

    monkeypatch.setattr(script, "RunConfig", Small)
    script.one("split-digits", "hvcl-replay", (1,), tmp_path / "runs", "without", "domain", {})
    found = json.loads((tmp_path / "results" / "generative" / "without" / "split-digits" / "domain-hvcl.json").read_text())
    assert found["method"] == "hvcl"
    assert (found["learner"]["hidden"], found["learner"]["beta_expert"]) == ([4], 0.3)
    assert found["stream"]["batch_size"] == 99
    assert "generation" not in found["results"][0]
