"""What the gates know, against entropies computed directly from the gates' weights, in bits."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hvcl.core.problem import Problem
from hvcl.evaluation import GateMeter, evaluate
from hvcl.layers import MoVELinear
from hvcl.learners import create
from hvcl.learners.gradient import GradientLearner
from hvcl.streams.tasks import Examples, TestSet


def set_gate(layer: MoVELinear, weight: list[list[float]], bias: list[float] | None = None) -> None:
    assert layer.gate is not None
    with torch.no_grad():
        layer.gate.weight.copy_(torch.tensor(weight))
        layer.gate.bias.copy_(torch.tensor(bias or [0.0] * len(weight)))


def meter_of(network: nn.Module, tasks: list[Tensor], batch: int = 1000) -> GateMeter:
    meter = GateMeter(network)
    network.eval()
    for x in tasks:
        meter.begin_task()
        for part in x.split(batch):
            network(part)
            meter.record()
    return meter


def bits(p: np.ndarray) -> float:
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def test_a_gate_that_knows_the_task_has_one_bit() -> None:
    layer = MoVELinear(1, 2, experts=2)
    set_gate(layer, [[1000.0], [-1000.0]])
    tasks = [torch.ones(30, 1), -torch.ones(30, 1)]
    ((name, known),) = meter_of(layer, tasks).measure(seen=2).items()
    assert name == ""
    assert known.marginal_entropy == pytest.approx(1.0)
    assert known.conditional_entropy == pytest.approx(0.0, abs=1e-12)
    assert known.information == pytest.approx(1.0)
    assert known.usage == known.routed == [[1.0, 0.0], [0.0, 1.0]]
    of_first = meter_of(layer, tasks).measure(seen=1)[""]
    assert of_first.marginal_entropy == pytest.approx(0.0, abs=1e-12)
    assert of_first.information == 0.0
    assert of_first.usage == known.usage, "usage is told for every task, seen or not"


def test_a_gate_that_knows_nothing_has_none() -> None:
    layer = MoVELinear(3, 2, experts=4)
    set_gate(layer, [[0.0] * 3] * 4)
    known = meter_of(layer, [torch.randn(20, 3), torch.randn(7, 3)]).measure(seen=2)[""]
    assert known.marginal_entropy == pytest.approx(2.0)
    assert known.conditional_entropy == pytest.approx(2.0)
    assert known.information == pytest.approx(0.0, abs=1e-6)
    assert known.information >= 0
    np.testing.assert_allclose(known.usage, np.full((2, 4), 0.25))


def test_tasks_weigh_by_their_examples() -> None:
    layer = MoVELinear(1, 2, experts=2)
    set_gate(layer, [[1000.0], [-1000.0]])
    known = meter_of(layer, [torch.ones(30, 1), -torch.ones(10, 1)]).measure(seen=2)[""]
    assert known.marginal_entropy == pytest.approx(bits(np.array([0.75, 0.25])))


def test_a_soft_gate_by_hand() -> None:
    # one input feature x: p(first) = sigmoid(2x); x = 0 gives (1/2, 1/2), x = ln(3)/2 gives (3/4, 1/4)
    layer = MoVELinear(1, 2, experts=2)
    set_gate(layer, [[1.0], [-1.0]])
    known = meter_of(layer, [torch.tensor([[0.0], [np.log(3) / 2]]).float()]).measure(seen=1)[""]
    quarter = bits(np.array([0.75, 0.25]))
    assert known.conditional_entropy == pytest.approx((1.0 + quarter) / 2, rel=1e-6)
    assert known.marginal_entropy == pytest.approx(bits(np.array([0.625, 0.375])), rel=1e-6)
    assert known.information == pytest.approx(bits(np.array([0.625, 0.375])) - (1.0 + quarter) / 2, rel=1e-5)
    np.testing.assert_allclose(known.usage, [[0.625, 0.375]], rtol=1e-6)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [("first", MoVELinear(4, 6, experts=3)), ("act", nn.LeakyReLU()), ("second", MoVELinear(6, 2, experts=2, top_k=2))]
    net = nn.Sequential(OrderedDict(layers))
    for layer in (net.first, net.second):  # decided gates, so that the entropies differ
        layer.gate.weight.data.mul_(4)
        layer.gate.bias.data.normal_()
    return net


def gate(layer: MoVELinear, x: Tensor) -> np.ndarray:
    """p(m|x) straight from the gate's weights, in double precision."""
    assert layer.gate is not None
    logits = (
        x.detach().double().numpy() @ layer.gate.weight.detach().double().numpy().T + layer.gate.bias.detach().double().numpy()
    )
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


class NetworkLearner(GradientLearner):
    def build(self) -> nn.Module:
        return network()


@pytest.mark.parametrize("seen", [0, 1, 2, 3])
def test_evaluate_measures_what_the_weights_say(seen: int) -> None:
    learner = NetworkLearner(Problem((4,), 2), create("naive", Problem((4,), 2), 0).config, seed=0)  # type: ignore[attr-defined]
    net = learner.network
    tasks = [
        torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) + shift for n, shift in ((1300, -1), (40, 0), (400, 2))
    ]
    tests = [TestSet(f"{i}", Examples(x, torch.zeros(len(x)).long(), torch.arange(len(x))), None) for i, x in enumerate(tasks)]
    measured = evaluate(learner, tests, seen).layers
    assert list(measured) == ["first", "second"]
    net.eval()
    for name, known in measured.items():
        layer = net.get_submodule(name)
        inputs = tasks if name == "first" else [net.act(net.first(x)) for x in tasks]  # type: ignore[union-attr, operator]
        p = [gate(layer, x) for x in inputs]  # type: ignore[arg-type]
        all_seen = np.concatenate(p[: seen or 3])
        conditional = float(np.mean([bits(row) for row in all_seen]))
        assert known.marginal_entropy == pytest.approx(bits(all_seen.mean(0)), rel=1e-5)
        assert known.conditional_entropy == pytest.approx(conditional, rel=1e-5)
        assert known.information == pytest.approx(bits(all_seen.mean(0)) - conditional, abs=1e-5)
        assert 0.01 < known.information < np.log2(layer.experts)
        np.testing.assert_allclose(known.usage, [q.mean(0) for q in p], rtol=1e-4, atol=1e-7)
        chosen = [np.bincount(q.argmax(1), minlength=q.shape[1]) / len(q) for q in p]
        np.testing.assert_allclose(known.routed, chosen, atol=1e-3)  # a tie in single precision may fall to either side


