"""What is special about the exact learner: order, merging, unlearning, no forgetting."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.core.storage import load_state, save_state
from hvcl.features import FrozenModule, PatchFeatures, RandomFeatures
from hvcl.learners import Exact, ExactConfig, create, merge
from hvcl.streams import make_stream

TOLERANCE = 1e-3
"""Of every property, in probabilities: second moments are sums in float32, the ridge here a 25,000th of the largest."""

TASKS, SIZE, DIM = 3, 160, 6


def identical(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


def tasks(scenario="class", n=SIZE, seed=0, noise=1.0):
    """A list of (x, y, task ids): two classes a task, tasks far apart."""
    random, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1)
    out = []
    for task in range(TASKS):
        label = torch.arange(n) % 2
        centre = 4 * torch.randn(1, DIM, generator=fixed) + torch.tensor([[-1.0], [1.0]]) * torch.randn(1, DIM, generator=fixed)
        x = centre[label] + noise * torch.randn(n, DIM, generator=random)
        y = label if scenario == "domain" else 2 * task + label
        out.append((x, y, torch.full_like(y, task)))
    return out


def problem(scenario="class", known=True):
    heads = tuple((2 * t, 2 * t + 1) for t in range(TASKS)) if scenario == "task" else None
    return Problem((DIM,), 2 if scenario == "domain" else 2 * TASKS, heads, (SIZE,) * TASKS if known else None)


def make(scenario="class", known=True, features=None, seed=3, **settings):
    return Exact(problem(scenario, known), ExactConfig(**{"random_features": 60, "warmup": 40, **settings}), seed, features)


def learn(learner, data, batch=40):
    for x, y, task in data:
        ids = [task[i] if learner.problem.task_outputs else None for i in torch.arange(len(y)).split(batch)]
        for a, b, c in zip(x.split(batch), y.split(batch), ids, strict=True):
            learner.observe(a, b, c)
        if learner.problem.task_examples:
            learner.end_task()
    return learner


@pytest.fixture
def shared():
    """A feature map that several learners can share."""
    features = RandomFeatures((DIM,), 60, seed=5)
    features.fit(torch.cat([x[:30] for x, _, _ in tasks(seed=8)]))
    return features


def same_answers(a, b, scenario="class"):
    for x, _, task in tasks(scenario, seed=9):
        ids = task if scenario == "task" else None
        np.testing.assert_allclose(a.predict(x, ids), b.predict(x, ids), rtol=0, atol=TOLERANCE)


# -- order and joint fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["class", "domain", "task"])
def test_any_order_within_the_tasks_gives_the_same_answers(shared, scenario):
    data = tasks(scenario)
    mixed = [[part[torch.randperm(SIZE, generator=torch.Generator().manual_seed(7))] for part in task] for task in data]
    same_answers(learn(make(scenario, features=shared), data), learn(make(scenario, features=shared), mixed, batch=23), scenario)


def test_without_experts_any_order_of_the_whole_stream_gives_the_same_answers(shared):
    data = tasks()
    x, y, task = (torch.cat(parts) for parts in zip(*data, strict=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    a = learn(make(known=False, gate=False, features=shared), data)
    b = learn(make(known=False, gate=False, features=shared), [(x[order], y[order], task[order])], batch=31)
    same_answers(a, b)


def test_after_any_number_of_tasks_the_first_is_answered_as_by_a_joint_fit(shared):
    data = tasks(noise=2.0)
    x, y, _ = tasks(seed=4, noise=2.0)[0]
    one_by_one = make(features=shared)
    for seen in range(1, TASKS + 1):
        learn(one_by_one, data[seen - 1 : seen])
        joint = make(known=False, gate=False, features=shared)
        every = [torch.cat(parts) for parts in zip(*data[:seen], strict=True)]
        joint.observe(every[0], every[1])
        np.testing.assert_allclose(one_by_one.predict(x), joint.predict(x), rtol=0, atol=TOLERANCE)
        accuracy = [(learner.predict(x).argmax(1) == y).double().mean() for learner in (one_by_one, joint)]
        assert accuracy[0] == accuracy[1] > 0.7


def test_classes_that_appear_late_are_learned():
    learner = learn(make(known=False), tasks())
    for x, y, _ in tasks(seed=4):
        assert (learner.predict(x).argmax(1) == y).double().mean() > 0.9


def test_the_gate_opens_one_expert_a_task():
    data = tasks("domain", n=600)
    learner = learn(make("domain", known=False, warmup=200), data, batch=200)
    assert [r.examples for r in learner.expert_log.records] == [600, 600, 600]
    assert [r.opened_after for r in learner.expert_log.records] == [0, 600, 1200]
    x, y, _ = tasks("domain", seed=4)[0]
    assert (learner.predict(x).argmax(1) == y).double().mean() > 0.9
    assert learner.last_experts.tolist() == [2] * 200


# -- merging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["class", "domain", "task"])
@pytest.mark.parametrize("shards", [2, 10])
def test_merged_shards_equal_one_learner_of_all(shared, scenario, shards):
    data = tasks(scenario)
    whole = learn(make(scenario, features=shared), data)
    parts = [learn(whole.empty_copy(), [[v[i::shards] for v in task] for task in data]) for i in range(shards)]
    merged = parts[0]
    for part in parts[1:]:
        before = copy.deepcopy((merged.state_dict(), part.state_dict()))
        merged, old = merge(merged, part), merged
        assert identical(before[0], old.state_dict())
        assert identical(before[1], part.state_dict())
    same_answers(merged, whole, scenario)
    assert merged.expert_log.seen == TASKS * SIZE
    assert [r.labels for r in merged.expert_log.records] == [r.labels for r in whole.expert_log.records]
    assert merged.task == whole.task


def test_experts_of_other_tasks_are_put_behind(shared):
    data = tasks("domain")
    whole = learn(make("domain", features=shared), data)
    first, rest = learn(whole.empty_copy(), data[:1]), learn(whole.empty_copy(), data[1:])
    merged = merge(first, rest, apart=True)
    assert [(r.expert, r.opened_after, r.examples) for r in merged.expert_log.records] == [
        (t, SIZE * t, SIZE) for t in range(TASKS)
    ]
    same_answers(merged, whole, "domain")
    assert max(merged.experts.columns) == (2, 1)
    together = merge(first, rest)
    assert [r.examples for r in together.expert_log.records] == [2 * SIZE, SIZE]


def test_gates_are_merged_too(shared):
    data = tasks("domain", n=400)
    halves = [
        learn(make("domain", known=False, features=shared), [[v[i::2] for v in task] for task in data], batch=200) for i in (0, 1)
    ]
    counts = [half.experts.gate.counts for half in halves]
    assert [len(c) for c in counts] == [TASKS] * 2
    assert torch.equal(merge(*halves).experts.gate.counts, counts[0] + counts[1])
    assert torch.equal(merge(*halves, apart=True).experts.gate.counts, torch.cat(counts))


def test_merging_with_a_learner_that_has_learned_nothing(shared):
    whole = learn(make(features=shared), tasks())
    for merged in (
        merge(whole, whole.empty_copy()),
        merge(whole.empty_copy(), whole),
        merge(whole, make()),
        merge(make(), whole),
    ):
        same_answers(merged, whole)


def test_learners_that_do_not_belong_together_are_not_merged(shared):
    whole = learn(make(features=shared), tasks())
    for other in (make("domain"), make(ridge=1.0), make(known=False), make("task")):
        with pytest.raises(InputError, match="same problem with the same settings"):
            merge(whole, other)
    with pytest.raises(InputError, match="different feature maps"):
        merge(whole, learn(make(), tasks()))
    separate = learn(make(separate=True), tasks())
    with pytest.raises(InputError, match="separate experts"):
        merge(separate, separate)
    with pytest.raises(InputError, match="no shared feature map"):
        make().empty_copy()


# -- unlearning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
def test_what_was_removed_was_never_seen(shared, known):
    data = tasks()
    learner = learn(make(known=known, gate=known, features=shared), data)
    for x, y, _ in data:
        learner.remove(x[:50], y[:50])
    rest = learn(make(known=known, gate=known, features=shared), [[v[50:] for v in task] for task in data])
    same_answers(learner, rest)
    assert learner.expert_log.seen == rest.expert_log.seen
    assert [r.labels for r in learner.expert_log.records] == [r.labels for r in rest.expert_log.records]


def test_a_whole_task_can_be_removed_and_learned_again(shared):
    data = tasks()
    learner = learn(make(features=shared), data)
    x, y, _ = data[2]
    learner.remove(x, y)
    p = learner.predict(x)
    assert (p[:, 4:] == 0).all()
    same_answers(learner, learn(make(features=shared), data[:2]))
    for x, y, _ in data[:2]:
        learner.remove(x, y)
    torch.testing.assert_close(learner.predict(x), torch.full((SIZE, 6), 1 / 6))
    fresh = learn(make(features=shared), data)
    learner.task = 0
    same_answers(learn(learner, data), fresh)


@pytest.mark.parametrize(("known", "separate"), [(True, False), (False, False), (True, True), (False, True)])
def test_what_was_never_learned_cannot_be_removed_and_nothing_changes(known, separate):
    data = tasks(n=300)
    learner = learn(make(known=known, separate=separate, warmup=100), data, batch=100)
    learner.observe(data[2][0][:30], data[2][1][:30])  # a small batch, which the gate holds back
    before, answers = copy.deepcopy(learner.state_dict()), learner.predict(data[0][0])
    x, y, _ = data[0]
    expert = torch.zeros_like(y)
    cases = [
        (x, torch.ones_like(y), expert),  # more of a class than there were
        (30 * x[:100], y[:100], expert),  # counts fit, second moments do not
        (x[:1].expand(60, -1), y[:1].expand(60), expert[:60]),  # one example sixty times: the gate does not see it
        (x, y, expert + 1),  # another expert's
        (x, y, expert + 70),  # nobody's
        (x, y, expert - 1),
    ]
    for arguments in cases:
        with pytest.raises(InputError, match=r"cannot remove|experts"):
            learner.remove(*arguments)
        assert identical(learner.state_dict(), before)
    assert torch.equal(learner.predict(x), answers)
    for bad, words in (((x / 0, y), "NaN"), ((x, y, expert[:5]), "experts must be"), ((x, y, expert.float()), "experts must be")):
        with pytest.raises(InputError, match=words):
            learner.remove(*bad)
    assert identical(learner.state_dict(), before)


def test_ambiguous_experts_must_be_named(shared):
    data = tasks("domain")
    learner = learn(make("domain", features=shared), data)
    x, y, task = data[1]
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(InputError, match="learned by 3 experts"):
        learner.remove(x, y)
    assert identical(before, learner.state_dict())
    learner.remove(x[:100], y[:100], task[:100])
    rest = learn(make("domain", features=shared), [data[0], [v[100:] for v in data[1]], data[2]])
    same_answers(learner, rest, "domain")


def test_separate_experts_unlearn_too_down_to_the_last_example():
    data = tasks(n=300)
    learner = learn(make(known=False, separate=True, warmup=100), data, batch=100)
    assert len(learner.experts.heads) == 3
    for task, keep in ((1, 200), (2, 0), (0, 0)):
        x, y, ids = data[task]
        learner.remove(x[keep:], y[keep:], ids[keep:])
    p = learner.predict(data[1][0])
    assert (p.argmax(1) == data[1][1]).double().mean() > 0.9
    assert learner.expert_log.seen == 200


@pytest.mark.parametrize("separate", [False, True])
def test_the_head_of_a_task_without_examples_is_uniform(separate):
    data = tasks("task")
    learner = learn(make("task", separate=separate), data[:2])
    x, y, task = data[1]
    learner.remove(x, y, task)
    for number in (1, 2):
        expected = torch.zeros(SIZE, 6)
        expected[:, [2 * number, 2 * number + 1]] = 0.5
        torch.testing.assert_close(learner.predict(x, torch.full_like(y, number)), expected)


def test_examples_that_wait_can_be_removed():
    data = tasks(n=30)[0]
    x, y, _ = data
    learner, other = make(), make()
    learner.observe(x[:20], y[:20])
    before = copy.deepcopy(learner.state_dict())
    for bad in ((x[18:22], y[18:22]), (x[:1], 1 - y[:1])):
        with pytest.raises(InputError, match="cannot remove"):
            learner.remove(*bad)
        assert identical(before, learner.state_dict())
    learner.remove(x[5:15], y[5:15])
    kept = torch.cat([torch.arange(5), torch.arange(15, 20)])
    other.observe(x[kept], y[kept])
    assert identical(learner.state_dict(), other.state_dict())
    learner.remove(x[kept], y[kept])
    assert learner.state_dict()["waiting"] == []
    with pytest.raises(InputError, match="cannot remove"):
        make().remove(x, y)


# -- waiting, resuming, choosing -------------------------------------------------------------------------------------


def test_predictions_before_anything_is_learned_and_while_examples_wait():
    x, y, task = tasks("task")[1]
    for learner in (make(), make("domain"), make(known=False)):
        outputs = learner.problem.outputs
        torch.testing.assert_close(learner.predict(x), torch.full((SIZE, outputs), 1 / outputs))
    heads = make("task").predict(x, task)
    torch.testing.assert_close(heads, torch.tensor([[0, 0, 0.5, 0.5, 0, 0]]).expand(SIZE, -1))
    learner, ready = make(warmup=100), make(warmup=40)
    for each in (learner, ready):
        each.observe(x[:40], y[:40])
    before = copy.deepcopy(learner.state_dict())
    assert torch.equal(learner.predict(x), ready.predict(x))
    assert (learner.predict(x).argmax(1) == y).double().mean() > 0.9
    assert identical(before, learner.state_dict())
    assert learner.num_parameters == 0
    assert ready.num_parameters == 61 * 4 - 61 * 2


def test_a_single_example_is_enough_to_go_on():
    x, y, _ = tasks()[0]
    learner = make()
    learner.observe(x[:1], y[:1])
    assert torch.isfinite(learner.predict(x)).all()
    learner.end_task()
    assert torch.isfinite(learner.predict(x)).all()


def test_the_map_is_taken_from_the_warm_up_alone_and_the_batches_are_not_shared():
    data = tasks()[0]
    x, y = data[0].clone(), data[1].clone()
    a, b = make(), make()
    a.observe(x[:20], y[:20])
    b.observe(x[:20], y[:20])
    a.observe(x[20:40], y[20:40])
    assert a.warmup.batches == []
    x[:20] = 0
    b.observe(x[20:40], y[20:40])
    assert identical(a.state_dict(), b.state_dict())


@pytest.mark.parametrize(
    ("known", "separate", "stop"),
    [(True, False, 1), (False, False, 1), (False, False, 7), (True, True, 5), (False, True, 1), (False, True, 5)],
)
def test_resumes_bit_identically_through_files_with_any_seed(known, separate, stop, tmp_path):
    scenario = "class"
    batches = [(task, a, b) for task, (x, y, _) in enumerate(tasks(n=300)) for a, b in zip(x.split(60), y.split(60), strict=True)]

    def feed(learner, part):
        for task, x, y in part:
            while learner.experts_given and learner.task < task:
                learner.end_task()
            learner.observe(x, y)
        return learner

    settings = {"known": known, "separate": separate, "warmup": 100}
    whole = feed(make(scenario, **settings), batches)
    first = feed(make(scenario, **settings), batches[:stop])
    assert bool(first.warmup.batches) == (stop == 1)
    save_state(tmp_path / "state.json", first.state_dict())
    second = make(scenario, seed=77, **settings)
    second.load_state_dict(load_state(tmp_path / "state.json"))
    feed(second, batches[stop:])
    assert identical(whole.state_dict(), second.state_dict())
    x = tasks(seed=5)[0][0]
    assert torch.equal(whole.predict(x), second.predict(x))
    assert torch.equal(whole.expert_probabilities, second.expert_probabilities)


def test_states_of_other_settings_are_refused(shared):
    learner = learn(make(), tasks())
    for other in (make(random_features=61), make(ridge=2.0), make(known=False, gate=False)):
        with pytest.raises(RunError, match="does not fit"):
            other.load_state_dict(learner.state_dict())
    with pytest.raises(RunError, match="does not fit"):
        make(features=shared).load_state_dict(learner.state_dict())
    with pytest.raises(RunError, match="does not fit"):
        make().load_state_dict({})


def test_a_frozen_module_as_feature_map():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIM, 30), nn.ReLU())
    learner = learn(make(features=FrozenModule(net, (DIM,))), tasks())
    for x, y, _ in tasks(seed=4):
        assert (learner.predict(x).argmax(1) == y).double().mean() > 0.9
    again = make(features=FrozenModule(net, (DIM,)))
    again.load_state_dict(learner.state_dict())
    assert torch.equal(again.predict(x), learner.predict(x))
    other = make(features=FrozenModule(nn.Sequential(nn.Linear(DIM, 30), nn.ReLU()), (DIM,)))
    with pytest.raises(RunError, match="does not fit this module"):
        other.load_state_dict(learner.state_dict())
    with pytest.raises(InputError, match="the feature map takes"):
        make(features=FrozenModule(nn.Identity(), (5,)))
    with pytest.raises(InputError, match="feature maps of their own"):
        make(features=FrozenModule(net, (DIM,)), separate=True)


def test_a_module_that_breaks_changes_nothing():
    class Log(nn.Module):
        def forward(self, x):
            return (x + 1).log()

    x, y, _ = tasks()[0]
    x = x.abs()
    learner = make(features=FrozenModule(Log(), (DIM,)))
    learner.observe(x[:20], y[:20])
    for _ in range(2):  # while examples wait, and when they do not
        before = copy.deepcopy(learner.state_dict())
        with pytest.raises(InputError, match="not finite"):
            learner.observe(-3 * x[20:60] - 2, y[20:60])
        assert identical(before, learner.state_dict())
        learner.observe(x[20:60], y[20:60])


def test_pictures_get_patches_and_everything_else_random_features():
    random = torch.Generator().manual_seed(0)
    smooth = nn.functional.avg_pool2d(torch.randn(40, 1, 20, 20, generator=random), 5, stride=1)
    permuted = smooth.flatten(1)[:, torch.randperm(256, generator=random)].view_as(smooth)
    y = torch.arange(40) % 2

    def kind(x, **settings):
        config = ExactConfig(**{"warmup": 40, "filters": 4, "random_features": 20, **settings})
        learner = Exact(Problem(tuple(x.shape[1:]), 2), config, 0)
        learner.observe(x, y)
        return type(learner.experts.features)

    assert kind(smooth) is PatchFeatures
    assert kind(permuted) is RandomFeatures
    assert kind(smooth.flatten(1)) is RandomFeatures
    assert kind(smooth[..., :15, :15]) is RandomFeatures
    assert kind(permuted, features="patches") is PatchFeatures
    assert kind(smooth, features="random") is RandomFeatures


@pytest.mark.parametrize(
    "settings",
    [
        {"warmup": 1},
        {"ridge": 0.0},
        {"concentration": 0.0},
        {"separate": True, "gate": False},
        {"separate": True, "features": "patches"},
        {"features": "patches"},
        {"random_features": 0},
        {"field": 2},
    ],
)
def test_settings_that_do_not_fit_are_an_error_at_once(settings):
    with pytest.raises(InputError, match=r"warmup|ridge|concentration|separate|patches|at least 1 feature|field"):
        Exact(problem(), ExactConfig(**settings), 0)


def test_a_fixed_ridge_is_used():
    learner = learn(make(ridge=5.0), tasks())
    assert learner.experts.head.model.posterior().ridge == 5.0


# -- streams without an end ------------------------------------------------------------------------------------------


def places(*numbers, n=200, seed=0):
    """A batch at each of these places: two classes along one column, places far apart along another."""
    random = torch.Generator().manual_seed(seed)
    for number in numbers:
        y = torch.arange(n) % 2
        x = torch.randn(n, DIM, generator=random)
        x[:, 0] += 4 * y * (1 if number % 2 else -1)
        x[:, 1:] += 3 * torch.randn(DIM - 1, generator=torch.Generator().manual_seed(number))
        yield x, y


def bounded(features, **settings):
    config = ExactConfig(**{"random_features": 60, "warmup": 40, "max_experts": 3, "merging": True, **settings})
    return Exact(Problem((DIM,), 2), config, 3, features)


def test_experts_that_are_joined_have_the_sums_of_both(shared):
    """As if the gate had known from the start that they are one; answers and all examples are those of the learner."""
    learner, batches = bounded(shared), list(places(*range(8)))
    assigned = []
    for x, y in batches:
        learner.observe(x, y)
        assigned.append(learner.last_experts)
    gate = learner.experts.gate
    assert gate.experts == 8
    assert len(gate.open) == len(learner.expert_log.records) == 3
    assert len(learner.experts.columns) == 6
    assert [record.expert for record in learner.expert_log.records] == gate.open
    assert sum(record.examples for record in learner.expert_log.records) == 1600
    told = Exact(Problem((DIM,), 2, None, (200,) * 8), ExactConfig(random_features=60, warmup=40), 3, shared)
    for (x, y), experts in zip(batches, assigned, strict=True):
        told.experts.learn(x, y, learner.experts.owners(experts))
        told.expert_log.record(0, experts, y)
    order = [learner.experts.columns[pair] for pair in told.experts.columns]
    torch.testing.assert_close(learner.experts.head.model.cross[:, order], told.experts.head.model.cross)
    torch.testing.assert_close(learner.experts.head.counts[order], told.experts.head.counts)
    x, y = next(places(3, seed=9))
    np.testing.assert_allclose(learner.predict(x), told.predict(x), atol=TOLERANCE)
    assert (learner.predict(x).argmax(1) == y).double().mean() > 0.9
    for (x, y), experts in zip(batches, assigned, strict=True):
        learner.remove(x, y, experts)
    assert learner.experts.head.model.count == 0
    assert learner.expert_log.seen == 0


def test_what_is_dropped_is_forgotten_by_the_gate_and_not_by_the_head(shared):
    learner, batches, assigned = bounded(shared, max_experts=None, merging=False, expiry=500), list(places(*range(8))), []
    keeps = bounded(shared, max_experts=None, merging=False)
    for x, y in batches:
        for each in (learner, keeps):
            each.observe(x, y)
        assigned.append(learner.last_experts)
    gate = learner.experts.gate
    assert gate.dropped == [0, 1, 2, 3, 4]
    assert gate.open == [5, 6, 7]
    assert sorted({expert for expert, _ in learner.experts.columns}) == [0, 5, 6, 7]
    assert learner.expert_log.records[0].examples == 1000
    x, y = next(places(2, seed=9))
    for each in (learner, keeps):
        assert (each.predict(x).argmax(1) == y).double().mean() > 0.9
    # what comes back is new
    learner.observe(*batches[2])
    assert learner.last_experts.unique().tolist() == [8]
    for (x, y), experts in zip([*batches, batches[2]], [*assigned, learner.last_experts], strict=True):
        learner.remove(x, y, experts)
    assert learner.experts.head.model.count == 0


def test_a_stream_with_many_shifts_costs_the_same_for_each_batch(shared):
    """Columns of the head and components of the gate, which the cost follows from; without a bound they grow (measured: 80)."""
    learner, sizes = bounded(shared, max_experts=4), []
    for x, y in places(*range(40), n=150):
        learner.observe(x, y)
        sizes.append((len(learner.experts.columns), len(learner.experts.gate._learned.keys)))
    assert learner.experts.gate.experts > 30
    assert max(sizes) == (8, 8)


def test_bounded_learners_are_saved_and_merged(shared, tmp_path):
    learner, batches = bounded(shared, expiry=1000), list(places(*range(10)))
    for x, y in batches[:7]:
        learner.observe(x, y)
    again = bounded(shared, expiry=1000)
    again.load_state_dict(learner.state_dict())
    other = learner.empty_copy()
    for x, y in batches[7:]:
        for each in (learner, again, other):
            each.observe(x, y)
    assert identical(learner.state_dict(), again.state_dict())
    for apart in (False, True):
        both = merge(learner, other, apart=apart)
        assert both.experts.head.model.count == 2600
        assert sum(record.examples for record in both.expert_log.records) == 2600
        owners = {expert for expert, _ in both.experts.columns}
        assert owners == {record.expert for record in both.expert_log.records}
        both.observe(*batches[0])


def test_on_split_digits_nothing_is_joined_and_answers_are_bit_identical():
    stream = make_stream("split-digits", scenario="domain", task_free=True, epochs=1, seed=1)
    learners = [create("exact", stream.problem, seed=1, random_features=200, **settings) for settings in ({}, {"merging": True})]
    for x, y in stream.batches():
        for learner in learners:
            learner.observe(x, y)
    x, _ = stream.tests[2].examples.take(torch.arange(50))
    assert len(learners[0].expert_log.records) == 5
    assert learners[0].config.max_experts is None
    assert not learners[0].config.merging
    assert torch.equal(*(learner.predict(x) for learner in learners))


def test_separate_experts_are_neither_joined_nor_dropped():
    for settings in ({"merging": True}, {"expiry": 100}):
        with pytest.raises(InputError, match="maps of their own"):
            ExactConfig(separate=True, **settings)
    with pytest.raises(InputError, match="expiry must be"):
        ExactConfig(expiry=0)
