"""Reproductions made of runs that take a second, and agents' results that were never run."""

import dataclasses

import pytest

from hvcl.reproduce import Finished, Found, Planned, Scale
from hvcl.reproduce.work import reproduce
from hvcl.runs import RunConfig


def shortened(planned):
    """The same run with one epoch and small networks."""
    config = planned.experiment
    assert isinstance(config, RunConfig)
    learner = config.learner
    if hasattr(learner, "hidden"):
        learner = dataclasses.replace(learner, hidden=(16, 16))
    if hasattr(learner, "random_features"):
        learner = dataclasses.replace(learner, random_features=min(learner.random_features, 200))
    stream = dataclasses.replace(config.stream, epochs=1)
    return dataclasses.replace(planned, experiment=dataclasses.replace(config, learner=learner, stream=stream))


@pytest.fixture
def outcome_of(tmp_path):
    """What a supervised reproduction comes to at the quick budget, with shortened runs of two seeds."""

    def run(one, keys=None):
        class Short:
            name, title, paper, seeds, from_results = one.name, one.title, one.paper, one.seeds, one.from_results
            read = staticmethod(one.read)

            @staticmethod
            def plan(scale):
                return [shortened(planned) for planned in one.plan(scale) if keys is None or planned.key in keys]

        (written,) = reproduce([Short()], tmp_path, seeds=2, workers=1)
        return written.outcome

    return run


REFERENCES = [[0.0, 10.0], [0.0, 100.0]]


def agent_result(seed, learned=(8.0, 50.0), ended=(4.0, 50.0)):
    """A result of two tasks."""
    performances = [value / high for value, (_, high) in zip(ended, REFERENCES, strict=True)]
    return {
        "seed": seed,
        "task_names": ["first", "second"],
        "references": REFERENCES,
        "returns_when_learned": list(learned),
        "returns_at_the_end": list(ended),
        "cumulative_reward": sum(now / then for now, then in zip(ended, learned, strict=True)),
        "cumulative_above_random": None,
        "average_performance": sum(performances) / 2,
        "forgetting": sum(then / high - now for then, now, (_, high) in zip(learned, performances, REFERENCES, strict=True)) / 2,
        "curve": [[0.5, 2.0, None], [1.0, learned[0], None], [1.5, 6.0, 20.0], [2.0, *ended]],
    }


@pytest.fixture
def seeds():
    """Results of some seeds."""
    return lambda count=3, **settings: [agent_result(seed, **settings) for seed in range(1, count + 1)]


@pytest.fixture
def agents():
    """Finished runs of agents by key, from results by key, without running anything."""

    def make(results, budget="quick"):
        runs = {}
        for key, of_seeds in results.items():
            facts = {"sequence": "classic"}
            runs[key] = Finished(Planned(key, None), of_seeds, facts, None)
        return Found(Scale(budget, (1,)), runs)

    return make
