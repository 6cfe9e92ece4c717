"""Learning without forgetting."""

import math

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create


def batch(seed=0, labels=(0, 1)):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(8, 3, generator=random), torch.tensor(labels * 4)


def test_distillation_of_known_numbers():
    learner = create("lwf", Problem((3,), 2), seed=1, hidden=())
    learner.old[:] = True
    outputs = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    targets = torch.tensor([[0.0, 2 * math.log(3.0)], [0.0, 0.0]])  # softened by 2: (1/4, 3/4) and (1/2, 1/2)
    first = -(0.25 * math.log(math.e / (1 + math.e)) + 0.75 * math.log(1 / (1 + math.e)))
    assert learner.distillation(outputs, targets).item() == pytest.approx((first + math.log(2)) / 2)


def test_teacher_is_the_network_at_the_boundary_and_frozen():
    learner = create("lwf", Problem((3,), 2), seed=1, hidden=(5,), learning_rate=0.1, dropout=0.5)
    assert "distillation" not in learner.observe(*batch())
    learner.end_task()
    x = batch()[0]
    learner.network.eval()
    before = learner.network(x).detach().clone()
    learner.network.train()
    for seed in range(5):
        assert "distillation" in learner.observe(*batch(seed))
    assert torch.equal(learner.teacher(x), before)
    assert not any(w.requires_grad for w in learner.teacher.parameters())
    assert not torch.equal(learner.network.eval()(x), before)


def test_loss_is_cross_entropy_and_distillation_and_pulls_towards_the_teacher():
    learner = create("lwf", Problem((3,), 2), seed=1, hidden=(), strength=3.0)
    learner.observe(*batch())
    learner.end_task()
    x, y = batch(1)
    terms = learner.loss(x, y, None)
    # at the teacher's own weights the distillation is the entropy of its answers, a minimum
    soft = (learner.network(x) / 2).softmax(1)
    torch.testing.assert_close(terms["distillation"], -(soft * soft.log()).sum(1).mean())
    torch.testing.assert_close(terms["loss"], F.cross_entropy(learner.network(x), y) + 3 * terms["distillation"])
    gradients = torch.autograd.grad(terms["distillation"], list(learner.network.parameters()))
    assert all(gradient.abs().max() < 1e-6 for gradient in gradients)


def test_balance_by_tasks_weighs_each_term_by_the_tasks_it_stands_for():
    learner = create("lwf", Problem((3,), 2), seed=1, hidden=(), strength=4.0, balance="tasks")
    for _ in range(2):
        learner.observe(*batch())
        learner.end_task()
    x, y = batch(1)
    expected = F.cross_entropy(learner.network(x), y) / 3 + 4 * 2 / 3 * learner.loss(x, y, None)["distillation"]
    torch.testing.assert_close(learner.loss(x, y, None)["loss"], expected)
    twin = create("lwf", Problem((3,), 2), seed=2, hidden=(), strength=4.0, balance="tasks")
    twin.load_state_dict(learner.state_dict())
    torch.testing.assert_close(twin.loss(x, y, None)["loss"], expected)
    with pytest.raises(InputError, match="balance"):
        create("lwf", Problem((3,), 2), seed=1, balance="all")


def test_class_il_distils_the_labels_that_were_seen():
    learner = create("lwf", Problem((3,), 6), seed=1, hidden=())
    learner.observe(*batch(0, (0, 1)))
    learner.end_task()
    learner.observe(*batch(1, (2, 3)))
    assert learner.old_heads() == [[0, 1]]
    learner.end_task()
    assert learner.old_heads() == [[0, 1, 2, 3]]


def test_task_il_distils_every_old_head_by_itself():
    learner = create("lwf", Problem((3,), 6, ((0, 1), (2, 3), (4, 5))), seed=1, hidden=())
    for task, labels in enumerate(((0, 1), (2, 3))):
        learner.observe(*batch(task, labels), torch.full((8,), task))
        learner.end_task()
    assert learner.old_heads() == [[0, 1], [2, 3]]
    x, y = batch(2, (4, 5))
    terms = learner.loss(x, y, torch.full((8,), 2))
    expected = sum(
        torch.distributions.Categorical(logits=learner.teacher(x)[:, head] / 2).entropy().mean() for head in ([0, 1], [2, 3])
    )
    torch.testing.assert_close(terms["distillation"], expected)
    assert terms["loss"].isfinite()


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"temperature": 0.0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("lwf", Problem((3,), 2), **settings)
