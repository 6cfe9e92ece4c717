"""Continual unsupervised representation learning: components that are labels, or are found; replay from a snapshot."""

import copy
import math

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.evaluation import Generates
from hvcl.learners import create
from hvcl.learners.methods import curl as module
from hvcl.runs import run
from hvcl.streams import make_stream

SMALL = {"hidden": (16,), "learning_rate": 0.01, "latent": 3, "likelihood": "gaussian"}
FOUND = SMALL | {"supervised": False, "components": 4, "threshold": -8.0, "buffer": 20, "wait": 30}
CENTRES = torch.tensor([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4]])


def problem(outputs=4, heads=None, tasks=2):
    return Problem((4,), outputs, heads, (40,) * tasks, (5,) * tasks)


def cluster(number, n=16, seed=0):
    """Examples of one of four groups, far apart."""
    random = torch.Generator().manual_seed(100 * number + seed)
    return CENTRES[number] + 0.2 * torch.randn(n, 4, generator=random), torch.full((n,), number)


def mixed(numbers, seed=0):
    parts = [cluster(number, 8, seed) for number in numbers]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def test_the_supervised_loss_is_the_evidence_of_the_labels_component_and_the_cross_entropy():
    learner = create("curl", problem(), seed=1, **SMALL)
    learner.observe(*mixed([0, 2]))
    assert learner.network.numbers.tolist() == [0, 2]
    x, y = mixed([2, 0], seed=3)
    torch.manual_seed(5)
    found = learner.loss(x, y, None)
    network = learner.network
    torch.manual_seed(5)
    features = network.features(x)
    log_q = network.classify(features)[:, [0, 2]].log_softmax(1)
    expected = network.evidence(features, x, y.unsqueeze(1)).mean() + log_q[torch.arange(16), y // 2].mean()
    assert found["loss"].item() == pytest.approx(-expected.item(), rel=1e-5)


def test_what_is_generated_counts_as_much_as_the_batch_and_has_its_component_for_a_label():
    learner = create("curl", problem(), seed=1, **SMALL)
    for step in range(4):
        learner.observe(*mixed([0, 1], step))
    learner.end_task()
    learner.observe(*mixed([2, 3]))
    old, _ = mixed([0, 1], 9)
    component = torch.tensor([0] * 8 + [1] * 8)
    losses = []
    for replayed in (None, (old, component)):
        learner.replayed = replayed
        with torch.no_grad():
            learner.network.heads.weight.view(4, 2, 3, -1)[:, 1] = 0.0
            learner.network.heads.bias.view(4, 2, 3)[:, 1] = -20.0  # a draw is the mean
            losses.append(learner.loss(*mixed([2, 3], 4), None)["loss"].item())
    learner.replayed = None
    with torch.no_grad():
        alone = learner.loss(old, component, None)["loss"].item()
    assert losses[1] == pytest.approx(0.5 * losses[0] + 0.5 * alone, rel=1e-4)


def test_nothing_is_replayed_before_the_first_snapshot_and_then_what_came_before_it():
    learner = create("curl", problem(), seed=1, **SMALL)
    learner.end_task()
    assert learner.snapshot is None
    for step in range(3):
        learner.observe(*mixed([0, 1], step))
    assert learner.snapshot is None
    learner.end_task()
    before = copy.deepcopy(learner.snapshot.state_dict())
    for step in range(3):
        learner.observe(*mixed([2, 3], step))
    assert all(torch.equal(before[name], value) for name, value in learner.snapshot.state_dict().items())
    assert set(learner.snapshot.sample(50)[1].tolist()) == {0, 1}
    assert learner.network.prior.examples.tolist() == [24.0] * 4, "what is generated is not counted"


@pytest.mark.parametrize(
    ("settings", "told", "expected"),
    [
        ({}, True, [5]),
        ({}, False, [4, 8]),  # the period of a stream without boundaries, made short here
        ({"period": 3}, True, [3, 6, 9]),
        ({"period": 3}, False, [3, 6, 9]),
        ({"snapshot": "dynamic"}, True, [5]),  # where new labels begin
        ({"snapshot": "dynamic"}, False, [5]),
    ],
)
def test_when_snapshots_are_taken(monkeypatch, settings, told, expected):
    monkeypatch.setattr(module, "PERIOD", 4)
    learner = create("curl", problem() if told else Problem((4,), 4), seed=1, **SMALL, **settings)
    taken = []
    monkeypatch.setattr(learner, "take_snapshot", lambda: taken.append(learner.steps))
    for step in range(10):
        if step == 5:
            learner.end_task()
        learner.observe(*mixed([0, 1] if step < 5 else [2, 3], step))
    assert taken == expected


def test_labels_that_have_not_occurred_are_not_predicted_and_heads_are_kept_apart():
    learner = create("curl", problem(), seed=1, **SMALL)
    x, y = mixed([0, 1])
    assert learner.predict(x).min() > 0
    learner.observe(x, y)
    assert (learner.predict(x)[:, 2:] == 0).all()
    aware = create("curl", problem(heads=((0, 1), (2, 3))), seed=1, **SMALL)
    aware.observe(x, y, torch.zeros_like(y))
    second = aware.predict(x, torch.ones_like(y))
    assert (second[:, :2] == 0).all()
    assert second[:, 2:].min() > 0
    assert aware.heads_of(torch.arange(4)).tolist() == [0, 0, 1, 1]


def test_poorly_explained_examples_make_a_component_from_that_they_are_assigned_to():
    learner = create("curl", problem(), seed=1, **FOUND)
    assert learner.memory == "20 examples"
    for step in range(80):
        learner.observe(*cluster(0, seed=step))
    assert learner.network.numbers.tolist() == [0], "what is explained makes none"
    assert len(learner.poor) == 0
    x, y = cluster(1, 12)
    assert learner.observe(x, y)["components"] == 1
    assert torch.equal(learner.poor, x), "twelve are not enough"
    before = copy.deepcopy(learner.network.state_dict())
    learner.loss(x, y, None)
    learner.poor = torch.cat([learner.poor, cluster(1, 8, 5)[0]])
    with learner.random.active():
        features = learner.network.features(learner.poor)
        new = torch.ones(20, 1, dtype=torch.long)
        learner.network.use(1, like=0)
        poorly = learner.network.evidence(features, learner.poor, new).mean()
        learner.network.load_state_dict(before)
        learner.expand()
        better = learner.network.evidence(features, learner.poor, new).mean()
    assert learner.network.numbers.tolist() == [0, 1]
    assert better > poorly
    after = learner.network.state_dict()
    unchanged = {name for name, value in after.items() if torch.equal(before[name], value)}
    assert {name for name in after if name.startswith(("encoder", "decoder", "likelihood"))} <= unchanged
    assert torch.equal(after["prior.mean"][0], before["prior.mean"][0]), "only the new component learned"
    assert torch.equal(after["heads.weight"].view(4, -1)[[0, 2, 3]], before["heads.weight"].view(4, -1)[[0, 2, 3]])
    assert not torch.equal(after["prior.mean"][1], before["prior.mean"][0])
    posterior = learner.network.log_posterior(features).exp().mean(0)
    assert posterior[1] > posterior[0]


def test_components_that_are_found_are_named_by_the_labels_of_the_stream_and_predict_by_their_names():
    """q(y|x) is set by hand: the component of a group is its number. Labels are the group's number, the other way round."""
    learner = create("curl", problem(), seed=1, **(FOUND | {"hidden": (), "learning_rate": 1e-9, "threshold": -1e9}))
    x, group = mixed([0, 1, 2])
    assert torch.allclose(learner.predict(x), torch.full((24, 4), 0.25)), "nothing has a name yet"
    with torch.no_grad():
        for component in range(1, 4):
            learner.network.use(component)
        learner.network.classify.weight.copy_(CENTRES)
        learner.network.classify.bias.zero_()
    learner.observe(x, 3 - group)
    assert learner.names[:3].argmax(1).tolist() == [3, 2, 1]
    torch.testing.assert_close(learner.names.sum(1).float(), torch.tensor([8.0, 8, 8, 0]), atol=0.01, rtol=0)
    fresh, group = mixed([2, 0], 5)
    assert torch.equal(learner.predict(fresh).argmax(1), 3 - group)
    assert learner.predict(fresh).max(1).values.min() > 0.99
    torch.testing.assert_close(learner.network.prior.examples, learner.names.sum(1), atol=1e-4, rtol=0)


def test_the_mixture_grows_with_new_groups_and_a_snapshot_keeps_old_ones_explained():
    """Three groups one after another, without labels' help or boundaries. Bounds in nats, after all of them."""
    bounds = {}
    for name, settings in (("replay", {"snapshot": "dynamic"}), ("none", {"period": 10**6})):
        learner = create("curl", Problem((4,), 4), seed=1, **FOUND, **settings)
        grown = []
        for number in range(3):
            for step in range(100):
                learner.observe(*cluster(number, seed=step))
            grown.append(int(learner.network.used.sum()))
        assert grown[0] == 1
        assert grown[0] < grown[1] <= grown[2]
        x, _ = cluster(0, 100, 999)
        torch.manual_seed(0)
        features = learner.network.features(x)
        bounds[name] = learner.network.bound(features, x, learner.network.log_posterior(features)).mean().item()
    assert bounds["replay"] > -8
    assert bounds["none"] < bounds["replay"] - 10


def test_labels_teach_an_unsupervised_network_nothing():
    one, two = (create("curl", problem(), seed=1, **FOUND) for _ in range(2))
    for step in range(3):
        x, y = mixed([0, 1], step)
        assert one.observe(x, y) == two.observe(x, 3 - y)
    assert all(torch.equal(a, b) for a, b in zip(one.network.parameters(), two.network.parameters(), strict=True))


def test_a_component_means_the_label_that_most_of_its_examples_have_within_the_head():
    heads = ((0, 1), (2, 3))
    learner = create("curl", problem(heads=heads), seed=1, **FOUND)
    learner.names[:3] = torch.tensor([[5.0, 1, 0, 2], [0, 0, 3, 4], [0, 0, 0, 0]])
    every, second = torch.ones(4, dtype=torch.bool), torch.tensor([False, False, True, True])
    assert learner.meanings(every)[:3].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0.25] * 4]
    assert learner.meanings(second)[:3].tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0.5, 0.5]]
    assert learner.heads_of(torch.tensor([0, 1])).tolist() == [0, 1]
    q = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    learner.names.zero_()
    learner.name(q, torch.tensor([2]))
    torch.testing.assert_close(learner.names[:, 2], q[0].double())
    learner.name(torch.tensor([[1.0, 0, 0, 0]]).expand(3, 4), torch.tensor([0, 0, 2]))
    assert learner.names[0].tolist() == pytest.approx([2.0, 0.0, 1.5, 0.0])


