"""The packaged files of settings, and writing what a search has found."""

import json

import pytest

from hvcl.core.configuration import configure, field_types
from hvcl.learners import known_methods, method
from hvcl.settings import load_settings, method_settings, save_searched
from hvcl.settings.files import EVERY, FOLDER
from hvcl.streams import BENCHMARKS, StreamConfig

FILES = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_of_a_method_and_every_setting_fits(name):
    assert name == EVERY or name in known_methods()
    for benchmark, entry in load_settings(name).items():
        assert benchmark in BENCHMARKS
        assert set(entry) <= {"why", "stream", "learner", "searched"}
        configure(StreamConfig, entry.get("stream", {}))
        if name != EVERY:
            configure(method(name).config, method_settings(benchmark, name))


def test_every_benchmark_has_an_architecture_and_a_learning_rate():
    for name in BENCHMARKS:
        shared = load_settings(EVERY)[name]["learner"]
        assert {"hidden", "learning_rate"} <= set(shared)
        for known in known_methods().values():
            configure(known.config, {key: value for key, value in shared.items() if key in field_types(known.config)})


def test_what_is_asked_of_every_method_is_a_setting_of_some():
    fields = set().union(*(field_types(known.config) for known in known_methods().values()))
    assert all(set(entry["learner"]) <= fields for entry in load_settings(EVERY).values())


def test_a_method_without_a_file_has_no_settings():
    assert load_settings("of-somebody-else") == {}
    assert method_settings("split-mnist", "of-somebody-else") == {}


def test_what_a_search_found_takes_the_place_of_what_another_had(tmp_path):
    path = tmp_path / "ewc.json"
    path.write_text(
        json.dumps({"split-mnist": {"learner": {"fisher": "sampled"}, "searched": {"strength": 1.0, "online": True}}})
    )
    save_searched("split-mnist", "ewc", {"strength": 2.0}, tmp_path)
    save_searched("split-digits", "ewc", {"strength": 3.0}, tmp_path)
    assert json.loads(path.read_text()) == {
        "split-mnist": {"learner": {"fisher": "sampled"}, "searched": {"strength": 2.0}},
        "split-digits": {"searched": {"strength": 3.0}},
    }
