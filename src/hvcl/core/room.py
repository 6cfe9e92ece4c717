"""What a job needs, in time and memory, is looked at before it begins: one that cannot be done here is refused in a sentence."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hvcl.core.errors import InputError

MOST_STEPS = 10**9
"""Steps of one seed at most: at a thousand a second they take eleven days."""

STEPS_A_SECOND = 1000
"""What estimates of time assume: a small network on one core."""


def check_steps(steps: int, what: str) -> None:
    """Raise `InputError` if so many steps are more than anybody waits for; `what` names the settings that they follow from."""
    if steps > MOST_STEPS:
        days = steps / STEPS_A_SECOND / 86_400
        raise InputError(
            f"{what} are {steps:.3g} steps, at {STEPS_A_SECOND} a second {_days(days)}: a seed has at most {MOST_STEPS:.0e}"
        )


def check_memory(needed: float, what: str) -> None:
    """Raise `InputError` if `what` needs more bytes than are free."""
    free = free_bytes()
    if free is not None and needed > free:
        raise InputError(f"{what} needs {in_words(needed)} of memory, and {in_words(free)} are free: choose smaller sizes")


def free_bytes() -> int | None:
    """Memory that a process can still have; None where nobody says."""
    known = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # no limit, or none that can be read
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(known, default=None)


def in_words(size: float) -> str:
    """A number of bytes for people."""
    if size >= 2**60:
        return f"{size:.0e} bytes"
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} bytes"


def _days(days: float) -> str:
    return f"{days:,.0f} days" if days < 1000 else f"{days / 365:.3g} years"


@contextmanager
def within_memory() -> Iterator[None]:
    """Inside, a tensor that does not fit into the memory that is free raises `InputError`, before any of it is taken."""
    try:
        with _Guard():
            yield
    except MemoryError:
        raise InputError("these settings need more memory than there is: choose smaller sizes") from None
    except RuntimeError as error:
        if any(words in str(error) for words in ("allocate memory", "out of memory", "overflow")):
            raise InputError(f"these settings need more memory than there is ({str(error).splitlines()[0]})") from None
        raise


class _Guard(TorchFunctionMode):
    """Looks at the sizes of new tensors."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func in _NEW:
            given = args[1:] if func in _METHODS else args
            sizes = options.get("size", given[0] if given and isinstance(given[0], list | tuple) else given)
            numbers = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
            count = math.prod(numbers) if func is not torch.eye or len(numbers) != 1 else numbers[0] ** 2
            kind = options.get("dtype") or torch.get_default_dtype()
            if count * kind.itemsize > _SMALL:
                check_memory(count * kind.itemsize, f"a tensor of {' x '.join(map(str, numbers))} numbers")
        return func(*args, **options)


_METHODS = (torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full)
_NEW = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye, *_METHODS})
_SMALL = 2**24
"""Bytes that are taken without a look at what is free."""
