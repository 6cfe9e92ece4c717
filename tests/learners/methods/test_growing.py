"""What is special about the growing learner; the contract is tested with all the others'."""

import pytest
import torch

from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.core.state import copied, difference
from hvcl.core.storage import load_state, save_state
from hvcl.features import FrozenModule
from hvcl.layers import follow
from hvcl.learners import HVCL, Growing, GrowingConfig, HVCLConfig, create
from hvcl.learners.experts import ExpertLog
from hvcl.runs import run
from hvcl.streams import StreamConfig, from_arrays, make_stream

SMALL = {"hidden": (16,), "learning_rate": 0.01}
KINDS = [{}, {"front": True}, {"front": True, "recognition": "evidence", "directions": 5}]
"""Networks on the inputs, the gate's features or principal directions; experts recognised by the gate or by the exact sums."""


def stream(task_free=True, tasks=3, epochs=3, scenario="domain", batch_size=150):
    """Two labels whose meaning turns around from task to task: one shared head must forget."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(600 * tasks) % (2 * tasks)
    centres = 3 * torch.randn(2 * tasks, 6, generator=random)
    x = centres[y] + 0.7 * torch.randn(len(y), 6, generator=random)
    config = StreamConfig(scenario=scenario, task_free=task_free, epochs=epochs, batch_size=batch_size)
    return from_arrays(x, y, x, y, classes_per_task=2, config=config)


def feed(learner, events):
    for event in events:
        if hasattr(event, "x"):
            learner.observe(event.x, event.y, event.task)
        elif event.announced:
            learner.end_task()


@pytest.mark.parametrize("scenario", ["domain", "class", "task"])
@pytest.mark.parametrize("task_free", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=["inputs", "front", "evidence"])
def test_finds_the_tasks_and_keeps_them_all(scenario, task_free, kind):
    data = stream(task_free, scenario=scenario, epochs=10)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL, **kind)
    matrix = run(data, learner)
    assert learner.experts == 3
    assert matrix.average_accuracy > 0.97
    assert matrix.forgetting < 0.02


@pytest.mark.parametrize("batch_size", [10, 150])
def test_log_records_which_expert_opened_when_and_what_it_learned(batch_size):
    data = stream(batch_size=batch_size, epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    feed(learner, data)
    records = learner.expert_log.records
    assert [record.expert for record in records] == [0, 1, 2]
    assert sum(record.examples for record in records) == 1800
    for number, record in enumerate(records):
        assert 0 <= record.opened_after - 600 * number <= (0 if batch_size == 150 else 60)
        assert record.opened_step == record.opened_after // batch_size
        assert sum(record.labels.values()) == record.examples == sum(count for _, _, count in record.stretches)
        assert set(record.labels) == {0, 1}
        first, last, _ = record.stretches[0]
        assert (first, last) == (record.opened_step, record.opened_step + record.examples // batch_size - 1)


def test_only_the_networks_of_a_batchs_experts_learn():
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    events = [event for event in data if hasattr(event, "x")]
    feed(learner, events[:4])
    first = {name: value.clone() for name, value in learner.network.state_dict().items() if value.dim() and "prior" not in name}
    feed(learner, events[4:8])
    assert learner.experts == 2
    after = learner.network.state_dict()
    assert all(torch.equal(value[0], after[name][0]) for name, value in first.items() if "kernel" not in name)
    assert all(len(after[name]) == 2 for name in first if "kernel" not in name)


@pytest.mark.parametrize("task_free", [True, False])
def test_posterior_becomes_prior_when_the_gate_switches_and_not_before(task_free):
    data = stream(task_free, epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    events = list(data)
    feed(learner, events[:4])  # the first task, but not its end
    head = learner.network.head
    assert head.posterior.kl().sum().item() > 0
    feed(learner, events[4:6])
    assert learner.current == 1
    old, new = head.posterior.kl().tolist()
    assert old == 0.0
    assert new > 0


@pytest.mark.parametrize("start", ["last", "best"])
def test_a_new_expert_may_begin_with_the_posterior_of_another_as_prior(start):
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, start=start, **SMALL)
    events = list(data)
    feed(learner, events[:4])
    before = learner.network.head.posterior.mean.detach().clone()
    feed(learner, events[4:6])
    assert torch.equal(learner.network.head.posterior.prior_mean[1], before[0])
    cold = create("hvcl-growing", data.problem, seed=1, **SMALL)
    feed(cold, events[:6])
    assert not torch.equal(cold.network.head.posterior.prior_mean[1], before[0])


def test_the_best_start_is_the_expert_that_explains_the_new_examples_best():
    """The third task is the first one with its inputs shifted a little: its expert starts from the first, not from the last."""
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, start="best", **SMALL)
    events = [event for event in data if hasattr(event, "x")]
    for _ in range(10):
        for event in events[:4]:
            learner.observe(event.x, event.y)
    feed(learner, events[4:8])
    assert learner.experts == 2
    first, second = learner.network.head.posterior.mean.detach().clone()
    learner.observe(events[0].x + 4.0, events[0].y)
    assert learner.experts == 3
    posterior = learner.network.head.posterior
    assert torch.equal(posterior.prior_mean[2], first)
    assert not torch.equal(posterior.prior_mean[2], second)


def test_shared_layers_are_learned_by_the_first_expert_and_then_stay():
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, shared=1, **SMALL)
    events = [event for event in data if hasattr(event, "x")]
    fresh = learner.network.dense0.posterior.mean.detach().clone()
    feed(learner, events[:4])
    learned = learner.network.dense0.posterior.mean.detach().clone()
    assert not torch.equal(fresh, learned)
    feed(learner, events[4:])
    assert learner.experts == 3
    assert torch.equal(learner.network.dense0.posterior.mean, learned)
    assert (learner.network.dense0.experts, learner.network.head.experts) == (1, 3)
    with pytest.raises(InputError, match="shared must leave"):
        GrowingConfig(hidden=(8,), shared=2)


def test_hvcl_with_a_generative_gate_is_this_method():
    data = stream(epochs=1)
    learner = create("hvcl", data.problem, seed=1, gate="generative", **SMALL)
    assert isinstance(learner, Growing)
    same = create("hvcl-growing", data.problem, seed=1, **SMALL)
    feed(learner, data)
    feed(same, data)
    x = torch.randn(5, 6)
    assert torch.equal(learner.predict(x), same.predict(x))
    assert not isinstance(create("hvcl-growing", data.problem, gate="softmax", **SMALL), Growing)
    with pytest.raises(InputError, match="create"):
        HVCL(data.problem, HVCLConfig(gate="generative"), seed=1)


@pytest.mark.parametrize("settings", [{"experts": 2}, {"top_k": 2}, {"gate_input": True}, {"gate_grid": 2}])
def test_settings_of_softmax_gates_are_refused(settings):
    with pytest.raises(InputError, match=r"generative gate|top_k"):
        GrowingConfig(**settings)


def test_a_forged_number_of_experts_is_refused():
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    feed(learner, data)
    with pytest.raises(RunError):
        learner.load_state_dict(learner.state_dict() | {"experts": 10**9})
    assert learner.experts == 3


def test_prediction_is_the_mixture_of_the_experts():
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    feed(learner, data)
    x = 3 * torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    weights = learner.responsibilities(x)
    assert weights.shape == (40, 3)
    learner.network.eval()
    answers = []
    for path in range(3):
        with follow(learner.network, path):
            answers.append(learner.network(x).softmax(1).detach())
    mixed = sum(weights[:, m : m + 1] * answer for m, answer in enumerate(answers))
    torch.testing.assert_close(learner.predict(x), mixed, rtol=0, atol=1e-3)  # negligible experts are not asked
    torch.testing.assert_close(learner.predict(x).sum(1), torch.ones(40))
    assert torch.equal(learner.expert_probabilities, weights)


@pytest.mark.parametrize("stop", [1, 3, 9, 28])
@pytest.mark.parametrize("task_free", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=["inputs", "front", "evidence"])
def test_resumes_with_all_its_networks(stop, task_free, kind, tmp_path):
    data = stream(task_free, epochs=2, batch_size=120)
    whole, first = (create("hvcl-growing", data.problem, seed=1, **SMALL, **kind) for _ in range(2))
    events = list(data)
    feed(whole, events)
    feed(first, events[:stop])
    save_state(tmp_path / "state.json", first.state_dict())
    second = create("hvcl-growing", data.problem, seed=99, **SMALL, **kind)
    second.load_state_dict(load_state(tmp_path / "state.json"))
    feed(second, events[stop:])
    x = torch.randn(20, 6)
    assert torch.equal(whole.predict(x), second.predict(x))
    assert whole.expert_log.records == second.expert_log.records
    assert whole.num_parameters == second.num_parameters


def test_networks_on_fixed_features_learn_from_the_warm_up_too():
    data = stream(task_free=False, epochs=1, batch_size=100)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL, front=True)
    batches = [event for event in data if hasattr(event, "x")]
    assert learner.observe(batches[0].x, batches[0].y) == {}
    torch.testing.assert_close(learner.predict(batches[0].x), torch.full((100, 2), 0.5))
    learner.end_task()  # before there are 256 examples
    assert [record.examples for record in learner.expert_log.records] == [100]
    assert learner.experts == 1


def test_the_gate_learns_every_example_once_where_boundaries_are_known():
    data = stream(task_free=False, epochs=3)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    feed(learner, data)
    assert float(learner.gate.gate.counts.sum()) == 1800


def test_fixed_features_and_convolutions_exclude_each_other():
    with pytest.raises(InputError, match="no convolutions"):
        GrowingConfig(front=True, channels=(8,))


def test_a_network_takes_the_principal_directions_of_a_front():
    data = stream(task_free=False, epochs=1, batch_size=100)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL, front=True, directions=3)
    feed(learner, data)
    assert learner.network.dense0.in_features == 3
    short = create("hvcl-growing", data.problem, seed=1, **SMALL, front=True, directions=4)
    batch = next(iter(data))
    short.observe(batch.x[:4], batch.y[:4])
    short.end_task()  # four examples have three directions
    assert short.network.dense0.in_features == 3


def test_directions_need_a_front_and_its_warm_up():
    with pytest.raises(InputError, match="fewer than the warm-up"):
        GrowingConfig(front=True, warmup=20, directions=20)
    with pytest.raises(InputError, match="of a front"):
        GrowingConfig(directions=3)
    fitted = FrozenModule(torch.nn.Identity(), (6,))
    fitted.fit(torch.randn(9, 6))
    with pytest.raises(InputError, match="fitted already"):
        Growing(stream().problem, GrowingConfig(front=True, directions=3), 0, fitted)


def test_a_task_that_comes_back_goes_on_with_its_expert():
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    events = [event for event in data if hasattr(event, "x")]
    feed(learner, events + events[:4])
    assert learner.experts == 3
    assert len(learner.expert_log.records[0].stretches) == 2
    assert learner.expert_log.records[0].examples == 1200


def test_task_il_predicts_with_the_network_of_the_task():
    data = stream(scenario="task", epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL)
    feed(learner, data)
    assert learner.gate.gate is None
    x = torch.randn(6, 6)
    tasks = torch.tensor([0, 1, 2, 0, 1, 2])
    assert learner.responsibilities(x, tasks).tolist() == torch.eye(3).repeat(2, 1).tolist()


def test_a_custom_feature_map():
    data = stream(epochs=1)
    module = torch.nn.Linear(6, 10)
    learner = Growing(data.problem, GrowingConfig(**SMALL), seed=1, features=FrozenModule(module, (6,)))
    feed(learner, data)
    assert learner.experts == 3
    with pytest.raises(InputError, match="feature map"):
        Growing(Problem((7,), 2), GrowingConfig(**SMALL), seed=1, features=FrozenModule(module, (6,)))
    with pytest.raises(InputError, match="warmup"):
        GrowingConfig(warmup=1)


def test_beats_plain_hvcl_on_split_digits_without_boundaries():
    """8x8 digits, Domain-IL, task-free, one seed; plain HVCL with the same layers forgets."""
    accuracies = {}
    for name in ("hvcl-growing", "hvcl"):
        data = make_stream("split-digits", seed=1, epochs=10, task_free=True, batch_size=32)
        accuracies[name] = run(data, create(name, data.problem, seed=1, hidden=(32,), learning_rate=0.003)).average_accuracy
    assert accuracies["hvcl-growing"] > 0.93
    assert accuracies["hvcl-growing"] > accuracies["hvcl"] + 0.1


def test_expert_log_joins_consecutive_steps_and_survives_json(tmp_path):
    log = ExpertLog()
    log.record(0, torch.tensor([0, 0, 0]), torch.tensor([1, 1, 2]))
    log.record(1, torch.tensor([0, 1, 1]), torch.tensor([1, 2, 2]))
    log.record(2, torch.tensor([1, 1]), torch.tensor([2, 5]))
    log.record(3, torch.tensor([0]), torch.tensor([2]))
    first, second = log.records
    assert (first.opened_step, first.opened_after, first.examples, first.labels) == (0, 0, 5, {1: 3, 2: 2})
    assert first.stretches == [(0, 1, 4), (3, 3, 1)]
    assert (second.opened_step, second.opened_after, second.examples, second.labels) == (1, 3, 4, {2: 3, 5: 1})
    assert second.stretches == [(1, 2, 4)]
    save_state(tmp_path / "log.json", log.state_dict())
    again = ExpertLog()
    again.load_state_dict(load_state(tmp_path / "log.json"))
    assert again.records == log.records
    assert again.seen == log.seen == 9


@pytest.mark.parametrize("kind", KINDS, ids=["inputs", "front", "evidence"])
def test_huge_inputs_are_learned_from_or_refused_and_predictions_stay_finite(kind):
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, **SMALL, **kind)
    events = [event for event in data if hasattr(event, "x")]
    feed(learner, events[:3])
    for size in (1e10, 1e30, 3e38):
        outlier = events[3].x.clone()
        outlier[0] = size
        for x in (outlier, torch.full_like(outlier, size)):
            before = copied(learner.state_dict())
            try:
                learner.observe(x, events[3].y)
            except InputError:
                assert difference(before, learner.state_dict()) is None
                weights = learner.network.state_dict()
                assert all(torch.equal(value, weights[name]) for name, value in before["network"].items())
            learner.observe(events[2].x, events[2].y)  # what comes later is not refused
            assert learner.predict(events[0].x).isfinite().all()
        assert learner.predict(torch.full((2, 6), min(size, 1e30))).isfinite().all()
    feed(learner, events[4:8])
    assert learner.experts == 2


@pytest.mark.parametrize("kind", KINDS, ids=["inputs", "front", "evidence"])
def test_the_number_of_experts_can_be_bounded(kind):
    data = stream(epochs=1)
    learner = create("hvcl-growing", data.problem, seed=1, max_experts=2, **SMALL, **kind)
    feed(learner, data)
    assert learner.experts == 2
    assert learner.predict(torch.randn(5, 6)).isfinite().all()
    assert sum(record.examples for record in learner.expert_log.records) == 1800
    with pytest.raises(InputError, match="max_experts"):
        GrowingConfig(max_experts=0)
