"""The search program: trials are run once, recorded with what was tried, and the best of them counts."""

import dataclasses
import json
from pathlib import Path

import pytest

from experiments import search
from experiments.search import TOPICS, load_topic
from experiments.topic import Final, Supervised, Topic, Trial
from hvcl.core.errors import InputError
from hvcl.runs import RunConfig


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["search", *map(str, arguments)])
    search.main()


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def topic(tmp_path, monkeypatch):
    """A small search of its own, in place of every topic."""
    made = Topic(
        folder=tmp_path,
        protocol=Supervised(stream={"validation": 0.25, "epochs": 1, "batch_size": 256}, initialisations=(0, 1)),
        benchmarks=("split-digits",),
        methods=("naive", "ewc"),
        space=lambda benchmark, method: [{"hidden": [4], "learning_rate": rate} for rate in (1e-3, 1e-2)],
        finals=(Final("split-digits", "ewc", count=1, stream={"epochs": 2}),),
    )
    monkeypatch.setattr(search, "load_topic", lambda name: made)
    return made


def test_every_topic_declares_its_search_beside_its_trials():
    assert TOPICS == ("budget", "gates", "generative", "methods", "paths", "retention", "rl", "split_digits")
    for name in TOPICS:
        topic = load_topic(name)
        found = topic.records()
        assert topic.folder.name == name
        assert found
        assert {record["benchmark"] for record in found} <= set(topic.benchmarks)
        assert {record["method"] for record in found} <= set(topic.methods)
        assert all(0 <= record[topic.score] <= 1 for record in found)


def test_the_trials_of_split_digits_are_the_declared_ones():
    topic = load_topic("split_digits")
    assert [(r["method"], r["settings"]) for r in topic.records()] == [(t.method, t.settings) for t in topic.trials()]


def test_generative_defaults_on_split_mnist_are_the_best_trial():
    topic = load_topic("generative")
    best = topic.best(topic.records())["split-mnist", "hvcl-replay"]
    made = topic.protocol.identity(Trial("split-mnist", "hvcl-replay", {}))
    assert made["learner"] == best["learner"] | {name: made["learner"][name] for name in made["learner"].keys() - best["learner"]}
    # settings that have come since are as they were: None
    assert {name: value for name, value in made["stream"].items() if value is not None} == {
        name: value for name, value in best["stream"].items() if value is not None
    }


def test_generative_trials_are_on_held_out_training_data_only():
    for record in load_topic("generative").records():
        assert record["stream"]["validation"] == 0.1
        assert record["stream"]["scenario"] == "domain"
        assert not record["stream"]["task_free"]


def test_the_best_is_the_first_of_equals_by_more_than_the_margin_and_with_the_most_epochs():
    topic = Topic(Path(), Supervised(stream={}), ("b",), ("m",), margin=0.01)
    made = [{"benchmark": "b", "method": "m", "accuracy": a, "settings": n} for n, a in enumerate((0.5, 0.7, 0.7, 0.705))]
    assert topic.best(made)["b", "m"]["settings"] == 1
    assert dataclasses.replace(topic, margin=0.0).best(made)["b", "m"]["settings"] == 3
    assert topic.best([*made, made[0] | {"epochs": 2}])["b", "m"]["settings"] == 0


def test_the_space_is_searched_once_and_its_best_again_in_the_final(topic, monkeypatch, capsys):
    command(monkeypatch, "methods", "--workers", 1)
    found = records(topic.output)
    assert [(r["method"], r["settings"]["learning_rate"], r.get("epochs")) for r in found[:4]] == [
        ("naive", 1e-3, None),
        ("naive", 1e-2, None),
        ("ewc", 1e-3, None),
        ("ewc", 1e-2, None),
    ]
    best = max(found[2:4], key=lambda record: record["accuracy"])
    assert (found[4]["settings"], found[4]["epochs"]) == (best["settings"], 2)
    assert f"split-digits ewc accuracy {found[4]['accuracy']:.4f}" in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.setattr(search, "attempt", None)
    command(monkeypatch, "methods", "--workers", 1)
    assert records(topic.output) == found


def test_a_trial_is_the_mean_over_initialisations_on_the_stream_of_seed_0(topic):
    from hvcl.runs import run

    trial = topic.trials(method="naive")[0]
    config = RunConfig.make("split-digits", "naive", (0,), topic.protocol.stream, trial.settings)
    matrices = []
    for initialisation in (0, 1):
        stream = config.make_stream(0)
        matrices.append(run(stream, config.make_learner(stream, initialisation)))
    found = search.attempt(topic, trial)
    assert found["accuracy"] == pytest.approx(sum(matrix.average_accuracy for matrix in matrices) / 2)
    assert found["learning_accuracy"] == pytest.approx(sum(matrix.learning_accuracy for matrix in matrices) / 2)
    assert found["accuracies"][2][1] == pytest.approx(sum(matrix.rows[2][1] for matrix in matrices) / 2)


def test_only_what_is_asked_for_is_run(topic, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other.jsonl"
    command(monkeypatch, "methods", "--method", "naive", "--workers", 1, "--output", other)
    assert [record["method"] for record in records(other)] == ["naive", "naive"]
    assert not topic.output.exists()
    with pytest.raises(SystemExit, match="does not search 'si'"):
        command(monkeypatch, "methods", "--method", "si")


def test_a_setting_that_diverges_has_score_0_and_says_why(topic, monkeypatch, capsys):
    def diverge(self, trial):
        raise InputError("the loss is not finite")

    monkeypatch.setattr(Supervised, "run", diverge)
    command(monkeypatch, "methods", "--method", "naive", "--workers", 1)
    assert [(r["accuracy"], r["failed"]) for r in records(topic.output)] == [(0.0, "the loss is not finite")] * 2


def test_one_trial_is_recorded_with_all_settings_and_not_run_again(tmp_path, monkeypatch, capsys):
    output = tmp_path / "trials.jsonl"
    small = ["hidden=8", "latent=2", "epochs=1", "batch_size=256", "generated=20", "labels=hard"]
    arguments = ("generative", "--benchmark", "split-digits", "--method", "hvcl-replay", "--output", output, *small)
    command(monkeypatch, *arguments)
    (record,) = records(output)
    assert (record["learner"]["labels"], record["learner"]["hidden"], record["stream"]["validation"]) == ("hard", [8], 0.1)
    assert record["asked"] == small
    assert record["accuracy"] == pytest.approx(sum(record["accuracies"][-1]) / 5)
    assert [len(row) for row in record["accuracies"]] == [5] * 5
    assert 0 <= record["generation"]["inception_score"] <= 1
    monkeypatch.setattr(search, "attempt", None)
    command(monkeypatch, *arguments)
    assert "1 of 1 trials are recorded already" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no setting 'generated'"):
        command(monkeypatch, "generative", "--benchmark", "split-digits", "--method", "dgr", "generated=3", "--output", output)
    with pytest.raises(SystemExit, match="--benchmark and --method"):
        command(monkeypatch, "generative", "--method", "dgr", "--output", output)
