"""The checks catch what they are there for. That all methods pass them is tested in tests/learners and tests/rl."""

import itertools

import numpy as np
import pytest
import torch

from hvcl.learners import GradientConfig, GradientLearner, register
from hvcl.rl import SAC, SACConfig
from hvcl.rl.methods import register as register_agent
from hvcl.testing import AGENT_CHECKS, LEARNER_CHECKS, AgentCase, LearnerCase, check_agent, check_learner

SMALL = {"hidden": (16,), "learning_rate": 0.01}


class Lazy(GradientLearner):
    def learn(self, x, y, task):
        return {"loss": 0.0}


class Unsure(GradientLearner):
    def infer(self, x, task):
        return 2 * super().infer(x, task)


class Noisy(GradientLearner):
    def learn(self, x, y, task):
        return super().learn(x + 0.01 * torch.randn_like(x), y, task)


class Forgetful(GradientLearner):
    def state_dict(self):
        return super().state_dict() | {"random": torch.Generator().manual_seed(1).get_state(), "optimizer": None}

    def restore(self, state):
        self.network.load_state_dict(state["network"])


class Curious(GradientLearner):
    def infer(self, x, task):
        with torch.no_grad():
            next(self.network.parameters()).add_(0.01)
        return super().infer(x, task)


class Careless(GradientLearner):
    def load_state_dict(self, state):
        self.restore(state)


class Trusting(GradientLearner):
    def observe(self, x, y, task=None):
        return self.learn(x.float(), y.long(), task)


class Nervous(GradientLearner):
    def end_task(self):
        if not self.optimizer.state:
            raise RuntimeError("nothing was learned")


class Blind(GradientLearner):
    def learn(self, x, y, task):
        return super().learn(x, y, task) | {"nothing": float("nan")}


class Greedy(GradientLearner):
    """Keeps what it is given."""

    def start(self):
        super().start()
        self.sum = torch.zeros(1)

    def learn(self, x, y, task):
        self.sum += 1
        return super().learn(x, y, task)

    def state_dict(self):
        return super().state_dict() | {"sum": self.sum}

    def restore(self, state):
        super().restore(state)
        self.sum = state["sum"]


numbers = itertools.count()


@pytest.mark.parametrize(
    ("learner", "check"),
    [
        (Lazy, "learns, domain, boundaries"),
        (Unsure, "probabilities"),
        (Noisy, "seed"),
        (Forgetful, "resuming"),
        (Curious, "predicting"),
        (Careless, "foreign states"),
        (Trusting, "bad input"),
        (Nervous, "boundaries"),
        (Blind, "terms"),
        (Greedy, "state"),
    ],
)
def test_a_broken_learner_is_caught(learner, check, monkeypatch):
    monkeypatch.setattr("hvcl.learners.registry._METHODS", type(_methods())(_methods()))
    name = f"broken-{next(numbers)}"
    register(name, GradientConfig)(learner)
    expected = RuntimeError if learner is Nervous else AssertionError
    with pytest.raises(expected):
        LEARNER_CHECKS[check](LearnerCase(name, SMALL))
    with pytest.raises((AssertionError, RuntimeError)):
        check_learner(learner, **SMALL)


def _methods():
    from hvcl.learners import registry

    return registry._METHODS


def test_what_is_not_registered_is_said():
    with pytest.raises(AssertionError, match="Lazy is not a registered method"):
        check_learner(Lazy)
    with pytest.raises(AssertionError, match="SAC is not a registered method"):
        check_agent(SAC)


class Dreamer(SAC):
    def predict(self, observations, task=None):
        self.step += 1
        return super().predict(observations, task)


class Gambler(SAC):
    def act(self, observations):
        return np.random.uniform(-1, 1, (len(observations), self.actions)).astype(np.float32)


class Amnesiac(SAC):
    def state_dict(self):
        return super().state_dict() | {"position": [1, 0, 0.0]}

    def restore(self, state):
        super().restore(state | {"position": [1, 0, 0.0]})


@pytest.mark.parametrize(
    ("agent", "check"), [(Dreamer, "predicting"), (Gambler, "seed"), (Gambler, "bad input"), (Amnesiac, "resuming")]
)
def test_a_broken_agent_is_caught(agent, check, monkeypatch):
    from hvcl.rl.methods import registry

    monkeypatch.setattr(registry, "_METHODS", type(registry._METHODS)(registry._METHODS))
    name = f"broken-{next(numbers)}"
    register_agent(name, SACConfig)(agent)
    settings = {"hidden": (8,), "batch_size": 8, "warmup": 5, "capacity": 100}
    with pytest.raises(AssertionError):
        AGENT_CHECKS[check](AgentCase(name, settings))
