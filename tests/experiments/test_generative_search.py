"""The looks behind the settings of the methods with a generator, and the page that shows them."""

import json
from pathlib import Path

import pytest

from hvcl.runs import RunConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def search(load):
    return load("generative_search")


def test_the_defaults_on_split_mnist_are_the_best_look(search):
    best = search.best(search.done())["split-mnist", "hvcl-replay"]
    made = search.described(RunConfig.make("split-mnist", "hvcl-replay", (0,), {"validation": 0.1}))
    assert made["learner"] == best["learner"] | {name: made["learner"][name] for name in made["learner"].keys() - best["learner"]}
    assert made["stream"] == best["stream"]


def test_looks_are_at_held_out_training_data_only(search):
    for record in search.done():
        assert record["stream"]["validation"] == 0.1
        assert record["stream"]["scenario"] == "domain"
        assert not record["stream"]["task_free"]


def test_the_page_holds_what_was_found(load):
    assert load("generative_table").PAGE.read_text() == load("generative_table").page()


def test_the_first_of_equal_looks_counts(search):
    records = [{"benchmark": "b", "method": "m", "accuracy": a, "learner": n} for n, a in enumerate((0.5, 0.7, 0.7))]
    assert search.best(records)["b", "m"]["learner"] == 1


def test_a_look_is_recorded_with_all_settings_and_not_taken_again(tmp_path, monkeypatch, capsys, search):
    output = tmp_path / "looks.jsonl"
    small = ["hidden=8", "latent=2", "epochs=1", "batch_size=256", "generated=20", "labels=hard"]
    monkeypatch.setattr("sys.argv", ["search", "split-digits", "hvcl-replay", *small, "--output", str(output)])
    search.main()
    (record,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert (record["learner"]["labels"], record["learner"]["hidden"], record["stream"]["validation"]) == ("hard", [8], 0.1)
    assert record["accuracy"] == pytest.approx(sum(record["accuracies"][-1]) / 5)
    assert [len(row) for row in record["accuracies"]] == [5] * 5
    assert 0 <= record["generation"]["inception_score"] <= 1
    monkeypatch.setattr(search, "look", None)
    search.main()
    assert "looked at already" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["search", "split-digits", "dgr", "generated=3", "--output", str(output)])
    with pytest.raises(SystemExit, match="no setting 'generated'"):
        search.main()


def test_generators_are_counted_where_every_task_has_its_own(load):
    table = load("generative_table")
    names = ["0/1", "2/3"]
    assert table.generators({"task_names": names, "learner": {"separate": True}}) == 2
    assert table.generators({"task_names": names, "learner": {}}) == 1


def test_a_look_is_shown_by_what_differs_from_the_first_one(load):
    table = load("generative_table")
    first = {"method": "hvcl-replay", "stream": {"epochs": 20}, "learner": {"labels": "soft"}}
    later = {"method": "hvcl-replay", "stream": {"epochs": 10}, "learner": {"labels": "soft", "refresh": True, "balance": "half"}}
    assert table.differences(later, first) == {"epochs": 10, "refresh": True}, "a setting that was not there had its default"
