"""Gradients of experts on their way from a compiled backward pass to an optimiser that applies them in one pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from hvcl.ops.border import address, optional


class Contribution(ABC):
    """The gradients of a layer's experts from one backward pass."""

    @property
    def direct(self) -> bool:
        """Whether the step can read them where they are (`describe`)."""
        return True

    @property
    def tells_used(self) -> bool:
        """Whether what `describe` tells has in it which experts had any example."""
        return False

    @property
    def memory(self) -> object | None:
        """The memory that they are in, if it is used again by others of the same kind: then `describe` would tell the same."""
        return None

    @abstractmethod
    def used(self) -> list[bool]:
        """Whether each expert had any example."""

    @abstractmethod
    def multiplied(self) -> tuple[Tensor, Tensor | None]:
        """The gradients of all means and, for a sigma per weight with noise, of all log sigmas; zero for unused experts."""

    def kl_weights(self) -> Tensor | None:
        """d loss / d KL of every expert, if the pass brought it."""
        return None

    def others(self) -> list[tuple[Tensor, Tensor]]:
        """The layer's other parameters whose gradients are collected with these, each with its gradient."""
        return []

    def other_parameters(self) -> list[Tensor]:
        """The parameters of `others` that `describe` covers."""
        return []

    @abstractmethod
    def describe(self, experts: Any, plains: Any) -> None:
        """Tell the structure `Experts` of hvcl.h where they are, for as long as this object lives.

        `plains` are structures `Plain`, one for each of `other_parameters`.
        """


class Sink(Protocol):
    """Whoever takes the experts' gradients of a layer instead of autograd."""

    @property
    def anchor(self) -> Tensor:
        """A leaf that asks for the backward pass."""

    def offer(self, pairs: Sequence[tuple[Any, Contribution]]) -> None:
        """The gradients of one backward pass, each for one sink; they count once that pass has come to this one's anchor."""


class Dense(Contribution):
    """Gradients ``[M, ...]`` of means and log sigmas as autograd has them, or sums of several passes."""

    def __init__(self, mean: Tensor, log_sigma: Tensor | None, used: list[bool], kl_weights: Tensor | None = None) -> None:
        self.mean, self.log_sigma, self._used = mean.contiguous(), None if log_sigma is None else log_sigma.contiguous(), used
        self._kl_weights = kl_weights

    def used(self) -> list[bool]:
        """Whether each expert had any example."""
        return self._used

    def multiplied(self) -> tuple[Tensor, Tensor | None]:
        """The gradients of all means and log sigmas."""
        return self.mean, self.log_sigma

    def kl_weights(self) -> Tensor | None:
        """d loss / d KL of every expert."""
        return self._kl_weights

    @property
    def direct(self) -> bool:
        """No: they are added to others."""
        return False

    def describe(self, experts: Any, plains: Any) -> None:
        """Not for these."""
        raise AssertionError("dense gradients are given as such")

    @classmethod
    def total(cls, contributions: list[Contribution]) -> Dense:
        """The sum of several."""
        mean, log_sigma = contributions[0].multiplied()
        mean, used, weights = mean.clone(), contributions[0].used(), contributions[0].kl_weights()
        for contribution in contributions[1:]:
            of_mean, of_sigma = contribution.multiplied()
            mean += of_mean
            log_sigma, weights = added(log_sigma, of_sigma), added(weights, contribution.kl_weights())
            used = [a or b for a, b in zip(used, contribution.used(), strict=True)]
        return cls(mean, log_sigma, used, weights)


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of what there is."""
    return b if a is None else a if b is None else a + b


class Stacked(Contribution):
    """Gradients of a convolution's experts ``[M, ...]``, zero for unused ones.

    With a sigma per weight `noise` is the gradient of sigma * shared, or (`variance`) of sigma^2.
    """

    def __init__(
        self, mean: Tensor, noise: Tensor | None, shared: Tensor | None, variance: bool, log_sigma: Tensor, used: list[bool]
    ) -> None:
        self.mean, self.noise, self.shared, self.variance = mean, noise, shared, variance
        self.log_sigma, self._used = log_sigma, used

    def used(self) -> list[bool]:
        """Whether each expert had any example."""
        return self._used

    def multiplied(self) -> tuple[Tensor, Tensor | None]:
        """The gradients of all means and log sigmas."""
        if self.noise is None:
            return self.mean, None
        sigma = self.log_sigma.detach().exp()
        return self.mean, self.noise * (2 * sigma.square() if self.shared is None else self.shared * sigma)

    def describe(self, experts: Any, plains: Any) -> None:
        """Tell where they are."""
        shape = tuple(self.mean.shape)
        experts.g_mean, experts.g_noise = address(self.mean, *shape), optional(self.noise, *shape)
        experts.shared, experts.variance = optional(self.shared, *shape[1:]), self.variance
