"""The continual neural Dirichlet process mixture."""

import math

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.learners import create
from hvcl.learners.methods.cn_dpm import answers, bounds
from hvcl.runs import run
from hvcl.streams import make_stream

PROBLEM = Problem((3,), 2)
SMALL = {"hidden": (4,), "latent": 2, "likelihood": "gaussian", "memory": 20, "sleep_steps": 3}


def made(experts=0, problem=PROBLEM, **settings):
    """A learner with so many experts that have not learned anything."""
    learner = create("cn-dpm", problem, seed=1, **(SMALL | settings))
    with learner.random.active():
        for _ in range(experts):
            learner.open()
    learner.counts = torch.ones(experts, dtype=torch.float64)
    return learner


def batch(count=10, seed=0, shape=(3,)):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=random), torch.arange(count) % 2


def answering(learner, *probabilities):
    """Experts, the base measure first, that give these probabilities whatever the input is."""
    with torch.no_grad():
        for expert, p in zip(learner.network, probabilities, strict=True):
            expert.head.weight.zero_()
            expert.head.bias.copy_(torch.tensor(p).log())


def with_evidence(learner, *tables):
    """log p(x|k) of each expert, the base measure first, in place of what the VAEs say."""
    both = torch.tensor(tables).T
    learner.evidence = lambda experts, x: both[:, :1] if experts == learner.base else both[:, 1:]


def routed(learner, rows):
    """Scores of the base measure and the experts, for one batch, and for others nothing but the base measure."""
    left = [torch.tensor(rows)]
    width = 1 + len(learner.experts)
    nothing = torch.tensor([0.0] + [-math.inf] * (width - 1))
    learner.log_joint = lambda x, y: left.pop() if left else nothing.expand(len(x), -1)


def test_shares_are_those_of_the_equation():
    learner = made(2, chill=0.5, log_concentration=math.log(2.0))
    learner.counts = torch.tensor([3.0, 1.0], dtype=torch.float64)
    answering(learner, [0.5, 0.5], [0.8, 0.2], [0.1, 0.9])
    with_evidence(learner, [-2.0, -2.0], [-1.0, -3.0], [-4.0, 0.0])
    found = learner.log_joint(batch(2)[0], torch.tensor([0, 1])).softmax(1)
    # p^(1/T) = p^2, normalised over labels: 16/17 and 1/17, 1/82 and 81/82
    first = torch.tensor([2 * 0.5 * math.exp(-2), 3 * 16 / 17 * math.exp(-1), 1 / 82 * math.exp(-4)])
    second = torch.tensor([2 * 0.5 * math.exp(-2), 3 * 1 / 17 * math.exp(-3), 81 / 82])
    torch.testing.assert_close(found, torch.stack([first / first.sum(), second / second.sum()]))


def test_predictions_are_the_mixture_of_the_experts_without_the_base_measure():
    learner = made(2)
    learner.counts = torch.tensor([3.0, 1.0], dtype=torch.float64)
    answering(learner, [0.5, 0.5], [0.8, 0.2], [0.1, 0.9])
    with_evidence(learner, [90.0, 90.0], [0.0, 0.0], [0.0, math.log(6.0)])
    found = learner.predict(batch(2)[0])
    torch.testing.assert_close(learner.expert_probabilities, torch.tensor([[3 / 4, 1 / 4], [1 / 3, 2 / 3]]))
    torch.testing.assert_close(found[:, 0], torch.tensor([0.75 * 0.8 + 0.25 * 0.1, 0.8 / 3 + 0.2 / 3]))


def test_what_is_new_is_stored_and_the_rest_is_shared_out():
    learner = made(2)
    x, y = batch(4)
    routed(learner, [[0.0, -9.0, -9.0], [-9.0, 0.0, -80.0], [-9.0, 0.0, math.log(3.0)], [-9.0, -80.0, 0.0]])
    before = copied(learner.network.state_dict())
    terms = learner.observe(x, y)
    assert torch.equal(learner.stored.x, x[:1])
    assert torch.equal(learner.stored.y, y[:1])
    torch.testing.assert_close(learner.counts, torch.tensor([1 + 1 + 0.25, 1 + 0.75 + 1], dtype=torch.float64), rtol=1e-6, atol=0)
    moved = {name.split(".")[0] for name, value in learner.network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"1", "2"}, "the base measure learns nothing"
    assert (terms["experts"], terms["stored"]) == (2.0, 1.0)


def test_an_expert_with_hardly_a_share_does_not_learn():
    learner = made(2)
    routed(learner, [[-9.0, 0.0, -4.0]] * 4)  # 4 * 0.018 < 0.1
    before = copied(learner.network.state_dict())
    learner.observe(*batch(4))
    moved = {name.split(".")[0] for name, value in learner.network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"1"}


def test_loss_is_each_experts_share_of_its_own():
    learner = made(2)
    x, y = batch(4)
    shares = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    with learner.random.active(keep=False):
        loss = learner.learn_shares(x, y, shares)
    fresh = made(2)
    with learner.random.active(keep=False), torch.no_grad():
        errors = -answers(fresh.experts, x).log_softmax(2)[torch.arange(4), :, y]
        expected = ((errors - bounds(fresh.experts, x)) * shares).sum() / 4
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_full_memory_makes_an_expert_and_is_forgotten():
    learner = made(memory=8)
    x, y = batch(7)
    learner.observe(x, y)
    assert not learner.experts
    assert torch.equal(learner.stored.x, x)
    learner.observe(*batch(1, seed=1))
    assert len(learner.experts) == 1
    assert learner.counts.tolist() == [8.0]
    assert len(learner.stored) == 0
    assert [(r.expert, r.examples, r.labels) for r in learner.expert_log.records] == [(0, 8, {0: 5, 1: 3})]


