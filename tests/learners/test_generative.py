"""What the learners share that replay generated examples."""

import copy
import functools
import math

import pytest
import torch

from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.core.storage import load_state, save_state
from hvcl.evaluation import Generates
from hvcl.learners import create
from hvcl.learners.generative import Replayed
from hvcl.learners.methods import hvcl_replay
from hvcl.learners.methods.exact import ExactConfig
from hvcl.optim import VariationalAdam

METHODS = ["dgr", "dgr-distill", "rtf", "bir", "hvcl-replay"]
SMALL = {"hidden": (16,), "learning_rate": 0.02, "latent": 4, "likelihood": "gaussian"}


def problem(tasks=2, outputs=2):
    return Problem((3,), outputs, None, (40,) * tasks, (4,) * tasks)


def batch(seed=0, n=8):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=random), torch.arange(n) % 2


def after_a_task(name, steps=3, **settings):
    learner = create(name, problem(), seed=1, **SMALL, **settings)
    for step in range(steps):
        learner.observe(*batch(step))
    learner.end_task()
    return learner


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_replayed_before_the_first_boundary(name):
    learner = create(name, problem(), seed=1, **SMALL)
    learner.observe(*batch())
    assert learner.draw(5) is None
    assert learner.memory == "none"
    assert isinstance(learner, Generates)


@pytest.mark.parametrize("name", METHODS)
def test_a_boundary_before_any_example_leaves_nothing_to_replay(name):
    learner = create(name, problem(), seed=1, **SMALL, conditional=True)
    learner.end_task()
    assert learner.draw(3) is None
    assert math.isfinite(learner.observe(*batch())["loss"])


@pytest.mark.parametrize(
    ("name", "share"), [("dgr", 1 / 3), ("dgr-distill", 1 / 3), ("rtf", 1 / 3), ("bir", 1 / 3), ("hvcl-replay", 0.5)]
)
def test_weight_of_the_current_batch_in_the_third_task(name, share):
    learner = after_a_task(name)
    learner.end_task()
    assert learner.share == pytest.approx(share)


def test_tasks_can_count_the_same():
    learner = after_a_task("hvcl-replay", balance="tasks")
    assert learner.share == 0.5
    learner.end_task()
    assert learner.share == pytest.approx(1 / 3)
    learner.replayed = learner.draw(6)
    _, weights, _ = learner.with_replay(*batch(n=4))
    assert weights[:4].sum().item() == pytest.approx(1 / 3)
    assert weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "temperature", "settings"),
    [("dgr", 1.0, {}), ("dgr-distill", 2.0, {}), ("hvcl-replay", 1.0, {}), ("hvcl-replay", 3.0, {"temperature": 3.0})],
)
def test_the_loss_is_the_weighted_sum_of_both_parts(name, temperature, settings):
    """Against a computation by hand, with the network's outputs known."""
    learner = after_a_task(name, **settings)
    x, y = batch(5, n=2)
    targets = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    outputs = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
    learner.replayed = Replayed(torch.zeros(3, 3), targets, None, torch.zeros(3, dtype=torch.long))
    learner.logits = lambda inputs, task: outputs[: len(inputs)]
    current = (math.log(1 + math.exp(-1)) + math.log(2)) / 2  # labels 0 and 1

    def cross_entropy(p, z):
        z = z / temperature
        normaliser = math.log(sum(math.exp(v) for v in z))
        return -sum(q * (v - normaliser) for q, v in zip(p, z.tolist(), strict=True))

    old = sum(cross_entropy(p, z) for p, z in zip(targets.tolist(), outputs[2:], strict=True)) / 3 * temperature**2
    assert learner.share == 0.5
    assert learner.cross_entropy(x, y, None).item() == pytest.approx(0.5 * current + 0.5 * old, rel=1e-5)


def test_weights_of_the_generator_sum_to_one_and_share_alike():
    learner = after_a_task("hvcl-replay")
    learner.replayed = learner.draw(12)
    x, y = batch(n=4)
    inputs, weights, condition = learner.with_replay(x, y)
    assert condition is None
    assert torch.equal(inputs[:4], x)
    assert weights[:4].sum().item() == pytest.approx(0.5)
    assert weights[4:].sum().item() == pytest.approx(0.5)
    assert len(weights[4:].unique()) == 1


