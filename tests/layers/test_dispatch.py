from __future__ import annotations

import math

import pytest
import torch

from hvcl.layers import MoVELinear
from hvcl.layers.dispatch import Segment, route

ROUTINGS = pytest.mark.parametrize("routing", ["argmax", "sample", "straight-through"])


def log_probabilities(rows: int, experts: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return (2 * torch.randn(rows, experts, dtype=torch.float64)).log_softmax(1)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
@ROUTINGS
class TestPlan:
    def plan(self, top_k, routing):
        return route(log_probabilities(9, 4).unsqueeze(0), top_k, routing, True)

    def test_every_row_has_k_slots_each_in_its_experts_segment(self, top_k, routing):
        plan = self.plan(top_k, routing)
        assert [s.start for s in plan.segments] == [0, *(s.stop for s in plan.segments[:-1])]
        assert [s.expert for s in plan.segments] == sorted({s.expert for s in plan.segments})
        assert all(s.stop > s.start for s in plan.segments)
        assert plan.segments[-1].stop == 9 * top_k
        rows = plan.gather(torch.arange(9.0).unsqueeze(1)).flatten().tolist()
        for segment in plan.segments:
            of_one_expert = rows[segment.start : segment.stop]
            assert of_one_expert == sorted(set(of_one_expert))  # no row twice with one expert
        assert sorted(rows) == sorted([*range(9)] * top_k)

    def test_weights_sum_to_one_and_follow_p(self, top_k, routing):
        log_p = log_probabilities(9, 4)
        plan = self.plan(top_k, routing)
        rows = plan.gather(torch.arange(9.0).unsqueeze(1)).flatten().long().tolist()
        experts = [s.expert for s in plan.segments for _ in range(s.start, s.stop)]
        mass = {b: sum(log_p[b, m].exp().item() for m, c in zip(experts, rows, strict=True) if c == b) for b in range(9)}
        for weight, m, b in zip(plan.weights.tolist(), experts, rows, strict=True):
            p = log_p[b, m].exp().item()
            expected = p / mass[b] if top_k > 1 else p if routing == "argmax" else 1.0
            assert weight == pytest.approx(expected, rel=1e-12)

    def test_combine_after_gather_is_the_weighted_identity(self, top_k, routing):
        plan = self.plan(top_k, routing)
        x = torch.randn(9, 3, 2, dtype=torch.float64)
        total = plan.combine(torch.ones(9 * top_k, 1, dtype=torch.float64))
        torch.testing.assert_close(plan.combine(plan.gather(x)), total.unsqueeze(2) * x)

    def test_gather_and_combine_are_adjoint(self, top_k, routing):
        plan = self.plan(top_k, routing)
        x = torch.randn(9, 3, dtype=torch.float64)
        y = torch.randn(9 * top_k, 3, dtype=torch.float64)
        torch.testing.assert_close((plan.weights.unsqueeze(1) * plan.gather(x) * y).sum(), (x * plan.combine(y)).sum())

    def test_gradients(self, top_k, routing):
        plan = self.plan(top_k, routing)
        assert torch.autograd.gradcheck(plan.gather, torch.randn(9, 3, dtype=torch.float64, requires_grad=True))
        assert torch.autograd.gradcheck(plan.combine, torch.randn(9 * top_k, 3, dtype=torch.float64, requires_grad=True))

    def test_weights_carry_gradients_to_the_gate(self, top_k, routing):
        log_p = log_probabilities(9, 4).requires_grad_()
        plan = route(log_p.unsqueeze(0), top_k, routing, True)
        (plan.combine(torch.randn(9 * top_k, 1, dtype=torch.float64))).sum().backward()
        assert (log_p.grad.abs().sum(1) > 1e-6).all()


class TestRoute:
    def test_argmax_takes_the_most_probable(self):
        log_p = log_probabilities(20, 5)
        for k in (1, 2, 3):
            plan = route(log_p.unsqueeze(0), k, "argmax", True)
            rows = plan.gather(torch.arange(20.0).unsqueeze(1)).flatten().long().tolist()
            experts = [s.expert for s in plan.segments for _ in range(s.start, s.stop)]
            chosen = {b: {m for m, c in zip(experts, rows, strict=True) if c == b} for b in range(20)}
            assert chosen == {b: set(log_p[b].argsort(descending=True)[:k].tolist()) for b in range(20)}

    def test_one_expert_for_all_moves_nothing(self):
        log_p = torch.tensor([0.1, 0.8, 0.1]).log().expand(6, 3)
        plan = route(log_p.unsqueeze(0), 1, "argmax", True)
        assert plan.segments == [Segment(1, 0, 6)]
        x = torch.randn(6, 2)
        assert plan.gather(x) is x
        torch.testing.assert_close(plan.combine(x), 0.8 * x)

    @ROUTINGS
    @pytest.mark.parametrize("top_k", [1, 2, 3])
    def test_an_empty_batch_has_no_segments(self, routing, top_k):
        plan = route(torch.zeros(1, 0, 3), top_k, routing, True)
        assert plan.segments == []
        assert plan.weights.shape == (0,)

    def test_sampled_choices_have_the_gates_frequencies(self):
        """30,000 rows with one gate: chi-square with 3 degrees of freedom below 16.3 (p = 0.001)."""
        p = torch.tensor([0.5, 0.3, 0.15, 0.05])
        torch.manual_seed(0)
        plan = route(p.log().expand(1, 30_000, 4), 1, "sample", True)
        observed = torch.tensor([float(s.stop - s.start) for s in plan.segments])
        assert ((observed - 30_000 * p) ** 2 / (30_000 * p)).sum() < 16.3

    def test_sampled_pairs_are_drawn_without_replacement(self):
        """P({i, j}) = p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j); 30,000 rows, chi-square with 2 degrees of freedom < 13.8."""
        p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
        torch.manual_seed(1)
        plan = route(p.log().expand(1, 30_000, 3), 2, "sample", True)
        present = torch.zeros(30_000, 3)
        rows = plan.gather(torch.arange(30_000).unsqueeze(1)).flatten()
        for segment in plan.segments:
            present[rows[segment.start : segment.stop], segment.expert] = 1
        assert (present.sum(1) == 2).all()
        missing = (1 - present).sum(0)
        probability = torch.tensor(
            [
                sum(p[a] * p[b] / (1 - p[a]) for a, b in ((i, j), (j, i))).item()
                for i, j in ((1, 2), (0, 2), (0, 1))  # the pair without expert 0, 1, 2
            ]
        )
        assert ((missing - 30_000 * probability) ** 2 / (30_000 * probability)).sum() < 13.8

    @pytest.mark.parametrize("top_k", [1, 2])
    def test_sampling_is_for_training_only(self, top_k):
        log_p = log_probabilities(50, 4)
        drawn, best = route(log_p.unsqueeze(0), top_k, "sample", False), route(log_p.unsqueeze(0), top_k, "argmax", False)
        assert drawn.segments == best.segments
        assert torch.equal(drawn.slots, best.slots)
        assert route(log_p.unsqueeze(0), top_k, "sample", True).segments != best.segments


class TestGateGradientOfDrawnExperts:
    """`routing="sample"`, k = 1: weight p / p.detach() on the answer of the drawn expert."""

    def gradients(self, loss, draws: int = 40_000):
        """(mean over draws, its standard error, exact gradient of the expected loss) with respect to the gate's bias."""
        torch.manual_seed(0)
        layer = MoVELinear(2, 2, experts=3, routing="sample", estimator="mean", dtype=torch.float64)
        with torch.no_grad():
            layer.gate.weight.normal_()
            layer.bias.normal_()
        x = torch.tensor([[0.7, -1.2]], dtype=torch.float64)
        # one row per draw, each with its own copy of the logits' gradient
        layer.gate.register_forward_hook(lambda _m, _i, out: out.retain_grad() or out)
        values = loss(layer(x.expand(draws, 2)))
        values.sum().backward()
        by_log_p = layer._trace.log_p.grad[0]
        p = layer.gate_log_probabilities[0].detach().exp()
        per_draw = by_log_p - by_log_p.sum(1, keepdim=True) * p  # through the log-softmax, to the logits
        torch.testing.assert_close(per_draw.sum(0), layer.gate.bias.grad, rtol=1e-8, atol=1e-8)

        logits = p.log().clone().requires_grad_()
        answers = torch.cat([x @ layer.posterior.mean[m] + layer.bias[m] for m in range(3)]).detach()
        expected_loss = (logits.softmax(0) * loss(answers)).sum()
        (exact,) = torch.autograd.grad(expected_loss, logits)
        return per_draw.mean(0), per_draw.std(0) / math.sqrt(draws), exact

    def test_is_unbiased_for_a_loss_that_is_linear_in_the_answer(self):
        """40,000 draws, |z| < 4.5."""
        mean, error, exact = self.gradients(lambda y: y @ torch.tensor([1.5, -0.4], dtype=torch.float64))
        assert exact.abs().max() > 20 * error.max()  # the test can tell the gradient from zero
        assert ((mean - exact) / error).abs().max() < 4.5

    def test_is_the_first_order_gradient_for_any_other_loss(self):
        """A draw sees L'(y) y in place of L(y): for a loss that is not linear, this is not the score-function gradient."""
        mean, error, exact = self.gradients(lambda y: (y - 1).square().sum(1))
        assert ((mean - exact) / error).abs().max() > 10
        first_order, error, linearised = self.gradients(
            lambda y: ((y.detach() - 1).mul(2) * y).sum(1)  # dL/dy frozen at the answer: linear in y
        )
        torch.testing.assert_close(first_order, mean, rtol=1e-8, atol=1e-10)
        assert ((first_order - linearised) / error).abs().max() < 4.5
