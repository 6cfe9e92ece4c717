"""Gradients of experts that bypass `.grad`: collected for an optimiser that applies them in one pass.

A stacked parameter [M, ...] gives autograd no way to say "only experts 3 and 5 have a gradient": every backward pass would fill a
dense gradient with zeros, and every KL term would walk over all weights twice more. Compiled backward passes offer what they have
(`hvcl.ops.gradients`), KL terms and the diversity their weights, and the optimiser does the rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvcl.ops import Contribution

Offer = tuple[int, str, Any]
"""The backward pass it is from, what it is, and the thing itself."""


class Collector:
    """The gradients of a posterior that were collected so far, and the optimiser that will apply them.

    Copies and pickles of a module start without one: they belong to no optimiser.
    """

    def __init__(self) -> None:
        self._owner: weakref.ref[object] | None = None
        self._offers: list[Offer] = []
        self._anchor: Tensor | None = None
        self.kl: Tensor | None = None
        """The experts' KLs as they were when the weights and priors had `kl_versions`."""
        self.kl_versions: tuple[int, ...] = ()
        self._distances: tuple[Tensor, tuple[int, ...]] | None = None
        self._changed: set[int] = set()
        self._rooms: dict[int, Tensor] = {}
        self.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Collector:
        return Collector()

    def __reduce__(self) -> tuple[type[Collector], tuple[()]]:
        return Collector, ()

    @property
    def owner(self) -> object | None:
        """The optimiser that will apply what is collected, if there is one."""
        return None if self._owner is None else self._owner()

    def begin(self, owner: object) -> None:
        """From now on `owner` applies the gradients, for as long as it lives."""
        self.clear()
        self.kl = self._distances = None
        self._owner = weakref.ref(owner)
        self._anchor = torch.zeros((), dtype=torch.float32, requires_grad=True)
        self._anchor.register_post_accumulate_grad_hook(self._arrived)

    def clear(self) -> None:
        """Forget what was collected (zero_grad)."""
        self._offers = []
        self.contributions: list[Contribution] = []
        """The experts' gradients, one entry for every backward pass."""
        self.kl_weights: Tensor | None = None
        """d loss / d KL of every expert ``[M]``."""
        self.push: Tensor | None = None
        """The diversity's gradient, as a matrix ``[M, M]`` to multiply the parameters with."""
        self.used: list[bool] | None = None
        """Which experts had examples in what was moved to `.grad` since (`multiplied_out`); None if nothing was."""

    def multiplied_out(self, used: list[bool]) -> None:
        """What was collected has been moved to `.grad`; these experts had examples."""
        before = self.used or [False] * len(used)
        self.clear()
        self.used = [a or b for a, b in zip(before, used, strict=True)]

    @property
    def empty(self) -> bool:
        """Whether nothing was collected."""
        return not self.contributions and self.kl_weights is None and self.push is None

    def room_like(self, values: Tensor) -> Tensor:
        """Memory like `values` for the diversity's gradient; fresh memory of this size would cost more than what is put there."""
        room = self._rooms.get(id(values))
        if room is None or room.shape != values.shape or room.dtype != values.dtype or room.device != values.device:
            room = self._rooms[id(values)] = torch.empty_like(values, requires_grad=False)
        return room

    # -- during a backward pass -----------------------------------------------------------------------------------------------

    @property
    def anchor(self) -> Tensor:
        """A leaf without a value: a backward pass that comes to it is one that asks for the experts' gradients.

        torch.autograd.grad of the input alone does not: what it makes on its way is offered, but never collected.
        """
        assert self._anchor is not None
        return self._anchor

    def offer(self, pairs: Sequence[tuple[Collector, Contribution]]) -> None:
        """The experts' gradients of one backward pass, each for one collector."""
        self._offer("experts", pairs)

    def offer_kl_weights(self, weights: Tensor) -> None:
        """d loss / d KL of every expert, of one backward pass."""
        self._offer("kl", weights)

    def offer_push(self, push: Tensor) -> None:
        """The diversity's gradient of one backward pass."""
        self._offer("push", push)

    def _offer(self, kind: str, value: Any) -> None:
        self._offers.append((torch._C._current_graph_task_id(), kind, value))

    def _arrived(self, anchor: Tensor) -> None:
        anchor.grad = None
        offers, self._offers = self._offers, []
        current = torch._C._current_graph_task_id()
        for task, kind, value in offers:
            if task != current:
                continue
            if kind == "experts":
                for collector, contribution in value:
                    collector.contributions.append(contribution)
            elif kind == "kl":
                self.kl_weights = value if self.kl_weights is None else self.kl_weights + value
            else:
                self.push = value if self.push is None else self.push + value

    # -- values that only change when the weights do --------------------------------------------------------------------------

    def remember_distances(self, distances: Tensor, *of: Tensor) -> None:
        """`distances` between the experts are those of the weights as they are now."""
        self._distances, self._changed = (distances, _versions(of)), set()

    @property
    def remembers_distances(self) -> bool:
        """Whether there are any distances to remember."""
        return self._distances is not None

    def recall_distances(self, *of: Tensor) -> tuple[Tensor | None, list[int]]:
        """The distances as remembered, and the experts that were stepped since; None if there was any other change."""
        if self._distances is None or self._distances[1] != _versions(of):
            return None, []
        return self._distances[0], sorted(self._changed)

    def stepped(self, experts: list[int], before: tuple[int, ...], *of: Tensor) -> None:
        """The optimiser has stepped some experts, which took the versions of their parameters from `before` to where they are."""
        if self._distances is not None and self._distances[1] == before:
            self._distances = self._distances[0], _versions(of)
            self._changed.update(experts)
        else:
            self._distances = None


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors)
