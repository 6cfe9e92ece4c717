"""Features that are computed once where a benchmark asks for them again: in every epoch, and in the test after every task."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

LARGEST = 2 * 2**30
"""Bytes of features that a cache holds at most."""


class FeatureCache:
    """Features by the content of their inputs, those that were used last.

    It belongs to who runs a benchmark and has all of its examples anyway, not to the learner: no learner's state holds it, and
    what is computed is the same, number by number, with it or without (maps say where that is so, `FeatureMap.is_rowwise`).

    Args:
        largest: bytes of features at most; None: two gibibytes, or a quarter of the free memory if that is less.
    """

    def __init__(self, largest: int | None = None) -> None:
        self.largest = min(LARGEST, _free_memory() // 4) if largest is None else largest
        self.hits = 0
        """Inputs whose features were there."""
        self._bytes = 0
        self._rows: OrderedDict[tuple[int, bytes], Tensor] = OrderedDict()
        self._maps: dict[int, weakref.ref[Tensor]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def features(self, fitted: Tensor, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """The features of a batch; `compute` gives those of the inputs that are not known.

        `fitted` stands for the map: a tensor that it has fitted, and that no other map has.
        """
        number = self._number_of(fitted)
        keys = [(number, hashlib.blake2b(row, digest_size=16).digest()) for row in x.detach().contiguous().numpy()]
        known = {key: self._rows[key] for key in keys if key in self._rows}
        missing = [place for place, key in enumerate(keys) if key not in known]
        self.hits += len(keys) - len(missing)
        for key in known:
            self._rows.move_to_end(key)
        if len(missing) == len(keys):
            found = compute(x)
        else:
            found = torch.stack([known.get(key, next(iter(known.values()))) for key in keys])
            if missing:
                found[missing] = compute(x[missing])
        for place in missing:
            self._keep(keys[place], found[place].clone())
        return found

    def _number_of(self, fitted: Tensor) -> int:
        """What stands for a map in the keys. Where another tensor had it that is gone, so are its features."""
        number = id(fitted)
        if number not in self._maps or self._maps[number]() is not fitted:
            self._drop(number)
            self._maps[number] = weakref.ref(fitted)
        return number

    def _drop(self, number: int) -> None:
        for key in [key for key in self._rows if key[0] == number]:
            self._bytes -= self._rows.pop(key).nbytes

    def _keep(self, key: tuple[int, bytes], row: Tensor) -> None:
        if key in self._rows or row.nbytes > self.largest:
            return
        self._rows[key] = row
        self._bytes += row.nbytes
        while self._bytes > self.largest:
            self._bytes -= self._rows.popitem(last=False)[1].nbytes


_active: ContextVar[FeatureCache | None] = ContextVar("hvcl_feature_cache", default=None)


def active_cache() -> FeatureCache | None:
    """The cache of the `remembering` block that is under way in this thread, if any."""
    return _active.get()


@contextmanager
def remembering(cache: FeatureCache) -> Iterator[FeatureCache]:
    """Within the block, feature maps look into this cache first."""
    token = _active.set(cache)
    try:
        yield cache
    finally:
        _active.reset(token)


def _free_memory() -> int:
    """Bytes of memory that are free; where the system does not say, as if there were plenty."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 4 * LARGEST
