"""Dynamically expandable networks."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.learners import create
from hvcl.learners.methods.den import Block
from hvcl.runs import run
from hvcl.streams import make_stream

DOMAIN = Problem((3,), 2, task_examples=(20, 20), task_steps=(10, 20))
TASKS = Problem((3,), 4, ((0, 1), (2, 3)), task_examples=(20, 20), task_steps=(10, 20))


def batch(seed=0, shape=(3,), label=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(20, *shape, generator=random), torch.arange(20) % 2 + label


def learner_in_second_task(problem=TASKS, shape=(3,), **settings):
    learner = create("den", problem, seed=1, **({"hidden": (6, 5), "learning_rate": 0.01} | settings))
    for _ in range(10):
        learner.observe(*batch(shape=shape), task(problem, 0))
    learner.end_task()
    return learner


def task(problem, number):
    return None if problem.task_outputs is None else torch.full((20,), number)


def weights(learner):
    return {name: weight.detach().clone() for name, weight in learner.network.named_parameters()}


def test_first_task_is_learned_by_a_sparse_network():
    shares = []
    for sparsity in (0.0, 0.3):
        learner = create("den", Problem((3,), 2), seed=1, hidden=(20,), learning_rate=0.01, sparsity=sparsity)
        for step in range(100):
            learner.observe(*batch(step))
        shares.append((learner.network.dense0.weight == 0).float().mean().item())
    assert shares[0] == 0.0
    assert shares[1] > 0.3


def test_selected_units_are_those_with_a_way_to_the_head_of_the_task():
    learner = learner_in_second_task(hidden=(3, 3))
    learner.observe(*batch(label=2), task(TASKS, 1))
    with torch.no_grad():
        learner.network.head.weight.copy_(torch.tensor([[1.0, 1, 1], [1, 1, 1], [0, 2, 0], [0, 0, 0]]))
        learner.network.dense1.weight.copy_(torch.tensor([[1.0, 1, 1], [3, 0, 0.1], [1, 1, 1]]))
    learner.select()
    assert [units.tolist() for units in learner.selected] == [[True, False, True], [False, True, False]]


def test_retraining_touches_the_connected_sub_network_and_nothing_else():
    learner = learner_in_second_task(hidden=(3, 3), loss_threshold=100.0)
    learner.observe(*batch(label=2), task(TASKS, 1))
    with torch.no_grad():
        learner.network.head.weight[2:] = torch.tensor([[0, 2.0, 0], [0, -1.0, 0]])
        learner.network.dense1.weight[1] = torch.tensor([3.0, 0.0, 1.0])
        learner.network.dense0.weight[:] = torch.rand(3, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    learner.step = 2
    before = weights(learner)
    for _ in range(3):
        learner.observe(*batch(label=2), task(TASKS, 1))
    assert learner.part == "selected"
    moved = {name: weight != before[name] for name, weight in learner.network.named_parameters()}
    assert moved["dense0.weight"].tolist() == [[True] * 3, [False] * 3, [True] * 3]
    assert moved["dense0.bias"].tolist() == [True, False, True]
    # into the second unit only, and there is no edge to it from the second unit below
    assert moved["dense1.weight"].tolist() == [[False] * 3, [True, False, True], [False] * 3]
    assert moved["dense1.bias"].tolist() == [False, True, False]
    assert moved["head.weight"][2:, 1].all()
    assert moved["head.weight"].sum() == 2
    assert moved["head.bias"].tolist() == [False, False, True, True]


def test_head_of_a_new_task_starts_at_zero_and_is_learned_first_and_alone():
    learner = learner_in_second_task()
    before = weights(learner)
    learner._meet(task(TASKS, 1))
    assert (learner.network.head.weight[2:] == 0).all()
    learner.observe(*batch(label=2), task(TASKS, 1))
    assert learner.part == "head"
    after = weights(learner)
    assert torch.equal(after["dense0.weight"], before["dense0.weight"])
    assert torch.equal(after["dense1.weight"], before["dense1.weight"])
    assert torch.equal(after["head.weight"][:2], before["head.weight"][:2])
    assert (after["head.weight"][2:] != 0).any()


def test_parts_follow_one_another_and_a_network_that_suffices_does_not_grow():
    for threshold, parts in ((0.0, ["head", "selected", "new", "all"]), (100.0, ["head", "selected", "all"])):
        learner = learner_in_second_task(loss_threshold=threshold, drift_threshold=100.0, group_sparsity=0.0)
        seen = []
        for _ in range(20):
            learner.observe(*batch(label=2), task(TASKS, 1))
            seen.append(learner.part)
        assert list(dict.fromkeys(seen)) == parts
        assert [seen.count(part) for part in parts] == ([2, 8, 5, 5] if threshold == 0 else [2, 13, 5])
        assert learner.units == ([16, 15] if threshold == 0 else [6, 5])


@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        (Problem((3,), 2, task_examples=(20, 20), task_steps=(10, 20)), {}),
        # two places for each channel where the picture is flattened
        (Problem((2, 3, 6), 2, task_examples=(20, 20), task_steps=(10, 20)), {"channels": (4, 3), "hidden": (5,)}),
    ],
)
def test_units_that_are_added_and_taken_away_again_change_nothing(problem, settings):
    learner = learner_in_second_task(problem, problem.input_shape, **settings)
    x, _ = batch(7, problem.input_shape)
    before, units = learner.predict(x), learner.units
    learner.expand()
    assert learner.units == [count + 10 for count in units]
    torch.testing.assert_close(learner.predict(x), before)
    with torch.no_grad():
        for layer, count in zip(learner.layers.values(), units, strict=False):
            layer.weight[count:] = 0.0
    learner.remove_useless()
    assert learner.units == units
    torch.testing.assert_close(learner.predict(x), before)


def test_group_sparsity_takes_its_share_of_what_goes_into_a_new_unit():
    learner = learner_in_second_task(hidden=(2,), sparsity=0.0, group_sparsity=2.0)
    learner.expand()
    learner._begin("new")
    with torch.no_grad():
        learner.network.dense0.weight[2] = torch.tensor([3.0, 0.0, 4.0])
        learner.network.dense0.weight[3] = 0.01
    old = weights(learner)["dense0.weight"][:2]
    learner._shrink()
    taken = 0.01 * 2.0 * 3**0.5
    shrunk = torch.tensor([3.0, 0.0, 4.0]) * (5 - taken) / 5
    torch.testing.assert_close(learner.network.dense0.weight[2].detach(), shrunk)
    assert (learner.network.dense0.weight[3] == 0).all()
    assert torch.equal(learner.network.dense0.weight[:2], old)
    learner.remove_useless()
    assert learner.units == [11]
    assert learner.stamps[0].tolist() == [0] * 2 + [1] * 9


def test_only_new_weights_are_learned_after_expansion():
    learner = learner_in_second_task(loss_threshold=0.0)
    while learner.part != "new":
        before = weights(learner)
        learner.observe(*batch(label=2), task(TASKS, 1))
    for name, old in before.items():
        there = tuple(map(slice, old.shape))
        assert torch.equal(dict(learner.network.named_parameters())[name][there], old), name
    learner.observe(*batch(label=2), task(TASKS, 1))
    assert (learner.network.head.weight[2:, 5:] != 0).any()
    assert (learner.network.head.weight[:2, 5:] == 0).all()


def test_a_unit_that_drifted_is_what_it_was_and_its_copy_what_it_had_become():
    learner = learner_in_second_task(hidden=(4,), drift_threshold=0.5)
    x, _ = batch(3)
    old_answers = learner.predict(x, task(TASKS, 0))
    learner.observe(*batch(label=2), task(TASKS, 1))
    with torch.no_grad():
        learner.network.head.weight[2:] = torch.tensor([[1.0, 2, 3, 4], [-1, 0, 1, 2]])
        learner.network.dense0.weight[1] += torch.tensor([3.0, 0.0, 4.0])
        learner.network.dense0.weight[2] += 0.2
        learner.network.dense0.bias[1] += 1.0
    now = weights(learner)
    new_answers = learner.predict(x, task(TASKS, 1))
    learner.split()
    assert learner.units == [5]
    assert learner.stamps[0].tolist() == [0, 0, 0, 0, 1]
    after = weights(learner)
    torch.testing.assert_close(after["dense0.weight"][1], learner.before["dense0.weight"][1])
    torch.testing.assert_close(after["dense0.weight"][4], now["dense0.weight"][1])
    torch.testing.assert_close(
        after["dense0.bias"][[1, 4]], torch.stack([learner.before["dense0.bias"][1], now["dense0.bias"][1]])
    )
    assert torch.equal(after["dense0.weight"][2], now["dense0.weight"][2])  # it moved less than the threshold
    # the copy takes over what the unit gave to the head of the task
    assert after["head.weight"][:, 1].tolist() == [*now["head.weight"][:2, 1].tolist(), 0.0, 0.0]
    assert after["head.weight"][:, 4].tolist() == [0.0, 0.0, 2.0, 0.0]
    torch.testing.assert_close(learner.predict(x, task(TASKS, 1)), new_answers)
    with torch.no_grad():
        learner.network.dense0.weight[2] = learner.before["dense0.weight"][2]
    torch.testing.assert_close(learner.predict(x, task(TASKS, 0)), old_answers)


def test_copies_hear_copies_and_older_units_the_originals():
    learner = learner_in_second_task(hidden=(2, 2), drift_threshold=0.5)
    learner.observe(*batch(label=2), task(TASKS, 1))
    with torch.no_grad():
        learner.network.dense0.weight[0] += 5.0
        learner.network.dense1.weight[1] = torch.tensor([7.0, 8.0])
    first = learner.before["dense1.weight"]
    learner.split()
    assert learner.units == [3, 3]
    found = learner.network.dense1.weight.detach()
    expected = torch.stack(
        [torch.cat([first[0], torch.zeros(1)]), torch.cat([first[1], torch.zeros(1)]), torch.tensor([0, 8.0, 7])]
    )
    torch.testing.assert_close(found, expected)


def test_those_that_drifted_most_are_split_up_to_the_limit():
    learner = create("den", DOMAIN, seed=1, hidden=(4,), added=2, drift_threshold=0.5)
    before = Block(torch.zeros(4, 3, 1), torch.zeros(4))
    now = Block(torch.tensor([1.0, 0.4, 3.0, 2.0]).view(4, 1, 1) * torch.eye(3)[:1].view(1, 3, 1), torch.zeros(4))
    assert learner.drifted(now, before).tolist() == [2, 3]


def test_stamps_choose_what_a_task_may_use():
    learner = learner_in_second_task(loss_threshold=0.0, group_sparsity=0.0, drift_threshold=100.0)
    for _ in range(20):
        learner.observe(*batch(label=2), task(TASKS, 1))
    assert learner.stages == {0: 0, 1: 1}
    x, _ = batch(5)
    both = torch.arange(20) % 2
    before = learner.predict(x, both)
    torch.testing.assert_close(before[both == 0], learner.predict(x, task(TASKS, 0))[both == 0])
    with torch.no_grad():  # whatever a new unit says
        for layer, old in zip(learner.layers.values(), learner.old_units, strict=False):
            layer.weight[old:] += 1.0
    after = learner.predict(x, both)
    assert torch.equal(after[both == 0], before[both == 0])
    assert not torch.isclose(after[both == 1], before[both == 1]).all(1).any()


def test_convolutions_grow_split_and_are_restored():
    shape = (1, 6, 6)
    problem = Problem(shape, 2, task_examples=(20, 20), task_steps=(10, 20))
    settings = {"channels": (3, 4), "hidden": (5,), "loss_threshold": 0.0, "drift_threshold": 0.01, "added": 2}
    learner = learner_in_second_task(problem, shape, **settings)
    for step in range(18):
        learner.observe(*batch(step, shape))
        if step in (4, 12):
            other = create("den", problem, seed=2, learning_rate=0.01, **settings)
            other.load_state_dict(copied(learner.state_dict()))
    assert learner.part == "all"
    assert learner.units == [7, 8, 9]
    for step in range(5, 18):  # it was loaded during the second part, and goes on through the others
        other.observe(*batch(step, shape)) if step > 12 else None
    x, _ = batch(50, shape)
    assert torch.equal(learner.predict(x), other.predict(x))


def test_task_il_forgets_less_than_naive_training():
    finals = {}
    for name in ("naive", "den"):
        stream = make_stream("split-digits", seed=1, scenario="task", epochs=6)
        finals[name] = run(stream, create(name, stream.problem, seed=1, hidden=(32,), learning_rate=0.005))
    assert finals["den"].forgetting < 0.5 * finals["naive"].forgetting
    assert finals["den"].average_accuracy > 0.93


def test_a_boundary_needs_the_number_of_batches():
    learner = create("den", Problem((3,), 2), hidden=(4,))
    with pytest.raises(InputError, match="task_steps"):
        learner.end_task()


@pytest.mark.parametrize(
    "name", ["sparsity", "group_sparsity", "ridge", "strength", "loss_threshold", "drift_threshold", "added"]
)
def test_bad_settings_are_named(name):
    with pytest.raises(InputError, match=name):
        create("den", DOMAIN, **{name: -1})
