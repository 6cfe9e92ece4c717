"""The experiment that shares one pass over the features gives the numbers of separate runs."""

import pytest

from hvcl.evaluation import evaluate
from hvcl.runs import RunConfig, run


@pytest.fixture
def script(load):
    return load("exact")


def make(benchmark, method, seeds, stream):
    """Small enough for a test; the first batch holds the whole warm-up."""
    learner = {"warmup": 64, "random_features": 150}
    return RunConfig.make(benchmark, method, seeds, stream | {"batch_size": 64}, learner)


def test_the_shared_pass_gives_exactly_the_numbers_of_separate_runs(script, monkeypatch, capsys):
    class Small:
        pass

    Small.make = staticmethod(make)
    monkeypatch.setattr(script, "RunConfig", Small)
    shared = script.one_seed("split-digits", 1)
    assert list(shared) == list(script.SETTINGS)
    for (scenario, task_free), together in shared.items():
        config = make("split-digits", "exact", (1,), {"scenario": scenario, "task_free": task_free})
        stream = config.make_stream(1)
        learner = config.make_learner(stream, 1)
        matrix = run(stream, learner)
        scores = evaluate(learner, stream.tests, seen=len(stream.tests)).scores
        found = script.result(together, 1)
        assert found["accuracy_matrix"] == matrix.rows
        assert found["average_accuracy"] == matrix.average_accuracy > 0.8
        assert found["nll"] == sum(s.nll for s in scores) / len(scores)
        assert found["calibration_error"] == sum(s.calibration_error for s in scores) / len(scores)
        assert found["ridges"] == [learner.experts.head.model.posterior().ridge]
        assert found["opened_after"] == [r.opened_after for r in learner.expert_log.records]
        assert found["features"] == 150
        assert found["parameters"] == learner.num_parameters
        assert together.learner.expert_log.state_dict() == learner.expert_log.state_dict()
        assert found["seconds"] > 0
    assert "after task 5" in capsys.readouterr().out
