"""What is special about contrastive learning with feature propagation; the contract is tested with all the others'."""

import math

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create

X, Y = torch.tensor([[0.5, -1.0], [2.0, 0.3], [-0.7, 0.1]]), torch.tensor([0, 1, 0])


def second_task(problem=None, task=None, **settings):
    """A learner that has seen three examples, has stored them all, and has moved on a little since the boundary."""
    learner = create("ccl-fp", problem or Problem((2,), 2), seed=1, hidden=(4,), memory=3, learning_rate=0.1, **settings)
    learner.observe(X, Y, task)
    learner.end_task()
    with torch.no_grad():
        learner.network.dense0.weight += 0.2
    return learner


def test_features_of_old_are_propagated_to_where_the_present_ones_are_near_them():
    learner = create("ccl-fp", Problem((2,), 2), attention=2.0, propagation=0.4)
    features, old = torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([[10.0, 0.0], [20.0, 40.0]])
    distances = torch.tensor([[math.log(3) / 2, 0.0], [7.0, 7.0]])
    found = learner.propagated(features, old, distances)
    first = 0.25 * old[0] + 0.75 * old[1]  # exp(-2 d) is 1/3 and 1
    second = 0.5 * old[0] + 0.5 * old[1]
    torch.testing.assert_close(found, 0.6 * features + 0.4 * torch.stack([first, second]))


def test_the_alignment_by_hand():
    learner = create("ccl-fp", Problem((2,), 2), sharpness=2.0)
    distances = torch.tensor([[0.0, math.log(3)], [math.log(2), math.log(4)]])  # exp(-2 d): 1, 1/9; 1/4, 1/16
    assert learner.alignment(distances).item() == pytest.approx(-(math.log(0.9) + math.log(0.2)) / 2, abs=1e-6)


def test_the_contrast_by_hand():
    learner = create("ccl-fp", Problem((1,), 2), sharpness=1.0)
    features = torch.tensor([[0.0], [math.log(2)], [math.log(4)]])  # exp(-d): 1/2 next to each other, 1/4 further
    pair = (math.log(3 / 2) + math.log(2)) / 3
    assert learner.contrast(features, torch.tensor([0, 0, 1])).item() == pytest.approx(pair, abs=1e-6)
    ends = (math.log(3 / 2) + math.log(3)) / 2  # of two others, one is told with 2/3 and one with 1/3
    every = (ends + math.log(2) + ends) / 3
    assert learner.contrast(features, torch.tensor([1, 1, 1])).item() == pytest.approx(every, abs=1e-6)
    assert learner.contrast(features, torch.tensor([0, 1, 2])).item() == 0.0


def test_the_contrast_has_a_slope_where_examples_repeat():
    learner = create("ccl-fp", Problem((2,), 2))
    features = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], requires_grad=True)
    learner.contrast(features, torch.tensor([0, 0, 1])).backward()
    assert features.grad.isfinite().all()


def test_the_loss_is_the_cross_entropy_at_propagated_features_and_both_contrastive_losses():
    settings = {"propagation": 0.4, "attention": 0.7, "sharpness": 1.3, "alignment": 0.6, "contrast": 0.2}
    learner = second_task(**settings)
    x, y = -X, 1 - Y
    with torch.no_grad():
        past = learner.reservoir.kept
        both, labels = torch.cat([x, past.x]), torch.cat([y, past.y])
        f, f_old = learner.network[:-1](both), learner.previous[:-1](both)
        assert not torch.allclose(f, f_old)
        distances = (f[:, None] - f_old).square().sum(2).sqrt()
        mixed = 0.6 * f + 0.4 * (-0.7 * distances).softmax(1) @ f_old
        alignment = -(-1.3 * distances).softmax(1).diag().log().mean()
        contrast = learner.contrast(f, labels)
        expected = F.cross_entropy(learner.network[-1](mixed), labels) + 0.6 * alignment + 0.2 * contrast
    terms = learner.observe(x, y)  # a memory of three, replayed three at a time: all of it, whatever the order
    assert terms["alignment"] == pytest.approx(alignment.item(), abs=1e-5)
    assert terms["contrast"] == pytest.approx(contrast.item(), abs=1e-5)
    assert terms["loss"] == pytest.approx(expected.item(), abs=1e-5)


def test_the_network_of_old_is_that_of_the_boundary_and_is_not_asked_for_answers():
    learner = second_task()
    old = {name: w.clone() for name, w in learner.previous.state_dict().items()}
    for _ in range(3):
        learner.observe(-X, 1 - Y)
    assert all(torch.equal(w, old[name]) for name, w in learner.previous.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(learner.predict(X), learner.network(X).softmax(1))


def test_in_task_il_every_example_counts_in_the_head_of_its_task():
    problem = Problem((2,), 4, ((0, 1), (2, 3)))
    learner = second_task(problem, torch.zeros(3, dtype=torch.long), propagation=0.0, alignment=0.0, contrast=0.0)
    with torch.no_grad():
        past = learner.reservoir.kept
        outputs = learner.network(torch.cat([-X, past.x]))
        expected = F.cross_entropy(torch.cat([outputs[:3, 2:], outputs[3:, :2]]), torch.cat([Y, past.y]))
    terms = learner.observe(-X, Y + 2, torch.ones(3, dtype=torch.long))
    assert terms["loss"] == pytest.approx(expected.item(), abs=1e-5)


def test_without_its_three_parts_it_is_experience_replay(taught):
    off = {"propagation": 0.0, "alignment": 0.0, "contrast": 0.0}
    (learner, _), (er, _) = taught("ccl-fp", memory=50, **off), taught("er", memory=50)
    weights = learner.network.state_dict()
    for name, w in er.network.state_dict().items():
        torch.testing.assert_close(weights[name], w, atol=1e-4, rtol=1e-4)


def test_on_a_task_free_stream_there_is_no_network_of_old(taught):
    learner, terms = taught("ccl-fp", task_free=True, memory=50)
    assert learner.previous is None
    assert "alignment" not in terms[-1]
    assert terms[-1]["contrast"] > 0


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("ccl-fp", memory=0)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("ccl-fp", scenario, memory=100) < forgotten("naive", scenario) - 0.4


def test_states_its_memory():
    assert create("ccl-fp", Problem((1,), 2)).memory == "500 examples"


@pytest.mark.parametrize("name", ["propagation", "attention", "sharpness", "alignment", "contrast", "replay_batch"])
def test_bad_settings_are_named(name):
    with pytest.raises(InputError, match=name):
        create("ccl-fp", Problem((2,), 2), **{name: -1})


def test_with_convolutions_the_features_are_those_before_the_head():
    learner = create("ccl-fp", Problem((3, 8, 8), 2), seed=1, hidden=(6,), channels=(4, 8))
    x, y = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1])
    learner.observe(x, y)
    learner.end_task()
    assert learner.previous[:-1](x).shape == (5, 6)
    assert set(learner.observe(x, y)) == {"loss", "alignment", "contrast"}
