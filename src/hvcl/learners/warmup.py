"""The first examples of a stream, which a feature map is fitted to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hvcl.core.errors import InputError

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Inputs, targets, task ids."""


class WarmUp:
    """Keeps the first batches of a stream until they hold enough examples to fit a feature map.

    Args:
        examples: how many are enough.
    """

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.batches: list[Batch] = []

    @contextmanager
    def adding(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> Iterator[None]:
        """Keep a copy of a batch, unless what is done with it raises `InputError`."""
        before = self.batches
        self.batches = [*before, (x.clone(), y.clone(), None if task is None else task.clone())]
        try:
            yield
        except InputError:
            self.batches = before
            raise

    @property
    def complete(self) -> bool:
        """Whether there are enough examples."""
        return sum(len(y) for _, y, _ in self.batches) >= self.examples

    @property
    def inputs(self) -> Tensor:
        """All inputs that are kept, in their order."""
        return torch.cat([x for x, _, _ in self.batches])

    @property
    def targets(self) -> Tensor:
        """All targets that are kept, in their order."""
        return torch.cat([y for _, y, _ in self.batches])

    def take(self) -> list[Batch]:
        """All batches, which are not kept any longer."""
        batches, self.batches = self.batches, []
        return batches

    def remove(self, x: Tensor, y: Tensor) -> None:
        """Drop examples; `InputError`, and nothing has changed, if they are not all kept."""
        left = list(self.batches)
        for example, target in zip(x, y.tolist(), strict=True):
            for i, (inputs, targets, tasks) in enumerate(left):
                found = ((inputs == example).flatten(1).all(1) & (targets == target)).nonzero()
                if len(found):
                    keep = torch.arange(len(targets)) != found[0]
                    left[i] = (inputs[keep], targets[keep], None if tasks is None else tasks[keep])
                    break
            else:
                raise InputError("cannot remove these examples: they were not all learned")
        self.batches = [batch for batch in left if len(batch[1])]


def memory_words(examples: int, pieces: bool) -> str:
    """What a learner with a warm-up of so many examples stores, over its whole life, in words.

    The examples themselves are kept, and saved with the learner, until the feature map is fitted to them. With `pieces` the map
    is made of pieces of them (patches, or random mixtures of all of them, from which they could be computed); else of means.
    """
    return f"{examples} examples, then {'pieces' if pieces else 'none'}"


def check_warmup(examples: int) -> None:
    """Raise `InputError` for a setting `warmup` that is too small to standardise features."""
    if examples < 2:
        raise InputError(f"warmup must be at least 2, got {examples}")
