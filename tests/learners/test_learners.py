"""The contract of every learner: it inherits these tests by being registered."""

import copy

import pytest
import torch

from hvcl.core.configuration import field_types
from hvcl.core.errors import InputError, RunError, UnknownNameError
from hvcl.core.problem import Problem
from hvcl.core.storage import load_state, save_state
from hvcl.learners import HVCL, HVCLConfig, create, known_methods, register
from hvcl.runs import run
from hvcl.streams import StreamConfig, from_arrays, make_stream

METHODS = sorted(known_methods())
SMALL = {
    "hidden": (16,),
    "learning_rate": 0.01,
    "random_features": 32,
    "latent": 4,
    "likelihood": "gaussian",
    "generated": 60,
}


def small(name, **others):
    """Those of the small settings, or of others in their place, that the method has."""
    known = field_types(known_methods()[name].config)
    return {setting: value for setting, value in (SMALL | others).items() if setting in known}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def blobs(tasks=1, n=200, seed=0):
    """Two classes a task, far apart."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n * tasks) % (2 * tasks)
    centres = 3 * torch.randn(2 * tasks, 4, generator=random)
    return centres[y] + 0.3 * torch.randn(len(y), 4, generator=random), y


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


def problem(scenario="domain", task_free=False):
    x, y = blobs(tasks=2)
    config = StreamConfig(scenario=scenario, batch_size=20, epochs=5, task_free=task_free)
    return from_arrays(x, y, x, y, classes_per_task=2, config=config)


@pytest.mark.parametrize("task_free", [False, True])
@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_learns_a_trivial_task(name, scenario, task_free):
    x, y = blobs()
    config = StreamConfig(scenario=scenario, task_free=task_free, batch_size=20, epochs=10)
    stream = from_arrays(x, y, *blobs(), tasks=[(0, 1)], config=config)
    matrix = run(stream, create(name, stream.problem, seed=1, **small(name)))
    assert matrix.average_accuracy > 0.97


def test_task_il_never_leaves_the_head_of_the_task(name):
    stream = problem("task")
    learner = create(name, stream.problem, seed=1, **small(name))
    run(stream, learner)
    x = torch.randn(10, 4)
    for task, outputs in enumerate(stream.problem.task_outputs):
        probabilities = learner.predict(x, torch.full((10,), task))
        outside = [unit for unit in range(stream.problem.outputs) if unit not in outputs]
        assert (probabilities[:, outside] == 0).all()
        torch.testing.assert_close(probabilities.sum(1), torch.ones(10))


@pytest.mark.parametrize("stop", [0, 1, 7, 50, 51, 52, 75])
def test_resumes_bit_identically_through_files(name, stop, tmp_path):
    stream = problem()
    whole = create(name, stream.problem, seed=1, **small(name))
    first = create(name, stream.problem, seed=1, **small(name))
    events = list(stream.events())

    def feed(learner, part):
        out = []
        for event in part:
            if hasattr(event, "x"):
                out.append(learner.observe(event.x, event.y, event.task))
            else:
                learner.end_task()
        return out

    straight = feed(whole, events)
    before = feed(first, events[:stop])
    save_state(tmp_path / "state.json", first.state_dict())
    torch.manual_seed(12345)  # what happens outside must not matter
    second = create(name, stream.problem, seed=99, **small(name))
    second.load_state_dict(load_state(tmp_path / "state.json"))
    after = feed(second, events[stop:])
    assert before + after == straight
    save_state(tmp_path / "a.json", whole.state_dict())
    save_state(tmp_path / "b.json", second.state_dict())
    assert same(load_state(tmp_path / "a.json"), load_state(tmp_path / "b.json"))
    x = torch.randn(5, 4)
    assert torch.equal(whole.predict(x), second.predict(x))


def test_leaves_the_global_random_state_alone_and_does_not_depend_on_it(name):
    stream = problem()
    learners = []
    for outside in (1, 2):
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        learner = create(name, stream.problem, seed=5, **small(name))
        batch = next(iter(stream))
        terms = learner.observe(batch.x, batch.y)
        learner.predict(batch.x)
        assert torch.equal(torch.get_rng_state(), before)
        learners.append((terms, learner.predict(batch.x)))
    assert learners[0][0] == learners[1][0]
    assert torch.equal(learners[0][1], learners[1][1])


def test_predicting_changes_nothing(name):
    stream = problem()
    learner = create(name, stream.problem, seed=1, **small(name))
    for event in list(stream)[:10]:
        learner.observe(event.x, event.y)
    before = copy.deepcopy(learner.state_dict())
    learner.predict(torch.randn(7, 4))
    assert same(before, learner.state_dict())


def test_rejects_bad_input_and_stays_as_it_was(name):
    learner = create(name, Problem((4,), 2), seed=1, **small(name))
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 0])
    nan = x.clone()
    nan[1, 2] = torch.nan
    before = copy.deepcopy(learner.state_dict())
    cases = [
        ((nan, y), "NaN"),
        ((x / 0, y), "NaN or infinite"),
        ((x[:, :3], y), "shape"),
        ((x[:0], y[:0]), "empty"),
        ((x, y[:2]), "targets"),
        ((x, y.float()), "targets"),
        ((x, torch.tensor([0, 1, 2])), "between 0 and 1"),
        ((x, torch.tensor([0, -1, 1])), "between 0 and 1"),
        ((x.long(), y), "floating"),
        ((x, y, torch.tensor([0, 0, 0])), "Task-IL"),
    ]
    for arguments, words in cases:
        with pytest.raises(InputError, match=words):
            learner.observe(*arguments)
    assert same(before, learner.state_dict())
    with pytest.raises(InputError, match="NaN"):
        learner.predict(nan)
    aware = create(name, Problem((4,), 4, ((0, 1), (2, 3))), seed=1, **small(name))
    with pytest.raises(InputError, match="task ids"):
        aware.observe(x, y)
    with pytest.raises(InputError, match="between 0 and 1"):
        aware.observe(x, y, torch.tensor([0, 1, 2]))


def test_state_of_another_learner_is_refused(name):
    learner = create(name, Problem((4,), 2), **small(name))
    other = create(name, Problem((4,), 2), **small(name, hidden=(17,), random_features=17))
    with pytest.raises(RunError, match="does not fit"):
        learner.load_state_dict(other.state_dict())


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'naive'"):
        create("naiv", Problem((4,), 2))
    with pytest.raises(InputError, match="did you mean 'experts'"):
        create("hvcl", Problem((4,), 2), expert=3)


def test_a_name_cannot_be_registered_twice():
    with pytest.raises(InputError, match="taken"):
        register("naive", HVCLConfig)(HVCL)


def test_naive_forgets_joint_does_not():
    stream = make_stream("split-digits", seed=1, epochs=10)
    naive = run(stream, create("naive", stream.problem, seed=1, hidden=(32,), learning_rate=0.003))
    joint = run(stream, create("joint", stream.cumulative().problem, seed=1, hidden=(32,), learning_rate=0.003))
    assert naive.forgetting > 0.1
    assert joint.forgetting < 0.05
    assert joint.average_accuracy > naive.average_accuracy + 0.1


def test_hvcl_posteriors_become_priors_at_a_boundary_and_only_there():
    stream = problem()
    learner = create("hvcl", stream.problem, seed=1, **small("hvcl"))
    layer = learner.network.head
    for event in list(stream)[:30]:
        learner.observe(event.x, event.y)
    assert layer.posterior.kl().sum().item() > 0
    learner.end_task()
    assert layer.posterior.kl().sum().item() == 0.0
    assert torch.equal(layer.posterior.prior_mean, layer.posterior.mean)


def test_hvcl_knows_the_size_of_each_task_with_boundaries_and_takes_a_constant_without():
    x, y = blobs(tasks=2)
    unequal = torch.cat([torch.arange(400)[y < 2][:30], torch.arange(400)[y >= 2]])
    streams = [
        from_arrays(x[unequal], y[unequal], x, y, classes_per_task=2, config=StreamConfig(batch_size=20, task_free=free))
        for free in (False, True)
    ]
    told, free = (create("hvcl", stream.problem, num_data=777, **small("hvcl")) for stream in streams)
    assert told.task_examples == 30
    told.end_task()
    assert told.task_examples == 200
    assert free.task_examples == 777


def test_hvcl_cyclic_schedule_starts_anew_with_every_task():
    stream = problem()
    learner = create("hvcl", stream.problem, seed=1, **small("hvcl"))
    seen = []
    for event in stream:
        if hasattr(event, "x"):
            seen.append(learner.progress)
            learner.observe(event.x, event.y)
        else:
            learner.end_task()
    steps = stream.problem.task_steps[0]
    assert seen[0] == seen[steps] == 0.0
    assert max(seen) < 1.0


def test_hvcl_strong_expert_kl_keeps_the_first_task_weak_one_forgets_it():
    finals = {}
    for beta in (1e-4, 300.0):
        stream = make_stream("split-digits", seed=1, epochs=10)
        learner = create("hvcl", stream.problem, seed=1, hidden=(32,), learning_rate=0.003, schedule="constant")
        events = iter(stream)
        for event in events:  # the first task without any prior's weight
            if not hasattr(event, "x"):
                break
            learner.objective.schedules["expert_kl"].beta = 0.0
            learner.observe(event.x, event.y)
        learner.end_task()
        learner.objective.schedules["expert_kl"].beta = beta
        anchor = learner.network.head.posterior.mean.detach().clone()
        for event in events:
            if not hasattr(event, "x"):
                break
            learner.observe(event.x, event.y)
        finals[beta] = ((learner.network.head.posterior.mean - anchor).norm() / anchor.norm()).item()
    assert finals[300.0] < 0.3 * finals[1e-4]


def test_hvcl_predictive_samples_average_out_and_are_reproducible():
    stream = problem()
    mean, one, many = (
        create("hvcl", stream.problem, seed=1, initial_sigma=1.0, samples=samples, **small("hvcl")) for samples in (0, 1, 64)
    )
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(many.predict(x), many.predict(x))
    assert not torch.equal(one.predict(x), mean.predict(x))
    torch.testing.assert_close(many.predict(x).sum(1), torch.ones(50))
    # draws of the weights disagree, so their average is less sure than a single draw
    assert many.predict(x).max(1).values.mean() < one.predict(x).max(1).values.mean() - 0.05


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"num_data": 0}, "num_data"),
        ({"samples": -1}, "samples"),
        ({"experts": 0}, "experts"),
        ({"schedule": "square"}, "schedule"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_bad_settings_are_named(settings, word):
    with pytest.raises(InputError, match=word):
        create("hvcl", Problem((4,), 2), **settings)
