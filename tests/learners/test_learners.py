"""The contract of every learner: it inherits these tests by being registered."""

import pytest
import torch

from hvcl.core.configuration import field_types
from hvcl.core.errors import InputError, RunError, UnknownNameError
from hvcl.core.problem import Problem
from hvcl.learners import HVCL, HVCLConfig, create, known_methods, register
from hvcl.runs import run
from hvcl.streams import StreamConfig, from_arrays, make_stream
from hvcl.testing import LEARNER_CHECKS, LearnerCase, blobs, tiny_stream

METHODS = sorted(known_methods())
SMALL = {
    "hidden": (16,),
    "learning_rate": 0.01,
    "random_features": 32,
    "latent": 4,
    "likelihood": "gaussian",
    "generated": 60,
    "meta_steps": 5,
    "sleep_steps": 100,
    "vae_steps": 100,
    "tuning_epochs": 10,
    "models": 3,
    "drawn": 3,
}


def small(name, **others):
    """Those of the small settings, or of others in their place, that the method has."""
    known = field_types(known_methods()[name].config)
    return {setting: value for setting, value in (SMALL | others).items() if setting in known}


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


@pytest.mark.parametrize("check", LEARNER_CHECKS)
def test_every_method_keeps_the_contract(name, check):
    LEARNER_CHECKS[check](LearnerCase(name, small(name)))


def test_state_of_another_learner_is_refused(name):
    learner = create(name, Problem((4,), 2), **small(name))
    other = create(name, Problem((4,), 2), **small(name, hidden=(17,), random_features=17))
    with pytest.raises(RunError, match="does not fit"):
        learner.load_state_dict(other.state_dict())


def test_what_is_wrong_with_a_batch_is_named():
    learner = create("naive", Problem((4,), 2), seed=1, **small("naive"))
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 0])
    nan = x.clone()
    nan[1, 2] = torch.nan
    cases = [
        ((nan, y), "1 of 3 inputs hold NaN"),
        ((x / 0, y), "NaN or infinite"),
        ((x[:, :3], y), "shape"),
        ((x[:0], y[:0]), "empty"),
        ((x, y[:2]), "targets"),
        ((x, y.float()), "targets"),
        ((x, torch.tensor([0, 1, 2])), "between 0 and 1"),
        ((x.long(), y), "floating"),
        ((x, y, torch.tensor([0, 0, 0])), "Task-IL"),
    ]
    for arguments, words in cases:
        with pytest.raises(InputError, match=words):
            learner.observe(*arguments)
    aware = create("naive", Problem((4,), 4, ((0, 1), (2, 3))), seed=1, **small("naive"))
    with pytest.raises(InputError, match="task ids"):
        aware.observe(x, y)


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
    stream = tiny_stream()
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
    stream = tiny_stream()
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
    stream = tiny_stream()
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
