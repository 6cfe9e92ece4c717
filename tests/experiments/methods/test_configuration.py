"""What the packaged settings say is what the committed search found."""

import json

from experiments.methods.configuration import AWAITED, BENCHMARKS, PATCHES, TOPIC, TRIALS, tuned
from hvcl.learners import known_methods
from hvcl.runs import RunConfig
from hvcl.settings import load_settings


def test_tuned_settings_are_the_best_of_the_search():
    found = tuned()
    for benchmark, methods in found.items():
        for method, settings in methods.items():
            assert load_settings(method)[benchmark]["searched"] == settings
    for (benchmark, method), record in TOPIC.best(TOPIC.records()).items():
        assert found[benchmark][method] == record["settings"]
        made = RunConfig.make(benchmark, method).learner
        for name, value in record["settings"].items():
            assert getattr(made, name) == value
    assert found["split-cifar100"] == found["split-cifar10"]


def test_every_method_of_a_benchmark_was_searched_with_the_same_budget():
    records = TOPIC.records()
    for benchmark in BENCHMARKS:
        counts = {}
        for record in records:
            if record["benchmark"] == benchmark and record["method"] not in AWAITED:
                counts[record["method"]] = counts.get(record["method"], 0) + 1
        assert set(counts) == {trial.method for trial in TOPIC.trials(benchmark)} - set(AWAITED)
        for method, count in counts.items():
            assert count >= len(TOPIC.trials(benchmark, method))
            if method not in ("naive", "joint"):
                assert count >= TRIALS[benchmark]


def missing():
    """The methods of all trials of the space that are not recorded."""
    recorded = {json.dumps([r["benchmark"], r["method"], r["settings"]], sort_keys=True) for r in TOPIC.records()}
    wanted = {json.dumps([t.benchmark, t.method, t.settings], sort_keys=True): t.method for t in TOPIC.trials()}
    return [method for trial, method in wanted.items() if trial not in recorded]


def test_every_trial_of_the_space_is_recorded_but_those_that_are_awaited():
    assert set(missing()) == set(AWAITED), "a method whose trials are all recorded is not awaited any longer"


def test_what_is_awaited_may_try_as_much_as_the_others():
    for method in AWAITED:
        tried = {benchmark: TOPIC.trials(benchmark, method) for benchmark in BENCHMARKS}
        assert [benchmark for benchmark in BENCHMARKS if not tried[benchmark]] == list(PATCHES)
        for benchmark in set(BENCHMARKS) - set(PATCHES):
            assert len({json.dumps(trial.settings, sort_keys=True) for trial in tried[benchmark]}) == TRIALS[benchmark]
            for trial in tried[benchmark]:
                TOPIC.protocol.identity(trial)  # a run accepts these settings


def test_only_closed_forms_published_settings_generators_and_hvcl_are_not_searched_here():
    left_out = {"exact", "hvcl", "hvcl-growing", "hvcl-paper", "hvcl-replay", "dgr", "dgr-distill", "rtf", "bir", "curl"}
    ours = {name for name, method in known_methods().items() if method.learner.__module__.startswith("hvcl.")}
    assert set(TOPIC.methods) == ours - left_out
