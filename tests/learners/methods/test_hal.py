"""What is special about hindsight anchor learning; the contract is tested with all the others'."""

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.memory.examples import Stored


def two_segments(scenario_outputs=None, **settings):
    """A learner at the end of its second task, before anchors are learned for it."""
    problem = Problem((3,), 4, scenario_outputs)
    learner = create("hal", problem, seed=1, hidden=(8,), learning_rate=0.05, memory=12, **settings)
    random = torch.Generator().manual_seed(0)
    for number in range(2):
        for _ in range(10):
            y = torch.arange(6) % 2 + 2 * number
            x = torch.eye(4, 3)[y] + 0.2 * torch.randn(6, 3, generator=random)
            learner.observe(x, y, None if scenario_outputs is None else torch.full((6,), number))
        if number == 0:
            learner.end_task()
    return learner


def test_the_first_tasks_anchors_are_examples_of_it_one_for_each_class():
    learner = two_segments()
    assert learner.anchors.y.tolist() == [0, 1]
    kept = learner.episodes.finished[0]
    for row in range(2):
        assert any(torch.equal(learner.anchors.x[row], x) for x in kept.x[kept.y == learner.anchors.y[row]])


def test_later_anchors_climb_their_objective_from_the_mean_of_their_class():
    learner = two_segments()
    kept = learner.episodes.current
    start = Stored(torch.stack([kept.x[kept.y == label].mean(0) for label in (2, 3)]), torch.tensor([2, 3]))
    tuned = learner.tuned()
    before = learner.anchor_objective(start, tuned)
    end = start.rows(slice(None))
    learner._climb(end, tuned)
    assert learner.anchor_objective(end, tuned) > before + 0.01
    assert not end.x.requires_grad
    assert (end.x - start.x).abs().max() < 0.11  # a hundred steps of at most about 0.001
    learner.end_task()
    assert learner.anchors.y.tolist() == [0, 1, 2, 3]
    assert (learner.anchors.x[2:] - start.x).abs().max() < 0.11
    assert not torch.equal(learner.anchors.x[2:], start.x)


def test_the_objective_by_hand():
    learner = two_segments(embedding=0.3)
    anchors, tuned = learner.anchors, learner.tuned()
    network = learner.network
    with torch.no_grad():
        hidden = F.leaky_relu(F.linear(anchors.x, network.dense0.weight, network.dense0.bias))
        now = F.linear(hidden, network.head.weight, network.head.bias)
        later = F.leaky_relu(F.linear(anchors.x, tuned["dense0.weight"], tuned["dense0.bias"]))
        later = F.linear(later, tuned["head.weight"], tuned["head.bias"])
        rows = torch.arange(2)
        forgetting = now.log_softmax(1)[rows, anchors.y].sum() - later.log_softmax(1)[rows, anchors.y].sum()
        expected = forgetting - 0.3 * ((hidden - learner.class_means[anchors.y]) ** 2).sum()
        torch.testing.assert_close(learner.anchor_objective(anchors, tuned), expected)


def test_tuning_to_the_memory_lowers_its_loss_and_leaves_the_network_alone():
    learner = two_segments()
    before = {name: w.detach().clone() for name, w in learner.network.named_parameters()}
    past = learner.episodes.finished[0]
    tuned = learner.tuned()
    assert all(torch.equal(w, before[name]) for name, w in learner.network.named_parameters())
    losses = [F.cross_entropy(torch.func.functional_call(learner.network, w, (past.x,)), past.y) for w in (before, tuned)]
    assert losses[1] < losses[0]


def test_the_change_at_the_anchors_by_hand_and_its_gradient_by_differences():
    learner = two_segments(lookahead_rate=0.2)
    network = learner.network.double()
    learner.anchors = Stored(learner.anchors.x.double(), learner.anchors.y)
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 3, dtype=torch.float64, generator=random), torch.tensor([2, 3, 2, 3, 2])

    def change():
        return learner.change_at_anchors(F.cross_entropy(network(x), y))

    value = change()
    slope = torch.autograd.grad(value, network.head.bias)[0][2]
    with torch.no_grad():
        at_anchors = network(learner.anchors.x)
    slopes = torch.autograd.grad(F.cross_entropy(network(x), y), list(network.parameters()))
    with torch.no_grad():
        for parameter, g in zip(network.parameters(), slopes, strict=True):
            parameter.sub_(0.2 * g)
        expected = ((network(learner.anchors.x) - at_anchors) ** 2).sum(1).mean()
        for parameter, g in zip(network.parameters(), slopes, strict=True):
            parameter.add_(0.2 * g)
    torch.testing.assert_close(value, expected)
    both = []
    for shift in (1e-5, -2e-5):
        with torch.no_grad():
            network.head.bias[2] += shift
        both.append(change().item())
    # one weight's derivative, the look-ahead's own included: head.bias cancels between the two answers but for the look-ahead
    assert slope.item() == pytest.approx((both[0] - both[1]) / 2e-5, rel=1e-4)


def test_the_running_mean_of_the_embedding():
    learner = create("hal", Problem((2,), 3), seed=1, hidden=(4,), decay=0.75, learning_rate=1e-12)
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 2, 0])
    with torch.no_grad():
        embedded = learner.embed(x)
    learner.observe(x, y)
    torch.testing.assert_close(learner.class_means[0], 0.25 * (embedded[0] + embedded[2]) / 2)
    torch.testing.assert_close(learner.class_means[2], 0.25 * embedded[1])
    assert (learner.class_means[1] == 0).all()
    learner.observe(x, y)
    torch.testing.assert_close(learner.class_means[2], (0.25 + 0.75 * 0.25) * embedded[1])


def test_in_task_il_only_the_head_of_an_anchors_task_counts():
    learner = two_segments(((0, 1), (2, 3)))
    assert learner.anchors.task.tolist() == [0, 0]
    for head, expected in ((slice(0, 2), 2 * 0.3**2), (slice(2, 4), 0.0)):
        # a cost that is three times the sum of a head's biases: the step of size 0.1 moves each of its two outputs by 0.3
        others = sum(0.0 * w.sum() for w in learner.network.parameters())
        change = learner.change_at_anchors(3 * learner.network.head.bias[head].sum() + others)
        assert change.item() == pytest.approx(expected, abs=1e-6)
    learner.end_task()
    assert learner.anchors.task.tolist() == [0, 0, 1, 1]
    assert learner.anchors.x.isfinite().all()


def test_without_strength_there_are_no_anchors():
    learner = two_segments(strength=0.0)
    learner.end_task()
    assert len(learner.anchors) == 0
    assert learner.memory == "12 examples"
    assert two_segments().memory == "12 examples and one anchor for each class of each task"


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("hal", memory=0)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("hal", scenario, memory=100) < forgotten("naive", scenario) - 0.4


@pytest.mark.parametrize(
    "name", ["strength", "embedding", "decay", "lookahead_rate", "anchor_rate", "tuning_steps", "tuning_batch"]
)
def test_bad_settings_are_named(name):
    with pytest.raises(InputError, match=name):
        create("hal", Problem((2,), 2), **{name: -1})