def test_what_does_not_fit_into_the_memory_is_asked_again_whose_it_is():
    learner = made(memory=8, log_concentration=-1e6)
    learner.observe(*batch(20))
    assert len(learner.experts) == 1
    assert learner.counts.item() == pytest.approx(20.0)  # the new expert's own, who else's
    assert len(learner.stored) == 0
    eager = made(memory=8, log_concentration=1e6)
    eager.observe(*batch(20))
    assert len(eager.experts) == 2
    assert len(eager.stored) == 4


def test_experts_hear_earlier_ones_and_send_them_no_gradient():
    learner = made(2, hidden=(8, 4), growth=0.5)
    one, two = learner.experts
    assert [stage[-2].weight.shape for stage in one.column.stages] == [(8, 3), (4, 8)]
    assert [stage[-2].weight.shape for stage in two.column.stages] == [(4, 3), (2, 8 + 4)]
    assert two.head.weight.shape == (2, 4 + 2)
    x, y = batch()
    with learner.random.active():
        learner.losses(x, y, [1]).sum().backward()
    assert all(parameter.grad is None for parameter in one.parameters())
    assert all(parameter.grad is not None for parameter in two.parameters())
    before = answers([one, two], x)
    with torch.no_grad():
        one.column.stages[0][-2].bias += 1.0
    assert not torch.allclose(answers([one, two], x)[:, 1], before[:, 1])


def test_without_growth_experts_are_apart():
    learner = made(2, hidden=(8, 4), growth=0.0)
    one, two = learner.experts
    assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in two.parameters()) == learner.num_parameters / 2
    x, _ = batch()
    before = answers([one, two], x)[:, 1]
    with torch.no_grad():
        one.column.stages[0][-2].bias += 1.0
    assert torch.equal(answers([one, two], x)[:, 1], before)


def test_before_the_first_expert_all_labels_are_equally_probable():
    x, _ = batch(4)
    assert torch.equal(made().predict(x), torch.full((4, 2), 0.5))
    aware = Problem((3,), 4, ((0, 1), (2, 3)))
    found = made(problem=aware).predict(x, torch.tensor([0, 1, 1, 0]))
    assert found.tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5], [0.5, 0.5, 0, 0]]


def test_convolutions_hear_channels_and_are_restored():
    shape = (1, 6, 6)
    problem = Problem(shape, 2)
    settings = {"channels": (4, 6), "hidden": (8,), "growth": 0.5, "log_concentration": 1e6, "memory": 10}
    learner = made(problem=problem, **settings)
    for step in range(2):
        learner.observe(*batch(12, step, shape))
    assert len(learner.experts) == 2
    parts = [part for stage in learner.experts[1].column.stages for part in stage]
    weights = [part.weight.shape for part in parts if hasattr(part, "weight")]
    assert weights == [(2, 1, 3, 3), (3, 4 + 2, 3, 3), (4, (6 + 3) * 4)]
    other = create("cn-dpm", problem, seed=2, **(SMALL | settings))
    other.load_state_dict(copied(learner.state_dict()))
    x, y = batch(12, 5, shape)
    assert learner.observe(x, y) == other.observe(x, y)
    assert torch.equal(learner.predict(x), other.predict(x))


def test_states_what_it_stores():
    learner = made(memory=30)
    assert learner.memory == "30 examples"
    for step in range(7):
        learner.observe(*batch(7, step))
        assert len(learner.stored) < 30


def test_boundaries_change_nothing():
    learner = made(1)
    learner.observe(*batch())
    before = copied(learner.state_dict())
    learner.end_task()
    after = learner.state_dict()
    assert torch.equal(before["random"], after["random"])
    assert before["counts"].equal(after["counts"])


def test_new_classes_have_experts_of_their_own_without_boundaries():
    stream = make_stream("split-digits", seed=1, scenario="class", epochs=2, task_free=True)
    settings = {"hidden": (32,), "learning_rate": 0.003, "vae_learning_rate": 0.003, "memory": 150, "sleep_steps": 200}
    learner = create("cn-dpm", stream.problem, seed=1, **settings)
    found = run(stream, learner)
    assert [set(record.labels) for record in learner.expert_log.records] == [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}]
    assert found.average_accuracy > 0.75  # naive training: 0.2


BAD = [
    *({name: 0} for name in ("memory", "sleep_steps", "latent", "samples", "chill", "vae_learning_rate")),
    *({"growth": value} for value in (-0.1, 1.1)),
    {"hidden": ()},
]


@pytest.mark.parametrize("settings", BAD)
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("cn-dpm", PROBLEM, **settings)


def test_pixels_are_pixels():
    learner = create("cn-dpm", PROBLEM, hidden=(4,))
    with pytest.raises(InputError, match="between 0 and 1"):
        learner.observe(*batch())
