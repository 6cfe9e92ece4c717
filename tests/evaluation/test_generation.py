"""Scoring a generator, with one whose samples and answers are known."""

import math

import pytest
import torch

from hvcl.core.errors import HvclError
from hvcl.core.problem import Problem
from hvcl.evaluation import evaluate, evaluate_generation
from hvcl.generative import Generated
from hvcl.learners import create
from hvcl.learners.base import Learner
from hvcl.streams import StreamConfig, from_arrays


class Known(Learner):
    """Generates ones and zeros in turn and tells them apart for sure; its features are its inputs."""

    def __init__(self, problem, shift=0.0):
        super().__init__(problem)
        self.shift, self.asked = shift, []
        self.latent_experts = 3

    def generate(self, count, seed):
        self.asked.append((count, seed))
        x = (torch.arange(count) % 2).float().view(-1, *[1] * len(self.problem.input_shape)).expand(-1, *self.problem.input_shape)
        return Generated(x + self.shift, torch.arange(count) % 4 // 3, torch.zeros(count)), None

    def reconstruct(self, x):
        return 1 - x

    def features(self, x):
        return x.flatten(1)[:, :1]

    def judge(self, x, task):
        return self.predict(x, task), self.features(x)

    def infer(self, x, task):
        first = (x.flatten(1)[:, 0] > 0.5).float()
        return torch.stack([first, 1 - first], 1)

    def learn(self, x, y, task):
        return {}

    num_parameters = 0

    def state_dict(self):
        return {}

    def restore(self, state):
        pass


def stream(shape=(1, 2, 2)):
    y = torch.arange(80) % 4
    x = (torch.arange(80) % 2).float().view(-1, *[1] * len(shape)).expand(-1, *shape).clone()
    return from_arrays(x, y, x, y, classes_per_task=2, config=StreamConfig(batch_size=20))


def test_scores_of_a_perfect_generator():
    data = stream()
    found = evaluate_generation(Known(data.problem), data.tests, seen=2)
    assert found.inception_score == pytest.approx(1.0)
    assert found.inception_bound == pytest.approx(1.0)
    assert found.frechet_distance == pytest.approx(0.0, abs=1e-3)  # the means agree; the covariances up to n - 1
    assert found.experts == [0.75, 0.25, 0.0], "an expert that made nothing is told as well"


def test_a_shift_of_all_samples_is_the_distance():
    data = stream()
    assert evaluate_generation(Known(data.problem, 3.0), data.tests, 2).frechet_distance == pytest.approx(9.0, abs=1e-2)


def test_a_single_real_example_has_no_distance_and_stops_no_run():
    x, y = torch.rand(8, 3), torch.arange(8) % 2
    data = from_arrays(x, y, x[:1], y[:1], classes_per_task=2, config=StreamConfig(batch_size=4))
    found = evaluate_generation(Known(data.problem), data.tests, 1)
    assert math.isnan(found.frechet_distance)
    assert found.to_json()["frechet_distance"] is None


def test_a_generator_that_has_diverged_is_called_by_its_name():
    data = stream()
    with pytest.raises(HvclError, match=r"generator.*diverged"):
        evaluate_generation(Known(data.problem, shift=float("nan")), data.tests, 1)


def test_heads_that_are_asked_at_random_are_no_merit_of_the_generator():
    """Task-IL, all examples alike: nothing is learned from them about a label, though the head is sure."""
    heads = ((0, 1), (2, 3))
    learner = create("dgr", Problem((3,), 4, heads, (8, 8), (1, 1)), seed=1, hidden=(4,), latent=2)
    x = torch.rand(8, 3)
    for task in (0, 1):
        learner.observe(x, torch.arange(8) % 2 + 2 * task, torch.full((8,), task))
        learner.end_task()
    with torch.no_grad():
        for parameter in learner.generator.vae.decoder.parameters():
            parameter.zero_()
    y = torch.arange(8) % 4
    config = StreamConfig(scenario="task", batch_size=4)
    data = from_arrays(x, y, x, y, classes_per_task=2, config=config)
    found = evaluate_generation(learner, data.tests, 2)
    assert found.inception_score == pytest.approx(0.0, abs=1e-6)
    assert found.inception_bound <= 1


def test_pictures_are_made_of_pictures_only():
    data = stream()
    pictures = evaluate_generation(Known(data.problem), data.tests, 1).pictures
    assert list(pictures) == ["originals", "reconstructions", "samples"]
    assert all(content.startswith(b"\x89PNG") for content in pictures.values())
    assert pictures["originals"] != pictures["reconstructions"]
    vectors = stream((4,))
    assert evaluate_generation(Known(vectors.problem), vectors.tests, 1).pictures == {}


def test_evaluation_asks_generators_once_something_is_learned_and_always_with_the_same_numbers():
    data = stream()
    learner = Known(data.problem)
    assert evaluate(learner, data.tests, seen=0).generation is None
    assert learner.asked == []
    first, second = (evaluate(learner, data.tests, seen=1).generation for _ in range(2))
    assert first == second
    assert len(set(learner.asked)) == 1
    plain = create("naive", Problem((1, 2, 2), 2), hidden=(3,))
    assert evaluate(plain, data.tests, seen=1).generation is None


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
@pytest.mark.parametrize("task_free", [False, True])
@pytest.mark.parametrize("name", ["dgr", "rtf", "hvcl-replay"])
def test_scoring_changes_nothing_in_a_learner_in_any_scenario(name, scenario, task_free):
    y = torch.arange(80) % 4
    config = StreamConfig(scenario=scenario, batch_size=20, task_free=task_free)
    data = from_arrays(torch.rand(80, 5), y, torch.rand(80, 5), y, classes_per_task=2, config=config)
    learner = create(name, data.problem, seed=1, hidden=(4,), latent=2)
    for event in list(data)[:3]:
        if hasattr(event, "x"):
            learner.observe(event.x, event.y, event.task)
        elif event.announced:
            learner.end_task()
    random = learner.random.state()
    outside = torch.get_rng_state()
    found = evaluate(learner, data.tests, seen=1).generation
    assert 0 <= found.inception_score <= found.inception_bound <= 2
    assert torch.equal(random, learner.random.state())
    assert torch.equal(outside, torch.get_rng_state())