def test_batches_make_no_difference() -> None:
    net, tasks = network(), [torch.randn(50, 4), torch.randn(30, 4) + 1]
    whole, parts = (meter_of(net, tasks, batch).measure(seen=2) for batch in (50, 7))
    for name in ("first", "second"):
        assert whole[name].information == pytest.approx(parts[name].information, abs=1e-6)
        np.testing.assert_allclose(whole[name].usage, parts[name].usage, atol=1e-6)
        np.testing.assert_allclose(whole[name].routed, parts[name].routed, atol=1e-9)


def test_one_expert_serves_everything_and_knows_nothing() -> None:
    net = nn.Sequential(MoVELinear(4, 3, experts=1), MoVELinear(3, 2, experts=2))
    alone, pair = meter_of(net, [torch.randn(20, 4), torch.randn(5, 4)], batch=6).measure(seen=2).values()
    assert (alone.marginal_entropy, alone.conditional_entropy, alone.information) == (0.0, 0.0, 0.0)
    assert alone.usage == alone.routed == [[1.0], [1.0]]
    assert len(pair.usage[0]) == 2


def test_networks_without_experts_have_nothing_to_measure() -> None:
    for plain in (None, nn.Sequential(nn.Linear(4, 3), nn.ReLU())):
        meter = GateMeter(plain)
        meter.begin_task()
        meter.record()
        assert meter.measure(seen=1) == {}


def own_meter(tasks: list[list[Tensor]], network: nn.Module | None = None) -> GateMeter:
    """Of a learner with experts of its own: for each task, p(m|x) batch by batch."""
    meter = GateMeter(network)
    for batches in tasks:
        meter.begin_task()
        for p in batches:
            meter.record(p)
    return meter


def test_experts_of_the_learner_itself_are_measured_like_a_layer() -> None:
    sure, half = torch.eye(3)[[0, 0]], torch.tensor([[0.5, 0.0, 0.5]])
    known = own_meter([[sure], [half, half]]).measure(seen=2)
    assert list(known) == ["gate"]
    assert known["gate"].usage == [[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]]
    assert known["gate"].routed == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert known["gate"].marginal_entropy == pytest.approx(bits(np.array([0.75, 0.25])))
    assert known["gate"].conditional_entropy == pytest.approx(0.5)
    assert known["gate"].information == pytest.approx(bits(np.array([0.75, 0.25])) - 0.5)


def test_the_number_of_own_experts_may_differ_from_batch_to_batch() -> None:
    known = own_meter([[torch.ones(3, 1)], [torch.eye(4)[[3]], torch.eye(2)[[1]]]]).measure(seen=1)["gate"]
    assert known.usage == known.routed == [[1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.5]]
    assert known.marginal_entropy == known.information == 0.0, "only the first task was seen"


def test_own_experts_stand_beside_the_layers() -> None:
    layer = nn.Sequential(OrderedDict(inner=MoVELinear(2, 2, experts=2)))
    layer(torch.randn(4, 2))
    assert list(own_meter([[torch.eye(2)]], layer).measure(seen=1)) == ["inner", "gate"]


def test_own_experts_that_have_learned_nothing_are_left_out() -> None:
    meter = own_meter([[], []])
    meter.record(None)
    assert meter.measure(seen=2) == {}
    assert GateMeter(None).measure(seen=0) == {}


@pytest.mark.parametrize("method", ["exact", "hvcl-growing"])
def test_evaluate_measures_the_learners_own_experts(method: str) -> None:
    settings = {"random_features": 50} if method == "exact" else {"hidden": (8,)}
    learner = create(method, Problem((4,), 2), 1, warmup=64, **settings)
    random = torch.Generator().manual_seed(0)
    tasks = [torch.randn(1500, 4, generator=random) + shift for shift in (-20.0, 0.0, 20.0)]
    tests = [TestSet(f"{i}", Examples(x, (x[:, 0] > x.mean()).long(), torch.arange(len(x))), None) for i, x in enumerate(tasks)]
    before = evaluate(learner, tests, seen=0).layers
    assert all(len(row) == 1 for layer in before.values() for row in layer.usage), "one expert at most"
    for task, test in enumerate(tests):
        for x, y, _ in test.batches():
            learner.observe(x, y)
        known = evaluate(learner, tests, seen=task + 1).layers["gate"]
        assert len(known.usage) == 3
        assert {len(row) for row in known.usage + known.routed} == {task + 1}
        np.testing.assert_allclose(np.sum(known.usage, 1), 1, atol=1e-5)
    assert known.information == pytest.approx(np.log2(3), abs=0.1)
    assert np.diag(known.routed).min() > 0.95


def test_measurements_are_plain_json() -> None:
    known = meter_of(network(), [torch.randn(20, 4)]).measure(seen=1)["first"]
    document = json.loads(json.dumps(known.to_json(), allow_nan=False))
    assert set(document) == {"marginal_entropy", "conditional_entropy", "information", "usage", "routed"}
    assert document["information"] == known.information
    assert document["usage"] == known.usage
