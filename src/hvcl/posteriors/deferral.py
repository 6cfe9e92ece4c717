"""Gradients that bypass `.grad`: handed over, expert by expert, to an optimiser that applies them in one pass.

A stacked parameter [M, ...] gives autograd no way to say "only experts 3 and 5 have a gradient": every backward pass would fill
a dense gradient with zeros, and every KL term would walk over all weights twice more. A posterior whose updates are deferred
gives autograd a leaf of its own for each expert that is used, and collects what arrives there.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor

Kind = Literal["mean", "noise", "variance"]
"""What a collected gradient is of: the mean, sigma * shared noise (flipout), or sigma^2 (local reparameterisation)."""


class Collected(NamedTuple):
    """d loss / d (what `kind` names) of one expert; `shared` is the noise that sigma was multiplied with."""

    kind: Kind
    gradient: Tensor
    shared: Tensor | None


class Factors(NamedTuple):
    """The gradients of one backward pass through dense experts, not yet multiplied out.

    Rows `starts[m]` to `starts[m + 1]` belong to expert m, whose means have the gradient left^T right. With a sigma per weight
    there is d loss / d (sigma * shared) = noise_left^T noise_right, too. Nobody else may write to these tensors.
    """

    starts: Tensor
    left: Tensor
    right: Tensor
    noise_left: Tensor | None = None
    noise_right: Tensor | None = None
    shared: Tensor | None = None

    def multiplied(self) -> Iterator[tuple[int, Collected]]:
        """Every expert that has rows, with its gradients."""
        for expert, (a, b) in enumerate(itertools.pairwise(self.starts.tolist())):
            if a < b:
                yield expert, Collected("mean", self.left[a:b].T @ self.right[a:b], None)
                if self.noise_left is not None and self.noise_right is not None:
                    yield expert, Collected("noise", self.noise_left[a:b].T @ self.noise_right[a:b], self.shared)


class Deferral:
    """Whose optimiser applies a posterior's gradients, and what has been collected for it so far.

    Copies and pickles of a module start without one: they belong to no optimiser.
    """

    def __init__(self) -> None:
        self._owner: weakref.ref[object] | None = None
        self._collected: dict[int, list[Collected]] = {}
        self._factors: Factors | None = None
        self.kl_weights: Tensor | None = None
        self.kl: Tensor | None = None
        self._kl_versions: tuple[int, ...] | None = None
        self.push: Tensor | None = None
        self._distances: tuple[Tensor, tuple[int, ...]] | None = None
        self._changed: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Deferral:
        return Deferral()

    def __reduce__(self) -> tuple[type[Deferral], tuple[()]]:
        return Deferral, ()

    @property
    def active(self) -> bool:
        """Whether there is an optimiser that will apply what is collected."""
        return self._owner is not None and self._owner() is not None

    def begin(self, owner: object) -> None:
        """From now on `owner` applies the gradients, for as long as it lives."""
        self.clear()
        self.kl = self._kl_versions = self._distances = None
        self._owner = weakref.ref(owner)

    def clear(self) -> None:
        """Forget what was collected (zero_grad)."""
        self._collected = {}
        self._factors = None
        self.kl_weights = self.push = None

    @property
    def gradients(self) -> dict[int, list[Collected]]:
        """What was collected for each expert, multiplied out."""
        if self._factors is not None:
            factors, self._factors = self._factors, None
            for expert, item in factors.multiplied():
                self._collected.setdefault(expert, []).append(item)
        return self._collected

    @property
    def factors(self) -> Factors | None:
        """What was collected, if that is a single pass whose gradients are not yet multiplied out."""
        return self._factors

    def leaf(self, expert: int, kind: Kind, value: Tensor, shared: Tensor | None = None) -> Tensor:
        """A leaf with `value`; the gradient that a backward pass brings to it is collected for `expert`."""
        leaf = value.detach().requires_grad_()
        leaf.register_post_accumulate_grad_hook(partial(self._take, expert, kind, shared))
        return leaf

    def _take(self, expert: int, kind: Kind, shared: Tensor | None, leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        if gradient is not None:
            self.collect(expert, kind, gradient, shared)

    def collect(self, expert: int, kind: Kind, gradient: Tensor, shared: Tensor | None = None) -> None:
        """One more gradient for `expert`."""
        self.gradients.setdefault(expert, []).append(Collected(kind, gradient, shared))

    def collect_factors(self, factors: Factors) -> None:
        """The gradients of one more backward pass. Of several passes the products are kept: their factors would pile up."""
        if self._collected or self._factors is not None:
            for expert, item in factors.multiplied():
                self.gradients.setdefault(expert, []).append(item)
        else:
            self._factors = factors

    def anchor(self, like: Tensor) -> Tensor:
        """A leaf without a value, for functions whose inputs are not autograd's: something must ask for the backward pass."""
        return like.new_zeros((), requires_grad=True)

    def keep_kl_weights(self, weights: Tensor) -> None:
        """d loss / d KL of every expert, from one more backward pass."""
        self.kl_weights = weights if self.kl_weights is None else self.kl_weights + weights

    def keep_push(self, push: Tensor) -> None:
        """The diversity's gradient, from one more backward pass, as a matrix ``[M, M]`` to multiply the parameters with."""
        self.push = push if self.push is None else self.push + push

    # -- values that only change when the weights do ------------------------------------------------------------------

    def remember_kl(self, kl: Tensor, *of: Tensor) -> None:
        """`kl` is the KL of the weights as they are now."""
        self.kl, self._kl_versions = kl, tuple(t._version for t in of)

    def recall_kl(self, *of: Tensor) -> Tensor | None:
        """The KL, if no weight has changed since it was remembered."""
        return self.kl if self._kl_versions == tuple(t._version for t in of) else None

    def remember_distances(self, distances: Tensor, *of: Tensor) -> None:
        """`distances` between the experts are those of the weights as they are now."""
        self._distances, self._changed = (distances, tuple(t._version for t in of)), set()

    def recall_distances(self, *of: Tensor) -> tuple[Tensor | None, list[int]]:
        """The distances as remembered, and the experts that were stepped since; None if there was any other change."""
        if self._distances is None or self._distances[1] != tuple(t._version for t in of):
            return None, []
        return self._distances[0], sorted(self._changed)

    def stepped(self, experts: list[int], before: tuple[int, ...], *of: Tensor) -> None:
        """The optimiser has stepped some experts, which took the versions of their parameters from `before` to where they are."""
        if self._distances is not None and self._distances[1] == before:
            self._distances = self._distances[0], tuple(t._version for t in of)
            self._changed.update(experts)
        else:
            self._distances = None
