"""Elastic weight consolidation."""

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create

PROBLEM = Problem((3,), 4, task_examples=(8, 8))


def batch(seed=0, n=8, classes=4):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=random), torch.randint(0, classes, (n,), generator=random)


def by_hand(learner, x, y, labels, task=None):
    """The diagonal Fisher with one backward pass for each example and label."""
    network = learner.network
    fisher = {name: torch.zeros_like(w) for name, w in network.named_parameters()}
    for i in range(len(x)):
        log_p = learner.logits(x[i : i + 1], None if task is None else task[i : i + 1]).log_softmax(1)[0]
        for label in range(len(log_p)) if labels == "exact" else [int(y[i])]:
            weight = log_p[label].exp().item() if labels == "exact" else 1.0
            if weight == 0:
                continue
            gradients = torch.autograd.grad(log_p[label], list(network.parameters()), retain_graph=True)
            for name, gradient in zip(fisher, gradients, strict=True):
                fisher[name] += weight * gradient.square() / len(x)
    return fisher


def test_fisher_of_a_linear_softmax_model_is_the_closed_form():
    learner = create("ewc", PROBLEM, seed=1, hidden=())
    x, y = batch()
    p = learner.predict(x)
    learner.observe(x, y)
    with torch.no_grad():  # back to where p was measured
        learner.network.load_state_dict(create("ewc", PROBLEM, seed=1, hidden=()).network.state_dict())
    learner.end_task()
    # d log p(y|x) / dW_ki = (1[y = k] - p_k) x_i, whose second moment under y ~ p is p_k (1 - p_k) x_i^2
    spread = p * (1 - p)
    torch.testing.assert_close(learner.penalty.importance["head.weight"], spread.T @ x.square() / 8)
    torch.testing.assert_close(learner.penalty.importance["head.bias"], spread.mean(0))


@pytest.mark.parametrize("labels", ["exact", "empirical"])
@pytest.mark.parametrize("settings", [{"hidden": (5,)}, {"hidden": (), "channels": (2,)}])
def test_fisher_is_that_of_single_examples(labels, settings):
    shape = (1, 4, 4) if "channels" in settings else (3,)
    learner = create("ewc", Problem(shape, 4, task_examples=(8,)), seed=1, fisher=labels, **settings)
    x, y = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0)), batch()[1]
    learner.observe(x, y)
    expected = by_hand(learner, x, y, labels)
    learner.end_task()
    for name, fisher in expected.items():
        torch.testing.assert_close(learner.penalty.importance[name], fisher, rtol=1e-4, atol=1e-7)


def test_sampled_labels_agree_with_the_expectation_on_average():
    settings = {"seed": 1, "hidden": ()}
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, generator=random).expand(4000, 3)
    y = torch.zeros(4000, dtype=torch.long)
    found = []
    for labels in ("exact", "sampled"):
        learner = create("ewc", Problem((3,), 4, task_examples=(4000,)), fisher=labels, **settings)
        learner.observe(x, y)
        learner.end_task()
        found.append(learner.penalty.importance["head.weight"])
    torch.testing.assert_close(found[1], found[0], rtol=0.15, atol=1e-3)


def test_task_il_leaves_other_heads_free():
    problem = Problem((3,), 4, ((0, 1), (2, 3)), task_examples=(8, 8))
    learner = create("ewc", problem, seed=1, hidden=(5,))
    x, y = batch(classes=2)
    task = torch.zeros(8, dtype=torch.long)
    learner.observe(x, y, task)
    expected = by_hand(learner, x, y, "exact", task)
    learner.end_task()
    assert (learner.penalty.importance["head.weight"][2:] == 0).all()
    assert (learner.penalty.importance["head.weight"][:2] > 0).any()
    torch.testing.assert_close(learner.penalty.importance, expected, rtol=1e-4, atol=1e-7)
    terms = learner.observe(x, y + 2, task + 1)
    assert 0 <= terms["penalty"] < float("inf")


def test_penalties_of_all_tasks_have_the_value_and_the_gradient_of_the_paper():
    learner = create("ewc", Problem((3,), 4, task_examples=(8, 8, 8)), seed=1, hidden=(5,), strength=7.0, learning_rate=0.1)
    anchors = []
    for seed in range(3):
        x, y = batch(seed)
        learner.observe(x, y)
        anchors.append((by_hand(learner, x, y, "exact"), {n: w.detach().clone() for n, w in learner.network.named_parameters()}))
        learner.end_task()
    learner.observe(*batch(9))
    expected = sum(
        3.5 * (fisher[n] * (w - old[n]).square()).sum() for fisher, old in anchors for n, w in learner.network.named_parameters()
    )
    terms = learner.loss(*batch(), None)
    torch.testing.assert_close(terms["penalty"], expected, rtol=1e-4, atol=1e-6)
    parameters = list(learner.network.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(terms["penalty"], parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
    cross_entropy = F.cross_entropy(learner.logits(batch()[0], None), batch()[1])
    torch.testing.assert_close(terms["loss"], cross_entropy + terms["penalty"])


def test_online_keeps_one_decayed_fisher_around_the_latest_weights():
    learner = create("ewc", PROBLEM, seed=1, hidden=(5,), online=True, decay=0.5)
    fishers = []
    for seed in range(2):
        x, y = batch(seed)
        learner.observe(x, y)
        fishers.append(by_hand(learner, x, y, "exact"))
        learner.end_task()
    for name, weight in learner.network.named_parameters():
        expected = 0.5 * fishers[0][name] + fishers[1][name]
        torch.testing.assert_close(learner.penalty.importance[name], expected, rtol=1e-4, atol=1e-7)
        assert torch.equal(learner.penalty.centre[name], weight)


def test_keeps_a_task_s_examples_once_and_drops_them_at_the_boundary():
    learner = create("ewc", PROBLEM, seed=1, hidden=(5,))
    (x, y), parts = batch(), slice(0, 5)
    learner.observe(x[parts], y[parts])
    learner.observe(x[5:], y[5:])
    learner.observe(x, y)  # a second epoch
    assert torch.equal(torch.cat([part["x"] for part in learner.state_dict()["data"]["parts"]]), x)
    learner.end_task()
    assert learner.state_dict()["data"]["parts"] == []
    assert learner.memory == "none"


def test_keeps_nothing_without_boundaries_and_says_what_is_missing():
    learner = create("ewc", Problem((3,), 4), seed=1, hidden=(5,))
    learner.observe(*batch())
    assert learner.state_dict()["data"]["parts"] == []
    with pytest.raises(InputError, match="task_examples"):
        learner.end_task()


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"decay": 1.5}, {"fisher_examples": 0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=r"strength|decay|at least one example"):
        create("ewc", PROBLEM, **settings)
