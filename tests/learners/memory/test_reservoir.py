"""The reservoir keeps every example with the same probability, however it is fed."""

import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.core.problem import Problem
from hvcl.learners.memory.examples import Stored
from hvcl.learners.memory.reservoir import Reservoir

CPU = torch.device("cpu")


def numbered(first, count):
    """Examples whose input and label are their numbers."""
    numbers = torch.arange(first, first + count)
    return Stored(numbers.float()[:, None], numbers)


def fed(capacity, sizes, seed=0):
    reservoir = Reservoir(Problem((1,), 2), capacity, seed, CPU)
    for size in sizes:
        reservoir.add(numbered(reservoir.seen, size))
    return reservoir


@pytest.mark.parametrize("sizes", [[20], [1] * 20, [7, 3, 10]])
def test_every_example_is_kept_with_the_same_probability(sizes):
    # 400 reservoirs (seeds 0 to 399) of 5 of 20 examples: each example is expected 100 times, with variance 400 * 1/4 * 3/4. The
    # counts sum to a constant, so that the sum of squares over that variance * 20 / 19 is chi-square with 19 degrees of freedom:
    # 99.8 % lie between 5.4 and 43.8
    counts = torch.zeros(20)
    for seed in range(400):
        counts[fed(5, sizes, seed).numbers] += 1
    assert counts.sum() == 400 * 5
    assert 5.4 < ((counts - 100) ** 2).sum() / (75 * 20 / 19) < 43.8


def test_what_is_kept_belongs_together():
    reservoir = fed(6, [4, 50, 3])
    kept = reservoir.kept
    assert len(reservoir) == len(kept) == 6
    assert torch.equal(kept.y, reservoir.numbers)
    assert torch.equal(kept.x[:, 0], reservoir.numbers.float())
    assert kept.y.unique().numel() == 6


def test_the_first_examples_fill_it_in_their_order():
    reservoir = fed(6, [4])
    assert (len(reservoir), reservoir.seen) == (4, 4)
    assert reservoir.kept.y.tolist() == [0, 1, 2, 3]


def test_of_two_that_take_the_same_place_the_later_stays():
    # one place: example i stays for good with probability 1 / (i + 1), whoever came with it in the batch
    last = torch.tensor([int(fed(1, [4], seed).numbers) for seed in range(400)])
    assert abs((last == 3).double().mean() - 0.25) < 0.09  # 4 standard deviations
    assert abs((last == 0).double().mean() - 0.25) < 0.09


def test_nothing_is_kept_without_room():
    reservoir = fed(0, [5, 5])
    assert (len(reservoir), reservoir.seen, len(reservoir.draw(3))) == (0, 10, 0)


def test_draws_are_uniform_and_without_repetition():
    reservoir = fed(10, [10])
    counts = torch.zeros(10)
    for _ in range(500):
        drawn = reservoir.draw(4).y
        assert drawn.unique().numel() == 4
        counts[drawn] += 1
    assert ((counts - 200).abs() < 4 * (500 * 0.4 * 0.6) ** 0.5).all()  # 4 standard deviations
    assert sorted(reservoir.draw(99).y.tolist()) == list(range(10))
    assert sorted(reservoir.draw(99, before=3).y.tolist()) == [0, 1, 2]
    assert len(reservoir.draw(99, before=0)) == 0


def test_it_is_a_copy():
    reservoir, batch = Reservoir(Problem((1,), 2), 4, 0, CPU), numbered(0, 4)
    reservoir.add(batch)
    batch.x.fill_(99.0)
    reservoir.draw(4).x.fill_(77.0)
    assert reservoir.kept.x.flatten().tolist() == [0, 1, 2, 3]


def test_it_goes_on_from_its_state():
    one, other = fed(5, [3, 9]), fed(5, [], seed=8)
    other.load_state(one.state())
    for reservoir in (one, other):
        reservoir.add(numbered(12, 30))
    assert torch.equal(one.numbers, other.numbers)
    assert torch.equal(one.kept.x, other.kept.x)
    assert torch.equal(one.draw(3).y, other.draw(3).y)


def test_a_memory_of_another_size_or_kind_is_refused():
    with pytest.raises(RunError, match="same size"):
        fed(4, []).load_state(fed(5, [9]).state())
    with pytest.raises(RunError, match="does not fit"):
        Reservoir(Problem((1,), 2), 5, 0, CPU, logits=True).load_state(fed(5, [9]).state())


def test_task_ids_and_logits_are_kept_beside_their_examples():
    reservoir = Reservoir(Problem((1,), 4, ((0, 1), (2, 3))), 5, 0, CPU, logits=True)
    numbers = torch.arange(30)
    logits = numbers[:, None] + torch.tensor([0.0, 1.0, -torch.inf, 0.5])
    reservoir.add(Stored(numbers.float()[:, None], numbers, numbers % 2, logits))
    drawn = reservoir.draw(5)
    assert torch.equal(drawn.task, drawn.y % 2)
    assert torch.equal(drawn.logits, logits[drawn.y])
