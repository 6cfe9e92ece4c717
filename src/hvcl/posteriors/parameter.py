"""Parameters whose gradients are collected, and made available in `.grad` on demand."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hvcl.ops.border import plain_tensor
from hvcl.ops.gradients import Contribution, Dense, added
from hvcl.posteriors.mean_field import MeanFieldGaussian

_GRAD: Any = torch.Tensor.grad
"""The attribute itself, whatever a subclass makes of it."""

_posteriors: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The posterior of each parameter; not an attribute, so that copies and pickles have none."""


@plain_tensor
class CollectedParameter(nn.Parameter):
    """A parameter whose gradient is collected elsewhere until `.grad` is read.

    Then it is multiplied out, everything that belongs to it (KL and diversity included) is added up, and it stays in `.grad`, as
    autograd would have left it: gradient clipping, scalers, hooks and loggers see it and may change it. The optimiser goes on
    from there, at the price of the speed that collecting has.
    """

    @property
    def grad(self) -> Tensor | None:
        """The gradient, multiplied out now if it was not yet."""
        reference = _posteriors.get(self)
        posterior = None if reference is None else reference()
        if posterior is not None:
            multiply_out(posterior)
        return raw_grad(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        _GRAD.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        _GRAD.__delete__(self)


def raw_grad(parameter: Tensor) -> Tensor | None:
    """What is in `.grad`, without multiplying anything out."""
    found: Tensor | None = _GRAD.__get__(parameter)
    return found


def collect(posterior: MeanFieldGaussian, owner: object) -> None:
    """From now on the posterior's gradients are collected for `owner`, for as long as it lives."""
    posterior.collector.begin(owner)
    collect_with(posterior, posterior.stepped_together)


def collect_with(posterior: MeanFieldGaussian, parameters: Iterable[Tensor]) -> None:
    """The gradients of these parameters may be collected with those of a posterior."""
    for parameter in parameters:
        if type(parameter) is nn.Parameter:
            parameter.__class__ = CollectedParameter
        if isinstance(parameter, CollectedParameter):
            _posteriors[parameter] = weakref.ref(posterior)


@torch.no_grad()
def move_others(contribution: Contribution) -> None:
    """Move the gradients of a layer's other parameters to their `.grad`."""
    for parameter, gradient in contribution.others():
        there = raw_grad(parameter)
        _GRAD.__set__(parameter, gradient if there is None else there + gradient)


@torch.no_grad()
def multiply_out(posterior: MeanFieldGaussian) -> None:
    """Move everything that was collected for a posterior to the `.grad` of its parameters."""
    collector = posterior.collector
    if collector.empty:
        return
    every = list(range(posterior.experts))
    for contribution in collector.contributions:
        move_others(contribution)
    total = None if not collector.contributions else Dense.total(collector.contributions)
    mean, rho = (None, None) if total is None else total.multiplied()
    parts: list[tuple[Any, Any]] = [(mean, rho)]
    if collector.push is not None:
        pushed = posterior.pushed(every)
        assert pushed is not None
        parts.append(pushed)
    weights = added(collector.kl_weights, None if total is None else total.kl_weights())
    if weights is not None:
        parts.append(posterior.kl_gradient(weights))
    collector.multiplied_out([False] * len(every) if total is None else total.used())
    for number, parameter in enumerate(posterior.stepped_together):
        there = raw_grad(parameter)
        for part in parts:
            if part[number] is not None:
                there = part[number].clone() if there is None else there + part[number]
        _GRAD.__set__(parameter, there)
