"""Streams over examples that carry their own number, so that every batch can be traced back to its rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from hvcl.core.errors import HvclError, InputError
from hvcl.core.problem import Problem
from hvcl.streams.events import Batch, TaskEnd
from hvcl.streams.stream import Stream, StreamConfig
from hvcl.streams.tasks import Scenario, label, split_by_class

SIZES = (7, 12, 5)
KINDS: dict[str, dict[str, Any]] = {
    "sharp": {},
    "task-free": {"task_free": True},
    "blurred": {"task_free": True, "blur": 0.7},
    "fully blurred": {"task_free": True, "blur": 1.0},
    "cumulative": {"cumulative": True},
    "held out": {"validation": 0.3},
}


class Data:
    """Task t has the classes 2t and 2t+1. Training inputs are the numbers 0, 1, 2, ..., test inputs -1, -2, -3, ...

    The tasks' rows are mixed up, so that a row is not its place within its task.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(5))
        self.y = torch.cat([2 * t + torch.arange(n) % 2 for t, n in enumerate(sizes)])[order]
        self.x = torch.arange(len(self.y)).float().unsqueeze(1)
        self.y_test = torch.cat([torch.tensor([2 * t, 2 * t + 1, 2 * t]) for t in range(len(sizes))])
        self.x_test = -1 - torch.arange(len(self.y_test)).float().unsqueeze(1)
        self.groups = [(2 * t, 2 * t + 1) for t in range(len(sizes))]

    def of_task(self, task: int) -> set[int]:
        return set((self.y // 2 == task).nonzero().flatten().tolist())

    def of_test(self, task: int) -> list[int]:
        return [-1 - int(row) for row in (self.y_test // 2 == task).nonzero().flatten()]


def make(
    sizes: tuple[int, ...] = SIZES, seed: int = 3, cumulative: bool = False, scenario: str = "class", **settings: Any
) -> Stream:
    data = Data(sizes)
    settings = {"batch_size": 4} | settings
    config = StreamConfig(scenario=Scenario(scenario), **settings)
    parts = split_by_class(data.y, data.y_test, data.groups)
    labelled = label(parts, (data.x, data.y), (data.x_test, data.y_test), 1.0, config.scenario)
    stream = Stream(labelled, config, seed)
    return stream.cumulative() if cumulative else stream


def numbers(batch: Batch) -> list[int]:
    return [int(value) for value in batch.x[:, 0]]


def segments(stream: Stream) -> list[list[Batch]]:
    """The batches before each task's end."""
    found: list[list[Batch]] = [[]]
    for event in stream:
        if isinstance(event, TaskEnd):
            assert event.task == len(found) - 1
            found.append([])
        else:
            assert event.segment == len(found) - 1
            found[-1].append(event)
    assert found.pop() == [], "the stream must end with the end of its last task"
    return found


def same(a: Batch | TaskEnd, b: Batch | TaskEnd) -> bool:
    if isinstance(a, TaskEnd) or isinstance(b, TaskEnd):
        return type(a) is type(b) and a == b
    tasks = torch.equal(a.task, b.task) if a.task is not None and b.task is not None else a.task is b.task
    return a.segment == b.segment and tasks and a.x.dtype == b.x.dtype and torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


def all_same(a: list[Batch | TaskEnd], b: list[Batch | TaskEnd]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


# -- sharp streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_free", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 6, 100])
def test_every_example_comes_exactly_epochs_times_in_its_own_part(batch_size: int, task_free: bool) -> None:
    data, parts = Data(SIZES), segments(make(batch_size=batch_size, epochs=3, task_free=task_free))
    assert len(parts) == 3
    for task, batches in enumerate(parts):
        counted = Counter(number for batch in batches for number in numbers(batch))
        assert counted == dict.fromkeys(data.of_task(task), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_keep_their_labels(kind: str) -> None:
    data = Data(SIZES)
    for batches in segments(make(epochs=2, **KINDS[kind])):
        for batch in batches:
            assert batch.y.tolist() == data.y[numbers(batch)].tolist()


@pytest.mark.parametrize("cumulative", [False, True])
def test_each_epoch_is_complete_and_has_an_order_of_its_own(cumulative: bool) -> None:
    parts = segments(make((30, 30), epochs=3, batch_size=7, cumulative=cumulative))
    orders = []
    for part, n in zip(parts, (30, 60 if cumulative else 30), strict=True):
        sent = [number for batch in part for number in numbers(batch)]
        epochs = [sent[i * n : (i + 1) * n] for i in range(3)]
        assert len(sent) == 3 * n
        assert all(len(set(epoch)) == n for epoch in epochs)
        full, rest = divmod(n, 7)
        assert [len(batch.y) for batch in part] == ([7] * full + [rest]) * 3
        orders += epochs
    assert len({tuple(order) for order in orders}) == 6


def test_two_tasks_of_one_size_are_not_shuffled_alike() -> None:
    data, parts = Data((30, 30)), segments(make((30, 30), batch_size=30))
    places = [[sorted(data.of_task(task)).index(number) for number in numbers(batch)] for task, (batch,) in enumerate(parts)]
    assert sorted(places[0]) == sorted(places[1]) == list(range(30))
    assert places[0] != places[1]


def test_examples_are_not_sent_in_the_order_of_the_data() -> None:
    (batch,), *_ = segments(make((200,), batch_size=200))
    order = torch.tensor(numbers(batch)).double()
    correlation = float(torch.corrcoef(torch.stack([order, torch.arange(200).double()]))[0, 1])
    assert abs(correlation) < 4 / 200**0.5  # four standard deviations of a random order's correlation


# -- reproducibility and entering at any place ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_events_and_another_seed_others(kind: str) -> None:
    settings = {"epochs": 2, "scenario": "task"} | KINDS[kind]
    events = list(make(**settings))
    assert all_same(events, list(make(**settings)))
    other = list(make(seed=4, **settings))
    assert len(other) == len(events)
    assert not all_same(events, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_can_be_walked_twice_and_by_two_at_once(kind: str) -> None:
    stream = make(epochs=2, **KINDS[kind])
    first = list(stream)
    assert all_same(first, list(stream))
    # two walkers at different places must not disturb one another through what the stream keeps between batches
    walker = stream.events(len(first) // 2)
    for i, event in enumerate(stream):
        assert same(event, first[i])
        if (other := next(walker, None)) is not None:
            assert same(other, first[i + len(first) // 2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 4, 5, 12, 100])
@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_entering_anywhere_gives_the_tail(kind: str, batch_size: int, scenario: str) -> None:
    settings = {"epochs": 2, "batch_size": batch_size, "scenario": scenario} | KINDS[kind]
    events, used = list(make(**settings)), make(**settings)
    for start in range(len(events) + 2):
        assert all_same(events[start:], list(used.events(start)))
        fresh = make(**settings).events(start)
        assert all_same(events[start : start + 2], [event for event, _ in zip(fresh, range(2), strict=False)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
def test_len_counts_the_events(kind: str, batch_size: int) -> None:
    stream = make(epochs=2, batch_size=batch_size, **KINDS[kind])
    assert len(stream) == len(list(stream))


def test_len_by_hand() -> None:
    # 7, 12 and 5 examples in batches of at most 5: 2 + 3 + 1 batches, three times, and three ends
    assert len(make(batch_size=5, epochs=3)) == 3 * (2 + 3 + 1) + 3


def test_a_task_smaller_than_half_a_batch_survives_blurring() -> None:
    stream = make((40, 3, 40), batch_size=16, **KINDS["blurred"])
    events = list(stream)
    assert len(events) == len(stream)
    assert [event.task for event in events if isinstance(event, TaskEnd)] == [0, 1, 2]
    for start in range(len(events)):
        assert all_same(events[start:], list(stream.events(start)))


# -- what learners may know -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_ends_are_told_unless_the_stream_is_task_free(kind: str) -> None:
    stream = make(**KINDS[kind])
    ends = [event for event in stream if isinstance(event, TaskEnd)]
    assert ends == [TaskEnd(task, announced=not stream.config.task_free) for task in range(3)]
    assert stream.config.supervision == ("task-free" if "task_free" in KINDS[kind] else "boundaries")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["domain", "class", "task"])
def test_task_ids_come_in_task_il_only_and_are_right(kind: str, scenario: str) -> None:
    data = Data(SIZES)
    stream = make(scenario=scenario, epochs=2, **KINDS[kind])
    for batches in segments(stream):
        for batch in batches:
            if scenario != "task":
                assert batch.task is None
            else:
                assert batch.task is not None
                assert batch.task.dtype == torch.int64
                assert batch.task.tolist() == (data.y[numbers(batch)] // 2).tolist()
    assert [test.task for test in stream.tests] == ([0, 1, 2] if scenario == "task" else [None] * 3)


@pytest.mark.parametrize("scenario", ["domain", "class", "task"])
def test_problem(scenario: str) -> None:
    stream = make(scenario=scenario, epochs=3, batch_size=5)
    heads = ((0, 1), (2, 3), (4, 5)) if scenario == "task" else None
    expected = Problem((1,), 2 if scenario == "domain" else 6, heads, task_examples=(7, 12, 5), task_steps=(6, 9, 3))
    assert stream.problem == expected
    assert [len(batches) for batches in segments(stream)] == [6, 9, 3]


def test_problem_of_the_cumulative_stream_counts_all_data_so_far() -> None:
    stream = make(epochs=3, batch_size=5, cumulative=True)
    assert stream.problem.task_examples == (7, 19, 24)
    assert stream.problem.task_steps == (6, 12, 15)
    assert [len(batches) for batches in segments(stream)] == [6, 12, 15]


def test_problem_does_not_count_what_is_held_out() -> None:
    stream = make(epochs=1, batch_size=5, validation=0.3)  # 2 of 7, 4 of 12 and 2 of 5 are held out
    assert stream.problem.task_examples == (5, 8, 3)
    assert stream.problem.task_steps == (1, 2, 1)


@pytest.mark.parametrize("kind", ["task-free", "blurred"])
@pytest.mark.parametrize("cumulative", [False, True])
def test_task_free_problems_do_not_tell_sizes(kind: str, cumulative: bool) -> None:
    problem = make(scenario="task", cumulative=cumulative, **KINDS[kind]).problem
    assert problem.task_examples is None
    assert problem.task_steps is None
    assert problem.task_outputs == ((0, 1), (2, 3), (4, 5))


def test_input_shape_is_that_of_one_example() -> None:
    x, y = torch.zeros(4, 3, 5, 6), torch.tensor([0, 1, 0, 1])
    labelled = label(split_by_class(y, y, [(0, 1)]), (x, y), (x, y), 1.0, Scenario.DOMAIN)
    assert Stream(labelled, StreamConfig(), 0).problem.input_shape == (3, 5, 6)


# -- cumulative -----------------------------------------------------------------------------------------------------------


def test_cumulative_parts_hold_all_data_so_far() -> None:
    data, stream = Data(SIZES), make(epochs=2, cumulative=True)
    assert stream.is_cumulative
    assert not make().is_cumulative
    for task, batches in enumerate(segments(stream)):
        expected = set().union(*(data.of_task(t) for t in range(task + 1)))
        assert Counter(number for batch in batches for number in numbers(batch)) == dict.fromkeys(expected, 2)


def test_cumulative_parts_mix_the_tasks() -> None:
    data = Data((40, 40))
    *_, last = segments(make((40, 40), batch_size=20, cumulative=True))
    shares = [sum(number in data.of_task(0) for number in numbers(batch)) / 20 for batch in last]
    assert all(0.1 < share < 0.9 for share in shares)  # 1/2, give or take 0.1 (hypergeometric): four standard deviations


def test_cumulative_stream_keeps_tests_and_held_out_examples() -> None:
    stream = make(validation=0.3)
    both = [[test.examples.take(torch.arange(len(test.examples)))[0] for test in s.tests] for s in (stream, stream.cumulative())]
    assert all(map(torch.equal, *both))
    held = {int(number) for x in both[0] for number in x[:, 0]}
    seen = {number for part in segments(stream.cumulative()) for batch in part for number in numbers(batch)}
    assert held.isdisjoint(seen)
    assert held | seen == set(range(24))


# -- blurred --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blur", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_blurred_streams_send_every_example_exactly_epochs_times(blur: float, batch_size: int) -> None:
    batches = [batch for part in segments(make(epochs=3, task_free=True, blur=blur, batch_size=batch_size)) for batch in part]
    assert Counter(number for batch in batches for number in numbers(batch)) == dict.fromkeys(range(24), 3)
    assert all(len(batch.y) == min(batch_size, 72) for batch in batches[:-1])


def origins(stream: Stream, sizes: tuple[int, ...]) -> torch.Tensor:
    """The task of every example in the order in which they are sent."""
    sent = [number for part in segments(stream) for batch in part for number in numbers(batch)]
    return Data(sizes).y[sent] // 2


def test_the_share_of_the_next_task_rises_linearly_over_the_blur() -> None:
    sizes, blur = (4000, 4000, 4000), 0.5
    task = origins(make(sizes, batch_size=100, task_free=True, blur=blur), sizes)
    for boundary in (1, 2):
        # windows of 250 examples: a share's standard deviation is at most 1/2 / sqrt(250) = 0.032
        for start in range(int((boundary - blur / 2) * 4000), int((boundary + blur / 2) * 4000), 250):
            expected = ((start + 125) / 4000 - (boundary - blur / 2)) / blur
            share = float((task[start : start + 250] == boundary).double().mean())
            assert share == pytest.approx(expected, abs=4 * 0.032)


def test_far_from_boundaries_batches_are_pure() -> None:
    sizes, blur = (4000, 4000, 4000), 0.5
    task = origins(make(sizes, batch_size=100, task_free=True, blur=blur), sizes)
    for boundary in (1, 2):
        mixed = ((task == boundary).nonzero().min(), (task == boundary - 1).nonzero().max())
        # the first of the next task and the last of the one before; 100 examples are six standard deviations of a place
        assert float(mixed[0]) == pytest.approx((boundary - blur / 2) * 4000, abs=100)
        assert float(mixed[1]) == pytest.approx((boundary + blur / 2) * 4000, abs=100)


def test_a_fully_blurred_stream_still_mixes_neighbours_only() -> None:
    sizes = (300, 500, 400)
    task = origins(make(sizes, epochs=2, task_free=True, blur=1.0), sizes)
    assert (task == 0).nonzero().max() < (task == 2).nonzero().min()
    assert (task == 0).nonzero().max() > (task == 1).nonzero().min()


def test_a_little_blur_is_nearly_sharp() -> None:
    sizes = (100, 100)
    task = origins(make(sizes, task_free=True, blur=1e-6), sizes)
    assert task.tolist() == [0] * 100 + [1] * 100


def test_blurred_epochs_have_orders_of_their_own() -> None:
    # one task and hardly any blur: the stream is its epochs, one after the other
    ((*batches,),) = segments(make((30,), epochs=2, task_free=True, blur=1e-9, batch_size=30))
    orders = [numbers(batch) for batch in batches]
    assert len(orders) == 2
    assert set(orders[0]) == set(orders[1]) == set(range(30))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("batch_size", [1, 4, 7, 30])
def test_blurred_tasks_end_where_their_share_of_the_stream_ends(batch_size: int) -> None:
    stream = make((33, 61, 20), epochs=2, task_free=True, blur=0.6, batch_size=batch_size)
    sent = 0
    for task, batches in enumerate(segments(stream)):
        sent += sum(len(batch.y) for batch in batches)
        ideal = 2 * (33, 33 + 61, 33 + 61 + 20)[task]
        assert abs(sent - ideal) <= (batch_size / 2 if task < 2 else 0)


# -- validation and tests -------------------------------------------------------------------------------------------------


def test_without_validation_the_test_sets_are_the_test_data_in_order() -> None:
    data, stream = Data(SIZES), make()
    for task, test in enumerate(stream.tests):
        ((x, y, _),) = test.batches()
        assert x[:, 0].tolist() == data.of_test(task)
        assert y.tolist() == [2 * task, 2 * task + 1, 2 * task]
        assert test.name == f"{2 * task}/{2 * task + 1}"


@pytest.mark.parametrize("kind", ["sharp", "blurred", "cumulative"])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5])
def test_held_out_examples_are_training_data_that_training_does_not_see(kind: str, fraction: float) -> None:
    data, stream = Data(SIZES), make(validation=fraction, epochs=2, **KINDS[kind])
    seen = {number for part in segments(stream) for batch in part for number in numbers(batch)}
    for task, test in enumerate(stream.tests):
        ((x, y, _),) = test.batches()
        held = [int(number) for number in x[:, 0]]
        assert len(held) == len(set(held)) == max(1, round(fraction * SIZES[task]))
        assert set(held) | (seen & data.of_task(task)) == data.of_task(task)
        assert seen.isdisjoint(held)
        assert y.tolist() == data.y[held].tolist()


def test_what_is_held_out_depends_on_the_seed_alone_and_is_random() -> None:
    def held(**settings: Any) -> list[set[int]]:
        stream = make((60, 60), validation=0.5, **settings)
        return [{int(number) for x, _, _ in test.batches() for number in x[:, 0]} for test in stream.tests]

    assert held(seed=1) == held(seed=1, epochs=3, batch_size=9) == held(seed=1, task_free=True, blur=0.3)
    assert held(seed=1) != held(seed=2)
    data = Data((60, 60))
    places = [{sorted(data.of_task(task)).index(number) for number in numbers} for task, numbers in enumerate(held(seed=1))]
    assert places[0] != places[1], "every task must have a draw of its own"
    assert places[0] not in (set(range(30)), set(range(30, 60)))


def test_holding_out_everything_is_an_error() -> None:
    with pytest.raises(InputError, match=r"'4/5' has 2 training examples: holding out 90% leaves none"):
        make((20, 20, 2), validation=0.9)


# -- configuration --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs and batch_size must be at least 1, got 0 and 256"),
        ({"batch_size": 0}, "epochs and batch_size must be at least 1, got 1 and 0"),
        ({"batch_size": -3}, "got 1 and -3"),
        ({"blur": -0.1, "task_free": True}, "blur must lie between 0 and 1, got -0.1"),
        ({"blur": 1.1, "task_free": True}, "blur must lie between 0 and 1, got 1.1"),
        ({"blur": float("nan"), "task_free": True}, "blur must lie between 0 and 1, got nan"),
        ({"blur": 0.5}, "together with task_free"),
        ({"validation": 1.0}, r"validation must lie in \[0, 1\), got 1.0"),
        ({"validation": -0.1}, r"validation must lie in \[0, 1\), got -0.1"),
        ({"validation": float("nan")}, r"validation must lie in \[0, 1\), got nan"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StreamConfig(**settings)


def test_the_scenario_may_be_given_as_a_word() -> None:
    assert StreamConfig(scenario="class").scenario is Scenario.CLASS  # type: ignore[arg-type]


def test_an_unknown_scenario_names_the_known_ones() -> None:
    try:
        StreamConfig(scenario="banana")  # type: ignore[arg-type]
    except HvclError as error:
        assert "task, domain, class" in str(error)  # noqa: PT017
    else:
        pytest.fail("an unknown scenario was taken")


def test_a_negative_seed_is_refused_at_once() -> None:
    try:
        make(seed=-1)
    except InputError:
        return
    pytest.fail("a negative seed was taken")


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_events_without_the_ends_of_tasks(kind: str) -> None:
    stream = make(**KINDS[kind])
    events = [event for event in stream if isinstance(event, Batch)]
    batches = list(stream.batches())
    assert len(batches) == len(events) == len(stream) - len(stream.tasks)
    assert all(torch.equal(x, event.x) and torch.equal(y, event.y) for (x, y), event in zip(batches, events, strict=True))


def test_batches_of_task_il_need_their_task_ids() -> None:
    with pytest.raises(InputError, match="task ids"):
        make(scenario="task").batches()
