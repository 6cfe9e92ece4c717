"""The examples that a feature map is fitted to."""

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.learners.warmup import WarmUp


def filled(*sizes):
    warmup = WarmUp(10)
    for size in sizes:
        x = torch.arange(2.0 * size).view(size, 2)
        with warmup.adding(x, torch.arange(size)):
            pass
    return warmup


def test_it_is_complete_when_there_are_enough_examples():
    assert not filled(4, 5).complete
    assert filled(4, 6).complete


def test_batches_are_copied_and_kept_in_order():
    warmup, x, y = WarmUp(10), torch.ones(3, 2), torch.zeros(3, dtype=torch.long)
    with warmup.adding(x, y):
        x.zero_()
        y.fill_(7)
    with warmup.adding(x, y):
        pass
    assert warmup.inputs.sum() == 6
    assert warmup.targets.tolist() == [0, 0, 0, 7, 7, 7]
    assert len(warmup.take()) == 2
    assert warmup.batches == []


def test_a_batch_that_cannot_be_used_is_not_kept():
    warmup = filled(4)

    def fail():
        warmup.take()
        raise InputError("no features can be made from these")

    with pytest.raises(InputError), warmup.adding(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)):
        fail()
    assert warmup.targets.tolist() == [0, 1, 2, 3]


def test_examples_are_removed_one_by_one_or_not_at_all():
    warmup = filled(3, 3)
    x, y = warmup.batches[0][:2]
    warmup.remove(x[:1], y[:1])
    assert warmup.targets.tolist() == [1, 2, 0, 1, 2]
    with pytest.raises(InputError, match="not all learned"):
        warmup.remove(x[[0, 0]], y[[0, 0]])
    assert warmup.targets.tolist() == [1, 2, 0, 1, 2]