def test_an_unsupervised_learner_goes_on_from_its_state_across_an_expansion():
    learner = create("curl", problem(), seed=1, **FOUND)
    for step in range(80):
        learner.observe(*cluster(0, seed=step))
    learner.observe(*cluster(1, 12))
    resumed = create("curl", problem(), seed=9, **FOUND)
    resumed.load_state_dict(copied(learner.state_dict()))
    for step in range(3):
        assert learner.observe(*cluster(1, seed=step)) == resumed.observe(*cluster(1, seed=step))
    assert int(learner.network.used.sum()) == 2


def test_it_generates_and_says_from_which_component():
    learner = create("curl", problem(), seed=1, **SMALL)
    assert isinstance(learner, Generates)
    with pytest.raises(InputError, match="no example"):
        learner.generate(3, seed=0)
    for step in range(3):
        learner.observe(*mixed([0, 1], step))
    made, heads = learner.generate(200, seed=0)
    assert heads is None
    assert set(made.expert.tolist()) == {0, 1}
    answers, features = learner.judge(made.x, None)
    assert answers.shape == (200, 4)
    assert features.shape == (200, 16)
    assert learner.reconstruct(made.x).shape == made.x.shape
    assert math.isfinite(float(answers.sum()))


def test_class_il_keeps_what_naive_training_loses():
    """Ten digits, two at a time. The bound leaves room; naive training ends at about 0.2."""
    stream = make_stream("split-digits", seed=1, scenario="class", epochs=20)
    learner = create("curl", stream.problem, seed=1, hidden=(64, 64), learning_rate=2e-3, latent=16)
    assert learner.memory == "none"
    assert run(stream, learner).average_accuracy > 0.7


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"latent": 0}, "latent"),
        ({"components": 0}, "components"),
        ({"buffer": 0}, "buffer"),
        ({"wait": -1}, "wait"),
        ({"period": -1}, "period"),
        ({"dropout": 0.1}, "no dropout"),
        ({"snapshot": "never"}, "snapshot"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(InputError, match=words):
        create("curl", problem(), **settings)