@pytest.mark.parametrize("name", ["dgr", "dgr-distill", "rtf", "bir"])
def test_the_teacher_does_not_learn_on(name):
    learner = after_a_task(name)
    x = torch.randn(6, 3)
    before = copy.deepcopy(learner.teacher.state_dict())
    torch.manual_seed(0)
    first = learner.draw(6)
    for step in range(5):
        learner.observe(*batch(10 + step))
    after = learner.teacher.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not torch.equal(learner.network(x), learner.teacher(x))
    torch.manual_seed(0)
    again = learner.draw(6)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.targets, again.targets)


def test_soft_labels_are_the_classifiers_answers_at_the_boundary():
    learner = after_a_task("hvcl-replay", generated=50)
    assert len(learner.pool.x) == 50
    torch.testing.assert_close(learner.pool.targets, learner.predict(learner.pool.x))
    before = learner.pool.targets.clone()
    for step in range(5):
        learner.observe(*batch(10 + step))
    assert torch.equal(learner.pool.targets, before), "frozen until the next boundary"
    assert not torch.allclose(learner.predict(learner.pool.x), before, atol=1e-3)


@pytest.mark.parametrize("separate", [False, True])
def test_refreshed_examples_are_replayed_once_and_made_by_the_networks_of_the_boundary(separate):
    learner = after_a_task("hvcl-replay", generated=20, refresh=True, separate=separate, temperature=2.0)
    boundary = copy.deepcopy(learner.network).eval()
    first = learner.pool
    drawn = torch.cat([learner.draw(8).x, learner.draw(8).x])
    assert torch.equal(drawn, first.x[:16]), "each once, in their order, which is random"
    for step in range(4):
        learner.observe(*batch(20 + step))
    assert learner.pool is not first
    assert len(learner.pool.x) == 20
    assert not torch.isin(learner.pool.x, first.x).any(), "others"
    torch.testing.assert_close(learner.pool.targets, (boundary(learner.pool.x) / 2).softmax(1))
    assert not torch.allclose(learner.predict(learner.pool.x), learner.pool.targets, atol=1e-3)
    assert len(learner.draw(50).x) == 50, "a batch larger than the pool"


@pytest.mark.parametrize("separate", [False, True])
def test_a_learner_that_refreshes_goes_on_from_its_state_as_it_would_have(separate):
    settings = {"generated": 20, "refresh": True, "separate": separate}
    learner = after_a_task("hvcl-replay", **settings)
    learner.observe(*batch(3))
    resumed = create("hvcl-replay", problem(), seed=9, **SMALL, **settings)
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    for step in range(5):
        x, y = batch(30 + step)
        assert resumed.observe(x, y) == learner.observe(x, y)
    assert torch.equal(resumed.pool.x, learner.pool.x)
    assert resumed.place == learner.place


@pytest.fixture
def few_features(monkeypatch):
    """The exact learner that labels has few features: the tests are quick."""
    monkeypatch.setattr(hvcl_replay, "ExactConfig", functools.partial(ExactConfig, random_features=20))


@pytest.mark.parametrize("refresh", [False, True])
def test_exact_labels_are_those_of_an_exact_learner_that_saw_every_example_once(few_features, refresh):
    """Tasks of 40 examples, batches of 16, two passes and a bit: a learner of its own sees the first 40 of each."""
    learner = create("hvcl-replay", problem(), seed=1, labels="exact", temperature=2.0, refresh=refresh, generated=30, **SMALL)
    alone = create("exact", problem(), seed=1, random_features=20)
    for task in range(2):
        data = [batch(10 * task + step, 16) for step in range(6)]
        for x, y in data:
            learner.observe(x, y)
        for x, y in [*data[:2], (data[2][0][:8], data[2][1][:8])]:
            alone.observe(x, y)
        learner.end_task()
        alone.end_task()
        p = alone.predict(learner.pool.x)
        torch.testing.assert_close(learner.pool.targets, p.sqrt() / p.sqrt().sum(1, keepdim=True))
    assert not torch.allclose(learner.predict(learner.pool.x), p, atol=0.05), "the network says something else"
    first = learner.pool.x
    for step in range(2):
        learner.observe(*batch(50 + step, 16))
    assert torch.equal(learner.pool.x, first) != refresh


