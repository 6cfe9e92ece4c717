"""Where each setting of a run comes from."""

import dataclasses

import pytest

from hvcl.core.errors import InputError, UnknownNameError
from hvcl.learners import known_methods
from hvcl.runs import RunConfig
from hvcl.settings import resolve
from hvcl.streams import BENCHMARKS, StreamConfig


def origins(part):
    return {name: setting.origin for name, setting in part.items()}


def test_each_layer_goes_before_the_ones_below_it():
    found = resolve("split-mnist", "vcl", {"batch_size": 10}, {"hidden": (8,)}, "quick")
    assert origins(found.stream) == {
        "scenario": "default of the stream",
        "task_free": "default of the stream",
        "blur": "default of the stream",
        "epochs": "budget quick",
        "batch_size": "given",
        "class_order": "default of the stream",
        "tasks": "default of the stream",
        "classes_per_task": "default of the stream",
        "size": "default of the stream",
        "validation": "default of the stream",
    }
    learner = origins(found.learner)
    assert learner["hidden"] == "given"
    assert learner["learning_rate"] == "settings/vcl.json (searched)"  # and not what was chosen by hand, or every method's
    assert learner["samples"] == "default of the method"
    plain = resolve("split-mnist", "vcl")
    assert plain.learner["hidden"].origin == "settings/every-method.json"
    assert plain.stream["epochs"].origin == "benchmark"
    assert resolve("permuted-mnist", "vcl").learner["samples"].origin == "settings/vcl.json"
    assert resolve("split-mnist", "hvcl-replay").stream["epochs"].origin == "settings/hvcl-replay.json"
    assert resolve("split-mnist", "hvcl-replay", budget="standard").stream["epochs"].origin == "budget standard"


def test_one_pass_is_all_that_some_methods_take():
    for budget in (None, "paper"):
        assert resolve("split-mnist", "exact", budget=budget).stream["epochs"].value == 1
    assert resolve("split-mnist", "exact", {"epochs": 2}, budget="paper").stream["epochs"].value == 2


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_run_is_configured_with_what_is_explained(benchmark):
    for method, known in known_methods().items():
        for budget in (None, "standard"):
            found, made = resolve(benchmark, method, budget=budget), RunConfig.make(benchmark, method, budget=budget)
            assert set(found.stream) == {field.name for field in dataclasses.fields(StreamConfig)}
            assert set(found.learner) == {field.name for field in dataclasses.fields(known.config)}
            for config, part in ((made.stream, found.stream), (made.learner, found.learner)):
                for name, setting in part.items():
                    value = tuple(setting.value) if isinstance(setting.value, list) else setting.value
                    assert getattr(config, name) == value, (method, name)


@pytest.mark.parametrize(
    ("benchmark", "method", "budget", "stream", "learner"),
    [
        # as they were when the settings of methods still lay with the benchmarks
        ("split-digits", "hvcl", None, {"epochs": 10, "batch_size": 32}, {"hidden": (64, 64), "beta_expert": 0.01}),
        ("split-mnist", "ewc", "standard", {"epochs": 4}, {"learning_rate": 0.002, "strength": 1e7, "fisher": "exact"}),
        ("permuted-mnist", "exact", None, {"epochs": 1, "batch_size": 1000}, {"separate": True, "random_features": 6000}),
        ("permuted-mnist", "rtf", None, {"epochs": 21}, {"hidden": (1000, 1000), "learning_rate": 1e-4}),
        ("split-cifar10", "ncl", "paper", {"epochs": 1000}, {"channels": (8, 16, 32, 64, 128), "fisher": "sampled"}),
        ("split-cifar100", "hvcl-replay", None, {"epochs": 15}, {"latent": 128, "vae_learning_rate": 0.002, "beta_expert": 0.01}),
    ],
)
def test_settings_that_figures_were_made_with(benchmark, method, budget, stream, learner):
    made = RunConfig.make(benchmark, method, budget=budget)
    for config, expected in ((made.stream, stream), (made.learner, learner)):
        assert {name: getattr(config, name) for name in expected} == expected


def test_what_is_unknown_is_refused():
    with pytest.raises(InputError, match="budget must be one of quick, standard, paper, got 'huge'"):
        resolve("split-mnist", "ewc", budget="huge")
    with pytest.raises(UnknownNameError):
        resolve("split-mnits", "ewc")
    with pytest.raises(InputError, match="unknown setting 'strenght'"):
        RunConfig.make("split-mnist", "ewc", learner={"strenght": 1.0})
