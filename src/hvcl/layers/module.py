"""How a module anywhere in a network takes part in the objective, without the trainer knowing it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn


class LossTerm(NamedTuple):
    """One layer's contribution to one named term of the objective.

    `evaluate` computes the scalar when it is called, so a term whose weight is zero costs nothing.
    """

    layer: str
    name: str
    evaluate: Callable[[], Tensor]


class VariationalModule(nn.Module, ABC):
    """A module with a posterior, a prior, and terms that it adds to the loss.

    Subclass it to make a layer of your own take part: `loss_terms(network)` and `consolidate(network)` find it wherever
    it is nested. One that has others inside speaks for them: its terms are theirs, and its `consolidate` does theirs.
    """

    sample_in_eval: bool = False

    @abstractmethod
    def terms(self) -> dict[str, Callable[[], Tensor]]:
        """The named terms of the last forward pass, each a function that computes a scalar."""

    @abstractmethod
    def consolidate(self) -> None:
        """Make the posterior the prior of what comes next."""

    def term_vector(self) -> tuple[tuple[str | None, ...], Tensor] | None:
        """Several of the terms as one tensor ``[n]``, with their names (None: not a term), where that costs less; else None."""
        return None

    def rest_of_terms(self) -> dict[str, Callable[[], Tensor]]:
        """The terms that are not in `term_vector`."""
        found = self.term_vector()
        return {name: term for name, term in self.terms().items() if found is None or name not in found[0]}

    @property
    def is_sampling(self) -> bool:
        """Whether the forward pass samples: always in training, in evaluation when asked for with `sampling`."""
        return self.training or self.sample_in_eval


def variational_modules(module: nn.Module) -> Iterator[tuple[str, VariationalModule]]:
    """Every `VariationalModule` inside `module` with its dotted name, each once, however it is nested or shared."""
    for name, inner in module.named_modules():
        if isinstance(inner, VariationalModule):
            yield name, inner


def outermost(module: nn.Module) -> Iterator[tuple[str, VariationalModule]]:
    """Those `variational_modules` that are not inside another one."""
    seen: set[int] = set()
    waiting: list[tuple[str, nn.Module]] = [("", module)]
    while waiting:
        name, inner = waiting.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        if isinstance(inner, VariationalModule):
            yield name, inner
            continue
        below = [(f"{name}.{key}" if name else key, child) for key, child in inner._modules.items() if child is not None]
        waiting += reversed(below)


def loss_terms(module: nn.Module) -> Iterator[LossTerm]:
    """The named terms of every layer inside `module`, for the last forward pass of each.

    A layer that was called several times since the last step speaks for its last call.
    """
    for layer, inner in outermost(module):
        for name, evaluate in inner.terms().items():
            yield LossTerm(layer, name, evaluate)


def consolidate(module: nn.Module) -> int:
    """Make every posterior inside `module` the prior of what comes next; returns how many modules did so."""
    found = [inner for _, inner in outermost(module)]
    for inner in found:
        inner.consolidate()
    return len(found)


@contextmanager
def sampling(module: nn.Module) -> Iterator[None]:
    """Within this context, evaluation draws from the posteriors instead of using their means (predictive uncertainty)."""
    found = [inner for _, inner in variational_modules(module)]
    before = [inner.sample_in_eval for inner in found]
    try:
        for inner in found:
            inner.sample_in_eval = True
        yield
    finally:
        for inner, value in zip(found, before, strict=True):
            inner.sample_in_eval = value
