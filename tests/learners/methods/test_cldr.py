"""What is special about dual regularisations; the contract is tested with all the others'."""

import math

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.memory.examples import Stored

X, Y = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1])
WEIGHT = ((math.log(3), 0.3), (0.0, -0.5))
PAST_X, PAST_Y = torch.tensor([[1.0, 0.5], [-1.0, 0.5], [-1.0, 0.5]]), torch.tensor([0, 1, 0])


def second_task(weight=WEIGHT, problem=None, **settings):
    """A linear learner, whose features are its inputs, with known weights; three examples of its first task are stored."""
    learner = create("cldr", problem or Problem((2,), 2), seed=1, hidden=(), learning_rate=1e-12, memory=8, **settings)
    learner.observe(PAST_X, PAST_Y, None if problem is None or problem.task_outputs is None else torch.zeros(3, dtype=torch.long))
    learner.end_task()
    with torch.no_grad():
        learner.network.head.weight.copy_(torch.tensor(weight))
        learner.network.head.bias.zero_()
    return learner


def parts():
    """Features and labels of the batch, and of the memory."""
    return X, Stored(X, Y), PAST_X, Stored(PAST_X, PAST_Y)


def test_the_agreement_of_a_feature_with_the_labels_by_hand():
    # by the first feature alone, the head says (3/4, 1/4) of 1 and (1/4, 3/4) of -1: right both times in the batch,
    # and two times out of three in the memory; by the second, always the same
    learner = second_task()
    torch.testing.assert_close(learner.agreement(X, Stored(X, Y)), torch.tensor([1.0, 0.0]))
    same = (0.5 * (0.4 - -0.4), 1)  # two labels 0 and one label 1, and always the same answer: p of label 0 is s
    s = 1 / (1 + math.exp(-same[0])) - 0.5
    expected = s * (0.5 + 0.5 - 0.5) * 2 / math.sqrt(6 * s * s * 6 * 0.25)
    torch.testing.assert_close(learner.agreement(PAST_X, Stored(PAST_X, PAST_Y)), torch.tensor([1 / 3, expected]))


def test_features_that_agree_on_one_side_only_pay_for_their_weights():
    learner = second_task()
    expected = (1 - 1 / 3) * math.log(3) + (1 - 0) * (0.3 + 0.5)
    assert learner.selection(*parts()).item() == pytest.approx(expected, abs=1e-6)


def test_the_penalty_reaches_the_features_and_makes_them_agree():
    learner = create("cldr", Problem((3,), 2), seed=1, hidden=(6,))
    random = torch.Generator().manual_seed(0)
    y = torch.arange(20) % 2
    x, past = (torch.randn(20, 3, generator=random) + (2 * y - 1)[:, None] * torch.eye(3)[axis] for axis in (0, 1))
    optimizer = torch.optim.SGD(learner.network.dense0.parameters(), lr=0.05)
    found = []
    for _ in range(30):
        f, f_past = learner.network[:-1](x), learner.network[:-1](past)
        penalty = learner.selection(f, Stored(x, y), f_past, Stored(past, y))
        found.append((learner.agreement(f, Stored(x, y)) * learner.agreement(f_past, Stored(past, y))).mean().item())
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
    assert found[-1] > found[0] + 0.05


def test_mixed_features_have_the_labels_of_both(monkeypatch):
    learner = second_task()
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda self: torch.tensor(0.25))
    middle = 0.25 * X + 0.75 * PAST_X[:2]
    outputs = middle @ learner.network.head.weight.T
    expected = 0.25 * F.cross_entropy(outputs, Y) + 0.75 * F.cross_entropy(outputs, PAST_Y[:2])
    torch.testing.assert_close(learner.mixing(*parts()), expected)


def test_a_batch_that_is_larger_than_the_memory_is_mixed_with_its_examples_in_turn(monkeypatch):
    learner = second_task()
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda self: torch.tensor(0.0))
    one = Stored(PAST_X[:1], PAST_Y[:1])
    torch.testing.assert_close(learner.mixing(X, Stored(X, Y), PAST_X[:1], one), learner.classified(PAST_X[:1], one))


