"""What the packaged settings say is what the committed search found."""

import json

from experiments.methods.configuration import BENCHMARKS, TOPIC, TRIALS, tuned
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
            if record["benchmark"] == benchmark:
                counts[record["method"]] = counts.get(record["method"], 0) + 1
        assert set(counts) == {trial.method for trial in TOPIC.trials(benchmark)}
        for method, count in counts.items():
            assert count >= len(TOPIC.trials(benchmark, method))
            if method not in ("naive", "joint"):
                assert count >= TRIALS[benchmark]


def test_every_trial_of_the_space_is_recorded():
    recorded = [json.dumps([r["benchmark"], r["method"], r["settings"]], sort_keys=True) for r in TOPIC.records()]
    wanted = [json.dumps([t.benchmark, t.method, t.settings], sort_keys=True) for t in TOPIC.trials()]
    assert set(wanted) <= set(recorded)


def test_only_closed_forms_published_settings_generators_and_hvcl_are_not_searched_here():
    left_out = {"exact", "hvcl", "hvcl-growing", "hvcl-paper", "hvcl-replay", "dgr", "dgr-distill", "rtf"}
    ours = {name for name, method in known_methods().items() if method.learner.__module__.startswith("hvcl.")}
    assert set(TOPIC.methods) == ours - left_out
