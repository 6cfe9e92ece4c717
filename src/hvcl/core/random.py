"""A random state of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hvcl.core.errors import InputError


def check_seed(seed: int) -> None:
    """Raise `InputError` unless `seed` is a whole number from 0 to 2^63 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"a seed must be a whole number of at least 0, got {seed!r}")


@contextmanager
def float32() -> Iterator[None]:
    """New tensors are of type float32 inside, whatever the default outside is."""
    outside = torch.get_default_dtype()
    if outside == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(outside)


class RandomState:
    """The global random state of torch, one's own for as long as it is needed, and float32 as default type with it.

    Dropout and initialisers draw from torch's global generator and take no other. Swapping the state in and out keeps a
    learner reproducible whatever else draws random numbers, and leaves everybody else's numbers alone.
    """

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def active(self, keep: bool = True) -> Iterator[None]:
        """Draw from this state; with `keep=False`, and if anything fails, the draws leave no trace in it."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            with float32():
                yield
        except BaseException:
            keep = False
            raise
        finally:
            if keep:
                self._state = torch.get_rng_state()
            torch.set_rng_state(outside)

    def state(self) -> Tensor:
        """For a checkpoint."""
        return self._state.clone()

    def load_state(self, state: Tensor) -> None:
        """From a checkpoint; what is no state of torch's generator raises an error, and nothing has changed."""
        self._state = torch.Generator().set_state(state).get_state()
