"""States of optimisers from files: checked before anything changes, because compiled code trusts their sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.state import copied

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of state tensors by name, where they differ from the parameter's own."""

OPTIONAL = frozenset({"kl"})
"""What only some parameters have in their state."""


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`optimizer.load_state_dict(state)` for a state that may come from a file.

    Keys that JSON has turned into strings become numbers again. A state that does not fit raises `InputError`, and the optimiser
    is as it was.
    """
    _check_document(state)
    # copies: torch's optimisers would go on in the very tensors that they are given
    numbers = {key: int(key) if isinstance(key, str) and key.isdecimal() else key for key in state["state"]}
    moments = {numbers[key]: copied(value) for key, value in state["state"].items()}
    document = {"state": moments, "param_groups": state["param_groups"]}
    shapes = getattr(optimizer, "state_shapes", dict)
    check_optimizer_state(optimizer, document, shapes())
    optimizer.load_state_dict(document)


def check_optimizer_state(
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    special: Mapping[int, Shapes] | None = None,
    needed: frozenset[str] = frozenset(),
) -> None:
    """Raise `InputError` unless every tensor of a state has the shape and type that this optimiser's own would have.

    A tensor has its parameter's shape, but for the number of steps, which is a scalar. `special` has the exceptions, by the
    number of the parameter; `needed` are the names that a parameter's state has, if it has any.
    """
    _check_document(state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    _check_groups(optimizer.param_groups, state["param_groups"])
    kinds: set[frozenset[str]] = set()
    for number, entries in state["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters):
            raise InputError(f"the optimiser's state is of a parameter number {number}, and there are {len(parameters)}")
        if not isinstance(entries, Mapping) or (entries and not needed <= entries.keys()):
            missing = ", ".join(sorted(needed - entries.keys())) if isinstance(entries, Mapping) else "everything"
            raise InputError(f"the optimiser's state does not fit: parameter {number} lacks {missing}")
        kinds.add(frozenset(entries) - OPTIONAL)
        shapes = (special or {}).get(number, {"step": ()})
        for name, value in entries.items():
            wanted = shapes.get(name, tuple(parameters[number].shape))
            _check_tensor(f"{name} of parameter {number}", value, wanted, parameters[number])
    if len(kinds) > 1:
        raise InputError("the optimiser's state does not fit: it is not complete")


def _check_document(state: Any) -> None:
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping) or "param_groups" not in state:
        raise InputError("this is no state of an optimiser: it needs the entries state and param_groups")


def _check_tensor(name: str, value: Any, shape: tuple[int, ...], parameter: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise InputError(f"the optimiser's state does not fit: {name} is a {type(value).__name__}, not a tensor")
    if tuple(value.shape) != shape:
        raise InputError(f"the optimiser's state does not fit: {name} has shape {tuple(value.shape)}, expected {shape}")
    if value.dtype not in (parameter.dtype, torch.float32):
        raise InputError(f"the optimiser's state does not fit: {name} is {value.dtype}, expected {parameter.dtype}")


def _check_groups(ours: list[dict[str, Any]], theirs: Any) -> None:
    if not isinstance(theirs, list) or len(theirs) != len(ours):
        raise InputError("the optimiser's state does not fit: it has another number of parameter groups")
    for mine, saved in zip(ours, theirs, strict=True):
        numbers = saved.get("params") if isinstance(saved, dict) else None
        if not isinstance(numbers, list) or len(numbers) != len(mine["params"]):
            raise InputError("the optimiser's state does not fit: it has another number of parameters")
        for name in saved.keys() ^ mine.keys():
            raise InputError(f"the optimiser's state does not fit: {name} is {'missing' if name in mine else 'unknown'}")
        for name, value in mine.items():
            if name != "params" and not _alike(value, saved.get(name)):
                raise InputError(
                    f"the optimiser's state does not fit: its {name} is {saved.get(name)!r}, where ours is {value!r}"
                )


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether a setting from a file is of the kind of ours."""
    if isinstance(ours, tuple | list):
        parts = isinstance(theirs, tuple | list) and len(theirs) == len(ours)
        return parts and all(_alike(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, bool) or not isinstance(ours, int | float):
        return bool(ours == theirs)
    return isinstance(theirs, int | float) and not isinstance(theirs, bool) and math.isfinite(theirs) and theirs >= 0