def test_exact_labels_go_on_from_a_saved_state_as_they_would_have(few_features, tmp_path):
    settings = {"labels": "exact", "refresh": True, "generated": 20}
    learner = after_a_task("hvcl-replay", **settings)
    learner.observe(*batch(3))
    save_state(tmp_path / "state.json", learner.state_dict())
    resumed = create("hvcl-replay", problem(), seed=9, **SMALL, **settings)
    resumed.load_state_dict(load_state(tmp_path / "state.json"))
    for step in range(8):  # the first pass over the 40 examples of the task ends among them
        x, y = batch(30 + step)
        assert resumed.observe(x, y) == learner.observe(x, y)
        assert torch.equal(resumed.pool.targets, learner.pool.targets)
        assert resumed.counted == learner.counted == min(16 + 8 * step, 40)
    resumed.end_task()
    learner.end_task()
    assert torch.equal(resumed.pool.targets, learner.pool.targets)
    soft = create("hvcl-replay", problem(), seed=1, **SMALL, **settings | {"labels": "soft"})
    with pytest.raises(RunError, match="other settings"):
        resumed.load_state_dict(soft.state_dict())


def test_exact_labels_in_task_il_and_class_il_name_what_was_seen(few_features):
    heads = ((0, 1), (2, 3), (4, 5))
    for given in (heads, None):
        learner = create(
            "hvcl-replay", Problem((3,), 6, given, (16,) * 3, (2,) * 3), seed=1, labels="exact", generated=30, **SMALL
        )
        for task in (0, 1):
            for step in range(2):
                x, y = batch(step)
                learner.observe(x + 3 * task, y + 2 * task, None if given is None else torch.full_like(y, task))
            learner.end_task()
        targets, task = learner.pool.targets, learner.pool.task
        torch.testing.assert_close(targets.sum(1), torch.ones(30))
        assert (targets[:, 4:] == 0).all()
        if given is not None:
            assert torch.equal(targets.argmax(1) // 2, task)
            assert ((targets > 0).sum(1) == 2).all()


def test_exact_labels_need_to_know_when_a_pass_ends():
    with pytest.raises(InputError, match="task-free"):
        create("hvcl-replay", Problem((3,), 2), labels="exact", **SMALL)


def test_annealed_steps_fall_to_nothing_within_a_task_and_begin_again_with_the_next():
    """Four steps a task."""
    learner = create("hvcl-replay", problem(), seed=1, anneal=True, vae_learning_rate=0.1, **SMALL)
    for _ in range(2):
        rates = []
        for step in range(4):
            learner.observe(*batch(step))
            rates.append([o.param_groups[0]["lr"] for o in (learner.optimizer, learner.generator.optimizer)])
        learner.end_task()
        assert rates == [pytest.approx([0.02 * left, 0.1 * left]) for left in (1, 0.75, 0.5, 0.25)]
    with pytest.raises(InputError, match="length of the tasks"):
        create("hvcl-replay", Problem((3,), 2), anneal=True, **SMALL)


def test_hard_labels_are_the_first_choice():
    for name, settings in (("hvcl-replay", {"labels": "hard"}), ("dgr", {})):
        learner = after_a_task(name, **settings)
        drawn = learner.draw(40)
        assert torch.equal(drawn.targets.sort(1)[0], torch.tensor([[0.0, 1.0]]).repeat(40, 1))
        assert torch.equal(drawn.targets.argmax(1), learner.predict(drawn.x).argmax(1))


def test_labels_that_have_not_occurred_are_never_given():
    """Class-IL: four outputs, of which the first task shows two."""
    learner = create("dgr-distill", problem(outputs=4), seed=1, **SMALL)
    for step in range(3):
        learner.observe(*batch(step))
    learner.end_task()
    targets = learner.draw(20).targets
    assert (targets[:, 2:] == 0).all()
    torch.testing.assert_close(targets.sum(1), torch.ones(20))
    x, y = batch()
    assert math.isfinite(learner.observe(x, y + 2)["loss"])


@pytest.mark.parametrize("conditional", [False, True])
def test_task_il_asks_heads_that_were_seen(conditional):
    heads = ((0, 1), (2, 3), (4, 5))
    learner = create("dgr", Problem((3,), 6, heads, (40,) * 3, (4,) * 3), seed=1, conditional=conditional, **SMALL)
    for task in (0, 1):
        for step in range(2):
            x, y = batch(step)
            learner.observe(x, y + 2 * task, torch.full_like(y, task))
        learner.end_task()
    drawn = learner.draw(60)
    assert set(drawn.task.tolist()) == {0, 1}
    assert torch.equal(drawn.targets.argmax(1) // 2, drawn.task)
    x, y = batch()
    assert math.isfinite(learner.observe(x, y + 4, torch.full_like(y, 2))["loss"])


def test_conditions_are_task_and_label_where_boundaries_are_told():
    learner = create("hvcl-replay", problem(tasks=3), seed=1, conditional=True, **SMALL)
    y = torch.tensor([0, 1])
    assert learner.conditions == 6
    assert learner.condition(y).tolist() == [0, 1]
    learner.observe(*batch())
    learner.end_task()
    assert learner.condition(y).tolist() == [2, 3]
    assert set(learner.pool.condition.tolist()) == {0, 1}
    free = create("hvcl-replay", Problem((3,), 2), seed=1, conditional=True, **SMALL)
    assert free.conditions == 2


def test_every_latent_mean_has_one_expert_whatever_the_classifier_does():
    learner = create("hvcl-replay", problem(), seed=1, experts=3, top_k=2, routing="sample", latent_experts=2, **SMALL)
    assert (learner.network.head.top_k, learner.network.head.routing) == (2, "sample")
    assert (learner.generator.vae.mean.top_k, learner.generator.vae.mean.routing) == (1, "argmax")
    learner.observe(*batch())
    learner.end_task()
    generated, _ = learner.generate(200, seed=0)
    assert torch.bincount(generated.expert, minlength=2).sum() == 200
    assert math.isfinite(learner.observe(*batch(1))["elbo"])


@pytest.mark.parametrize(("asked", "units"), [(None, 16), ((7, 5), 5)])
def test_the_vae_has_hidden_layers_of_its_own_if_asked(asked, units):
    learner = create("hvcl-replay", problem(), seed=1, vae_hidden=asked, **SMALL)
    x, y = batch()
    learner.observe(x, y)
    assert learner.generator.vae.features(x).shape == (8, units)
    assert learner.features(x).shape == (8, 16)


def test_separate_generators_are_kept_and_share_the_replay():
    learner = create("hvcl-replay", problem(), seed=1, separate=True, generated=400, **SMALL)
    for task, size in enumerate((8, 24)):
        for step in range(2):
            learner.observe(*batch(10 * task + step, size))
        learner.end_task()
    first, second = learner.generator.past
    assert first.prior.examples.tolist() == [16.0]
    assert second.prior.examples.tolist() == [48.0]
    assert not any(parameter.requires_grad for parameter in first.parameters())
    assert learner.vaes() == [first, second]
    kept = copy.deepcopy(first.state_dict())
    learner.observe(*batch(7))
    assert all(torch.equal(kept[name], value) for name, value in first.state_dict().items())
    assert len(learner.pool.x) == 400
    assert learner.vaes() == [first, second, learner.generator.vae], "what is being learned is generated as well"


@pytest.mark.parametrize("name", METHODS)
def test_replay_keeps_a_task_that_naive_training_loses(name, forgotten):
    assert forgotten("naive") > 0.3
    settings = {"latent": 4, "likelihood": "gaussian", "conditional": True}
    extra = {} if name in ("rtf", "bir") else {"vae_learning_rate": 0.05}
    assert forgotten(name, **settings, **extra) < 0.15


def test_reconstruct_and_features_have_the_shapes_of_inputs_and_of_the_last_hidden_layer():
    for name in METHODS:
        learner = after_a_task(name)
        x, _ = batch()
        assert learner.reconstruct(x).shape == x.shape
        assert learner.features(x).shape == (8, 16)


@pytest.mark.parametrize("name", METHODS)
def test_pixels_out_of_range_are_refused_and_nothing_is_learned(name):
    learner = create(name, problem(), seed=1, hidden=(8,), latent=2)
    before = copy.deepcopy(learner.network.state_dict())
    with pytest.raises(InputError, match="between 0 and 1"):
        learner.observe(*batch())
    assert all(torch.equal(before[key], value) for key, value in learner.network.state_dict().items())


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("dgr", {"vae_learning_rate": 0.0}, "vae_learning_rate"),
        ("dgr-distill", {"temperature": 0.0}, "temperature"),
        ("rtf", {"temperature": -1.0}, "temperature"),
        ("rtf", {"hidden": ()}, "at least one"),
        ("dgr", {"latent": 0}, "latent must be at least 1"),
        ("hvcl-replay", {"latent": 0}, "latent must be at least 1"),
        ("hvcl-replay", {"latent_experts": 0}, "latent_experts must be at least 1"),
        ("hvcl-replay", {"vae_experts": 0}, "vae_experts must be at least 1"),
        ("hvcl-replay", {"device": "meta"}, "device 'meta'"),
        ("hvcl-replay", {"generated": 0}, "generated"),
        ("hvcl-replay", {"labels": "fuzzy"}, "labels"),
        ("hvcl-replay", {"balance": "none"}, "balance"),
        ("hvcl-replay", {"temperature": 0.0}, "temperature"),
        ("hvcl-replay", {"temperature": 2.0, "labels": "hard"}, "labels are hard"),
        ("dgr", {"likelihood": "cauchy"}, "likelihood"),
    ],
)
def test_bad_settings_are_named(name, settings, words):
    with pytest.raises(InputError, match=words):
        create(name, problem(), **settings)


