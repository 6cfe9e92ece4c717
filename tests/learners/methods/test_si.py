"""Synaptic intelligence."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.learners import create


def batch(seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(8, 3, generator=random), torch.randint(0, 2, (8,), generator=random)


def test_path_integral_of_a_quadratic_loss_is_its_decrease(monkeypatch):
    """L(w) = 1/2 sum_i h_i (w_i - m_i)^2, separable, by tiny steps: omega_i is weight i's own share in the decrease."""
    learner = create("si", Problem((3,), 2), seed=1, hidden=(), damping=0.5, strength=2.0)
    weight = learner.network.head.weight
    curvature = torch.tensor([[1.0, 2.0, 3.0], [0.5, 1.5, 4.0]])
    target = torch.tensor([[0.3, -0.2, 0.1], [0.9, 0.4, -0.7]])

    def own_loss(self, x, y, task):
        return {"loss": (curvature * (weight - target).square()).sum() / 2 + 0 * self.network.head.bias.sum()}

    monkeypatch.setattr("hvcl.learners.gradient.GradientLearner.loss", own_loss)
    learner.optimizer = torch.optim.SGD(learner.network.parameters(), lr=1e-3)
    before = weight.detach().clone()
    for _ in range(300):
        learner.observe(*batch())
    decrease = curvature / 2 * ((before - target).square() - (weight.detach() - target).square())
    torch.testing.assert_close(learner.path["head.weight"], decrease, rtol=5e-3, atol=1e-4)
    moved = (weight.detach() - before).square()
    expected = learner.path["head.weight"] / (moved + 0.5)
    learner.end_task()
    torch.testing.assert_close(learner.penalty.importance["head.weight"], expected.clamp(min=0))
    assert torch.equal(learner.penalty.centre["head.weight"], weight)
    assert (learner.path["head.weight"] == 0).all()


def test_path_takes_the_gradient_without_the_penalty():
    learner = create("si", Problem((3,), 2), seed=1, hidden=(5,), strength=100.0, learning_rate=0.1)
    learner.observe(*batch(0))
    learner.end_task()
    learner.observe(*batch(1))
    before = {name: w.detach().clone() for name, w in learner.network.named_parameters()}
    path = {name: value.clone() for name, value in learner.path.items()}
    cross_entropy = torch.nn.functional.cross_entropy(learner.logits(batch(2)[0], None), batch(2)[1])
    gradients = torch.autograd.grad(cross_entropy, list(learner.network.parameters()))
    terms = learner.observe(*batch(2))
    assert terms["penalty"] > 0
    for (name, weight), gradient in zip(learner.network.named_parameters(), gradients, strict=True):
        expected = path[name] - gradient * (weight - before[name])
        torch.testing.assert_close(learner.path[name], expected, rtol=1e-3, atol=1e-5)


def test_penalty_has_the_paper_s_value():
    learner = create("si", Problem((3,), 2), seed=1, hidden=(5,), strength=3.0, learning_rate=0.1)
    learner.observe(*batch(0))
    learner.end_task()
    old = {name: w.detach().clone() for name, w in learner.network.named_parameters()}
    learner.observe(*batch(1))
    omega = learner.penalty.importance
    expected = sum(3.0 * (omega[n] * (w - old[n]).square()).sum() for n, w in learner.network.named_parameters())
    torch.testing.assert_close(learner.loss(*batch(), None)["penalty"], expected)


def test_importances_add_up_and_do_not_become_negative():
    learner = create("si", Problem((3,), 2), seed=1, hidden=())
    learner.path = {name: torch.full_like(w, 0.2) for name, w in learner.network.named_parameters()}
    learner.end_task()  # nothing has moved: omega / damping
    assert learner.penalty.importance["head.bias"].tolist() == pytest.approx([2.0, 2.0])
    learner.path["head.bias"] = torch.tensor([0.1, -5.0])
    learner.end_task()
    assert learner.penalty.importance["head.bias"].tolist() == pytest.approx([3.0, 0.0])


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="damping"):
        create("si", Problem((3,), 2), damping=0.0)