def test_the_loss_is_the_sum_of_both_cross_entropies_and_the_weighted_regularisers(monkeypatch):
    learner = second_task(distillation=1.5, mixing=0.7, selection=0.2, replay_batch=3)
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda self: torch.tensor(1.0))
    terms = learner.loss(X, Y, None)
    network, teacher = learner.network, learner.teacher
    classified = F.cross_entropy(network(X), Y) + F.cross_entropy(network(PAST_X), PAST_Y)
    kept = [-((teacher(x) / 2).softmax(1) * (network(x) / 2).log_softmax(1)).sum(1).mean() for x in (X, PAST_X)]
    torch.testing.assert_close(terms["distillation"], kept[0] + kept[1])
    torch.testing.assert_close(terms["mixing"], F.cross_entropy(network(X), Y))
    torch.testing.assert_close(terms["selection"], learner.selection(*parts()))
    expected = classified + 1.5 * terms["distillation"] + 0.7 * terms["mixing"] + 0.2 * terms["selection"]
    torch.testing.assert_close(terms["loss"], expected)


def test_the_first_task_is_learned_by_cross_entropy_alone():
    learner = create("cldr", Problem((2,), 2), seed=1, hidden=(4,))
    for _ in range(3):
        expected = F.cross_entropy(learner.network(X), Y).item()
        assert learner.observe(X, Y) == {"loss": pytest.approx(expected, abs=1e-6)}


def test_in_task_il_labels_are_compared_in_the_heads_of_their_tasks(monkeypatch):
    learner = second_task((*WEIGHT, (0.7, 0.1), (0.2, 0.4)), Problem((2,), 4, ((0, 1), (2, 3))))
    learner.network.head.weight.requires_grad_(False)
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda self: torch.tensor(0.25))
    now, past = Stored(X, Y + 2, torch.ones(2, dtype=torch.long)), Stored(PAST_X, PAST_Y, torch.zeros(3, dtype=torch.long))
    alone = second_task()  # with nothing but the first head
    torch.testing.assert_close(learner.agreement(PAST_X, past), alone.agreement(PAST_X, Stored(PAST_X, PAST_Y)).detach())
    outputs = (0.25 * X + 0.75 * PAST_X[:2]) @ learner.network.head.weight.T
    expected = 0.25 * F.cross_entropy(outputs[:, 2:], Y) + 0.75 * F.cross_entropy(outputs[:, :2], PAST_Y[:2])
    torch.testing.assert_close(learner.mixing(X, now, PAST_X, past), expected)
    assert learner.old_heads() == [[0, 1]]


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("cldr", memory=0)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("cldr", scenario, memory=100, distillation=0.3) < forgotten("naive", scenario) - 0.4


def test_segments_take_the_place_of_tasks_where_boundaries_are_not_known(forgotten):
    free = {"task_free": True, "memory": 100, "distillation": 0.3, "segment_steps": 40}  # the task ends after 40 batches
    assert forgotten("cldr", **free) < forgotten("naive", task_free=True) - 0.4


def test_states_its_memory():
    assert create("cldr", Problem((1,), 2)).memory == "500 examples"


@pytest.mark.parametrize("name", ["distillation", "mixing", "selection", "concentration", "temperature", "memory"])
def test_bad_settings_are_named(name):
    with pytest.raises(InputError, match=name):
        create("cldr", Problem((2,), 2), **{name: -1})


def test_with_convolutions_the_features_are_those_before_the_head():
    learner = create("cldr", Problem((3, 8, 8), 2), seed=1, hidden=(6,), channels=(4, 8))
    x, y = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1])
    learner.observe(x, y)
    learner.end_task()
    assert learner.agreement(learner.network[:-1](x), Stored(x, y)).shape == (6,)
    assert set(learner.observe(x, y)) == {"loss", "distillation", "mixing", "selection"}
