"""Gradients that bypass `.grad`: handed over, expert by expert, to an optimiser that applies them in one pass.

A stacked parameter [M, ...] gives autograd no way to say "only experts 3 and 5 have a gradient": every backward pass would fill
a dense gradient with zeros, and every KL term would walk over all weights twice more. A posterior whose updates are deferred
gives autograd a leaf of its own for each expert that is used, and collects what arrives there.
"""

from __future__ import annotations

import weakref
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


class Deferral:
    """Whose optimiser applies a posterior's gradients, and what has been collected for it so far.

    Copies and pickles of a module start without one: they belong to no optimiser.
    """

    def __init__(self) -> None:
        self._owner: weakref.ref[object] | None = None
        self.gradients: dict[int, list[Collected]] = {}
        self.kl_weights: Tensor | None = None
        self.kl: Tensor | None = None
        self._kl_versions: tuple[int, ...] | None = None

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
        self.kl = self._kl_versions = None
        self._owner = weakref.ref(owner)

    def clear(self) -> None:
        """Forget what was collected (zero_grad)."""
        self.gradients = {}
        self.kl_weights = None

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

    def anchor(self, like: Tensor) -> Tensor:
        """A leaf without a value, for functions whose inputs are not autograd's: something must ask for the backward pass."""
        return like.new_zeros((), requires_grad=True)

    def keep_kl_weights(self, weights: Tensor) -> None:
        """d loss / d KL of every expert, from one more backward pass."""
        self.kl_weights = weights if self.kl_weights is None else self.kl_weights + weights

    # -- values that only change when the weights do ------------------------------------------------------------------

    def remember_kl(self, kl: Tensor, *of: Tensor) -> None:
        """`kl` is the KL of the weights as they are now."""
        self.kl, self._kl_versions = kl, tuple(t._version for t in of)

    def recall_kl(self, *of: Tensor) -> Tensor | None:
        """The KL, if no weight has changed since it was remembered."""
        return self.kl if self._kl_versions == tuple(t._version for t in of) else None
