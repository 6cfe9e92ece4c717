"""One call that changes an estimator at a time, from whatever thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, TypeVar, cast

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Any])


class Guarded:
    """Has a lock, which is made when it is first asked for, and is part of no copy and no file."""

    @property
    def _lock(self) -> threading.RLock:
        # not made in the constructor, which scikit-learn lets set parameters only; setdefault gives all threads the same one
        lock: threading.RLock = self.__dict__.setdefault("_one_at_a_time", threading.RLock())
        return lock


def one_at_a_time(method: AnyMethod) -> AnyMethod:
    """A method that runs while no other such method of the same object, or of another one that is its argument, runs.

    A thread that has the lock may call further ones.
    """

    @wraps(method)
    def guarded(self: Guarded, *args: Any, **kwargs: Any) -> Any:
        owners = {id(owner): owner for owner in (self, *args, *kwargs.values()) if isinstance(owner, Guarded)}
        with ExitStack() as held:
            for _, owner in sorted(owners.items()):  # two threads that merge the same two objects do not wait for each other
                held.enter_context(owner._lock)
            return method(self, *args, **kwargs)

    return cast("AnyMethod", guarded)
