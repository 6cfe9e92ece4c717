"""States: nested dicts and lists of tensors, numbers, strings, booleans and None, which need no pickling to be saved.

An object with a state has `state_dict`, which gives all that it remembers, and `restore`, which takes it. `replace_state` is the
careful way from one to the other: a state is taken whole, or the object stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from hvcl.core.errors import RunError

State = dict[str, Any]
"""Nested dicts and lists of tensors, numbers, strings, booleans and None: what a checkpoint can hold without pickling."""

_TENSOR = "__tensor__"


class Stateful(Protocol):
    """What can be saved and restored."""

    def state_dict(self) -> State:
        """All that the object remembers."""

    def restore(self, state: State) -> None:
        """Take over `state`; may fail half-way."""


def replace_state(owner: Stateful, state: State, kind: str) -> None:
    """Restore `owner` from `state`; if that fails, or not all of `state` was taken over, `owner` is as it was.

    Args:
        owner: is restored.
        state: from the `state_dict` of an object of the same class with the same settings, possibly through a file.
        kind: what `owner` is, for the error: "learner", "agent".

    Raises:
        RunError: the state does not fit; says where.
    """
    before = copied(owner.state_dict())
    try:
        owner.restore(state)
        different = difference(state, owner.state_dict())
        if different is not None:
            raise ValueError(different)
    except BaseException as error:
        owner.restore(before)
        if isinstance(error, RunError) or not isinstance(error, Exception):
            raise
        # a foreign state can make the code that reads it fail in any way: whatever happened, it does not fit
        raise RunError(f"the saved state does not fit this {kind} ({_reason(error)}): was it made with other settings?") from None


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]!r} is missing"
    text = " ".join(str(error).split("\n")[:2]).strip().rstrip(":.")
    return text or type(error).__name__


def copied(value: Any) -> Any:
    """A copy of a state that shares no tensor with it."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value


def difference(given: Any, own: Any, place: str = "the state") -> str | None:
    """Where the structure of two states differs, in words; None if they agree.

    They agree if they have the same keys, tensors of the same shapes and types, and equal plain values. JSON's changes do not
    count: keys are compared as strings, tuples as lists.
    """
    if isinstance(given, Tensor) or isinstance(own, Tensor):
        if isinstance(given, Tensor) and isinstance(own, Tensor) and (given.shape, given.dtype) == (own.shape, own.dtype):
            return None
        return f"{place} is {_describe(given)}, expected {_describe(own)}"
    if isinstance(given, Mapping) and isinstance(own, Mapping):
        mine = {str(key): item for key, item in own.items()}
        theirs = {str(key): item for key, item in given.items()}
        for key in theirs.keys() ^ mine.keys():
            return f"{place} {'lacks' if key in mine else 'has an unknown'} {key!r}"
        found = (difference(theirs[key], item, key if place == "the state" else f"{place}.{key}") for key, item in mine.items())
        return next((text for text in found if text is not None), None)
    if isinstance(given, list | tuple) and isinstance(own, list | tuple) and len(given) == len(own):
        found = (difference(a, b, f"{place}[{i}]") for i, (a, b) in enumerate(zip(given, own, strict=True)))
        return next((text for text in found if text is not None), None)
    same = given == own or (given != given and own != own)  # NaN is equal to nothing, itself included
    if same and isinstance(given, bool) == isinstance(own, bool):
        return None
    return f"{place} is {_describe(given)}, expected {_describe(own)}"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)


def tensors_like(saved: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of saved tensors on the devices of those in `like`, which must have the same names, shapes and types."""
    if saved.keys() != like.keys():
        raise ValueError(f"it has {sorted(saved)}, expected {sorted(like)}")
    return {name: tensor_like(saved[name], own, name) for name, own in like.items()}


def tensor_like(saved: Tensor, like: Tensor, name: str = "a tensor") -> Tensor:
    """A copy of a saved tensor on the device of `like`, which must have the same shape and type."""
    if not isinstance(saved, Tensor) or saved.shape != like.shape or saved.dtype != like.dtype:
        raise ValueError(f"{name} is {_describe(saved)}, expected {_describe(like)}")
    return saved.detach().to(like.device, copy=True)


def split_tensors(state: State) -> tuple[Any, dict[str, Tensor]]:
    """A state as plain values, in which every tensor is replaced by its name, and the tensors by name."""
    tensors: dict[str, Tensor] = {}
    return _take_out(state, tensors, ""), tensors


def join_tensors(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `split_tensors` took apart; a name without a tensor raises `KeyError`."""
    if isinstance(plain, dict):
        if _TENSOR in plain:
            return tensors[plain[_TENSOR]]
        return {key: join_tensors(item, tensors) for key, item in plain.items()}
    if isinstance(plain, list):
        return [join_tensors(item, tensors) for item in plain]
    return plain


def _take_out(value: Any, tensors: dict[str, Tensor], place: str) -> Any:
    """Replace every tensor by a reference to its place."""
    if isinstance(value, Tensor):
        tensors[place] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: place}
    if isinstance(value, dict):
        return {str(key): _take_out(item, tensors, f"{place}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_out(item, tensors, f"{place}/{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{place} is a {type(value).__name__}: a state holds tensors, numbers, strings, lists and dicts")
