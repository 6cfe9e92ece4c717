"""The border between Python and C: the only place where a tensor's address is taken.

C trusts the sizes that it is given. So whoever takes an address says which shape and type C will assume there, and it is checked
here, once: a tensor that came from a file or a user can be wrong, but never out of bounds.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.ops.header import structures
from hvcl.ops.library import Library, load

MOST_EXPERTS = 64
"""Experts of a layer's copy that compiled gates take; as in hvcl.h."""

NOISES = {
    ("mean", "weight"): 0,
    ("mean", "unit"): 0,
    ("flipout", "weight"): 1,
    ("flipout", "unit"): 2,
    ("local", "weight"): 3,
    ("local", "unit"): 4,
}
"""Estimator and kind of sigma, as the numbers of hvcl.h; 0 is no noise."""

_TYPES: set[type] = {Tensor, nn.Parameter}


def plain_tensor(kind: type) -> type:
    """Class decorator: tensors of this class are as torch's own to compiled code."""
    _TYPES.add(kind)
    return kind


def structure(name: str) -> Any:
    """A structure of hvcl.h."""
    return structures()[name]


def address(tensor: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> int:
    """Where the numbers of a tensor are that C will take to be of this shape and type, one after another.

    The tensor must outlive the call: take no address of one that only this expression knows.
    """
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_cpu or not tensor.is_contiguous():
        raise InputError(
            f"compiled code needs {dtype} of shape {shape}, contiguous and on the CPU; it was given "
            f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
        )
    return tensor.data_ptr()


def optional(tensor: Tensor | None, *shape: int, dtype: torch.dtype = torch.float32) -> int | None:
    """The same of a tensor that may be missing."""
    return None if tensor is None else address(tensor, *shape, dtype=dtype)


def of_rows(tensor: Tensor, rows: int, columns: int) -> tuple[int, int]:
    """The same of float32 rows that may be apart from each other, to be read; and how far apart they are."""
    if tensor.shape != (rows, columns) or (columns > 1 and tensor.stride(1) != 1) or tensor.is_contiguous():
        return address(tensor, rows, columns), columns  # which says what is wrong, if something is
    if tensor.dtype is not torch.float32 or not tensor.is_cpu:
        raise InputError(f"compiled code needs torch.float32 on the CPU; it was given {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr(), tensor.stride(0)


def of_array(array: NDArray[Any], *shape: int, dtype: type = np.float64) -> int:
    """The same of a NumPy array."""
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise InputError(f"compiled code needs {dtype} of shape {shape}, it was given {array.dtype} of shape {array.shape}")
    return int(array.ctypes.data)


def usable(*tensors: Tensor | None) -> Library | None:
    """The library, if it can work on all of these tensors here and now; else None, and plain operations serve.

    It steps aside for other types and devices, and while somebody looks through torch's eyes: torch.compile, torch.export,
    torch.jit.trace, torch.func, forward-mode gradients, autocast, dispatch modes.
    """
    if observed():  # first: torch.compile would look into the loading of the library
        return None
    library = load()
    if library is None:
        return None
    for tensor in tensors:
        if tensor is not None and not (
            type(tensor) in _TYPES and tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous()
        ):
            return None
    return library


def observed() -> bool:
    """Whether operations are being traced, transformed or cast, so that only torch's own may be used."""
    return transformed() or torch.is_autocast_enabled("cpu")


def transformed() -> bool:
    """Whether operations are being traced or transformed: shapes must not depend on numbers, and every operation must be
    differentiable by torch's own rules (an autograd function without `setup_context` has none under torch.func)."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack()
        or torch.autograd.forward_ad._current_level >= 0
    )


_scratch = threading.local()


def scratch(size: int, purpose: str = "call") -> Tensor:
    """Memory for a short time, at least `size` numbers; every thread has its own for each purpose and keeps it.

    Fresh memory of this size would come from the operating system each time, page by page.
    """
    areas: dict[str, Tensor] = _scratch.__dict__
    if purpose not in areas or len(areas[purpose]) < size:
        areas[purpose] = torch.empty(size, dtype=torch.float32, device="cpu")
    return areas[purpose]


def random_seed() -> int:
    """A seed for a compiled generator, from torch's."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


class Arrays:
    """Many arrays in one piece of memory, each beginning on a cache line of its own."""

    def __init__(self) -> None:
        self.places: list[tuple[Any, str, int]] = []
        self.end = 0

    def add(self, owner: Any, name: str, *shape: int) -> None:
        """An array whose address goes to the field `name` of a structure."""
        self.places.append((owner, name, self.end))
        count = 1
        for size in shape:
            count *= size
        self.end += -(-count // 16) * 16

    def lay_out(self, memory: Tensor, bytes_each: int = 4) -> None:
        """Put the arrays into this memory."""
        if len(memory) < self.end or memory.element_size() != bytes_each:
            raise InputError(f"{self.end} numbers do not fit into {len(memory)}")
        begin = memory.data_ptr()
        for owner, name, place in self.places:
            setattr(owner, name, begin + bytes_each * place)
