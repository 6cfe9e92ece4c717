"""What the packaged settings of hvcl and hvcl-growing say is what the committed searches found."""

import pytest

from experiments.gates import configuration as gates
from experiments.paths import configuration as paths
from experiments.retention import configuration as retention
from hvcl.runs import RunConfig
from hvcl.settings import load_settings

TOPICS = {"hvcl": retention.TOPIC, "hvcl-growing": paths.TOPIC}


@pytest.mark.parametrize("method", TOPICS)
def test_settings_are_the_best_of_the_search(method):
    topic = TOPICS[method]
    several = [record for record in topic.records() if method != "hvcl" or record["settings"].get("experts") != 1]
    for (benchmark, _), record in topic.best(several).items():
        assert load_settings(method)[benchmark]["searched"] == record["settings"]
        made = RunConfig.make(benchmark, method).learner
        for name, value in record["settings"].items():
            assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("topic", [gates, retention, paths])
def test_trials_were_scored_on_the_declared_protocol(topic):
    """Every record has what the tables show, and settings that a run of today accepts."""
    for record in topic.TOPIC.records():
        assert {"accuracy", "learning_accuracy", "forgetting", "information", "seconds"} <= record.keys()
        RunConfig.make(record["benchmark"], record["method"], learner=record["settings"])
