"""What the packaged settings of hvcl and hvcl-growing say is what the committed searches found."""

import json

import pytest

from experiments.gates import configuration as gates
from experiments.paths import configuration as paths
from hvcl.runs import RunConfig
from hvcl.settings import load_settings

TOPICS = {"hvcl": gates.TOPIC, "hvcl-growing": paths.TOPIC}


@pytest.mark.parametrize("method", TOPICS)
def test_every_trial_of_the_space_is_recorded(method):
    topic = TOPICS[method]
    recorded = {json.dumps([r["benchmark"], r["settings"]], sort_keys=True) for r in topic.records()}
    assert {json.dumps([t.benchmark, t.settings], sort_keys=True) for t in topic.trials()} <= recorded


@pytest.mark.parametrize("method", TOPICS)
def test_settings_are_the_best_of_the_search(method):
    topic = TOPICS[method]
    several = [record for record in topic.records() if method != "hvcl" or record["settings"].get("experts") != 1]
    for (benchmark, _), record in topic.best(several).items():
        assert load_settings(method)[benchmark]["searched"] == record["settings"]
        made = RunConfig.make(benchmark, method).learner
        for name, value in record["settings"].items():
            assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)


def test_split_cifar100_has_the_settings_of_split_cifar10():
    assert gates.tuned()["split-cifar100"] == load_settings("hvcl")["split-cifar100"]["searched"]
    assert gates.tuned()["split-cifar100"] == gates.tuned()["split-cifar10"]