def test_dropout_that_replay_through_feedback_does_not_have_is_refused():
    """It was taken and did nothing."""
    with pytest.raises(InputError, match="feedback has no dropout"):
        create("rtf", problem(), dropout=0.5, **SMALL)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("missing", ["finished", "seen", "finder", "heads"])
def test_a_state_that_lacks_something_is_refused_in_words(name, missing):
    free = Problem((3,), 2)
    state = create(name, free, seed=1, **SMALL).state_dict()
    del state[missing]
    with pytest.raises(RunError, match=f"{missing}.*other settings"):
        create(name, free, seed=1, **SMALL).load_state_dict(state)


def test_a_told_state_is_not_taken_for_a_task_free_one():
    told = create("dgr", problem(), seed=1, **SMALL)
    with pytest.raises(RunError, match="other settings"):
        create("dgr", Problem((3,), 2), seed=1, **SMALL).load_state_dict(told.state_dict())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dgr", {}),
        ("rtf", {}),
        ("bir", {}),
        ("hvcl-replay", {"latent_experts": 2}),
        ("hvcl-replay", {"latent_experts": 2, "separate": True}),
    ],
)
def test_generation_by_label_and_by_expert_whatever_number_of_vaes_there_is(name, settings):
    """Label 0 occurs in both tasks, label 1 in the second only."""
    learner = create(name, problem(tasks=3), seed=1, conditional=True, **SMALL, **settings)
    with pytest.raises(InputError, match="no example of condition"):
        learner.generate(1, seed=0, label=1)
    for task in range(2):
        x, y = batch(task)
        learner.observe(x, y * task)
        learner.end_task()
    learner.observe(x, 0 * y)
    for label in range(2):
        made, _ = learner.generate(50, seed=0, label=label)
        assert set((made.condition % 2).tolist()) == {label}
    if not settings.get("separate"):
        assert set(made.condition.tolist()) == {3}, "the second task's"
    for expert in range(learner.latent_experts):
        if any(vae.prior.mass(expert=expert).sum() > 0 for vae in learner.vaes()):
            made, _ = learner.generate(20, seed=0, expert=expert)
            assert set(made.expert.tolist()) == {expert}
    with pytest.raises(InputError, match="label must lie between 0 and 1"):
        learner.generate(1, seed=0, label=2)
    with pytest.raises(InputError, match="expert must lie between"):
        learner.generate(1, seed=0, expert=2)
    plain = {"conditional": False, "gated": 0.0} if name == "bir" else {}
    with pytest.raises(InputError, match="conditional=True"):
        after_a_task(name, **settings, **plain).generate(1, seed=0, label=0)


def test_both_optimisers_are_the_one_that_was_asked_for():
    for fused, kind in ((True, VariationalAdam), (False, torch.optim.Adam)):
        learner = create("hvcl-replay", problem(), seed=1, fused=fused, **SMALL)
        assert {type(learner.optimizer), type(learner.generator.optimizer)} == {kind}
        learner.observe(*batch())
        learner.end_task()
        resumed = create("hvcl-replay", problem(), seed=2, fused=fused, **SMALL)
        resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
        assert resumed.observe(*batch(1)) == learner.observe(*batch(1))
