"""What a decoder's outputs say about an input: log p(x|z) and the input that is expected."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError, UnknownNameError

LikelihoodName = Literal["bce", "logistic", "gaussian"]

LEVELS = 256
"""Grey levels of a pixel, for the discretised likelihood."""


class Likelihood(nn.Module, ABC):
    """One output of the decoder for each number of the input; inputs are independent given z."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        """log p(x|z) in nats, summed over each example's numbers: ``[B]``."""

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """E[x|z], in the shape of the outputs."""

    def check(self, x: Tensor) -> None:
        """Raise `InputError` for inputs that this likelihood does not describe: without more said, any finite numbers will do."""
        if not bool(x.isfinite().all()):
            raise InputError("the inputs hold NaN or infinite values: clean them first")


class _OfPixels(Likelihood):
    """Inputs between 0 and 1."""

    def check(self, x: Tensor) -> None:
        """Pixels lie in [0, 1]."""
        low, high = (float(value) for value in torch.aminmax(x))
        if not (low >= 0 and high <= 1):
            super().check(x)
            raise InputError(
                f"this likelihood describes inputs between 0 and 1, got values from {low:.3g} to {high:.3g}: "
                "scale the inputs, or choose likelihood='gaussian'"
            )


class Bernoulli(_OfPixels):
    r"""Binary cross-entropy on pixels in [0, 1], the paper's choice.

    .. math:: \log p(x|z) = \sum_i x_i \log p_i + (1 - x_i) \log (1 - p_i), \qquad p = \text{sigmoid}(outputs)

    A likelihood in the strict sense for x in {0, 1} only; on grey pixels it is not normalised.
    """

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        """Minus the binary cross-entropy."""
        return -F.binary_cross_entropy_with_logits(outputs, x, reduction="none").flatten(1).sum(1)

    def mean(self, outputs: Tensor) -> Tensor:
        """The sigmoid."""
        return outputs.sigmoid()


class DiscretisedLogistic(_OfPixels):
    r"""A logistic distribution about sigmoid(outputs), integrated over each of 256 grey levels: for photographs.

    .. math::
        p(x_i|z) = \sigma\Big(\frac{x_i + \delta - \mu_i}{s}\Big) - \sigma\Big(\frac{x_i - \delta - \mu_i}{s}\Big),
        \qquad \delta = \tfrac{1}{2 \cdot 255}

    with one learned scale s for each channel (or for all numbers of a vector). The lowest level takes the whole lower tail and
    the highest the upper one (Salimans et al., 2017). A small s makes fine detail worth its nats, where binary cross-entropy is
    content with fog. The difference is computed as
    :math:`\sigma(a) - \sigma(b) = \sigma(a) \sigma(-b) (1 - e^{b - a})`, which does not cancel.
    """

    def __init__(self, input_shape: tuple[int, ...], initial_scale: float = 0.1) -> None:
        super().__init__()
        channels = (input_shape[0], *[1] * (len(input_shape) - 1)) if len(input_shape) > 1 else (1,)
        self.log_scale = nn.Parameter(torch.full(channels, math.log(initial_scale)))

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        """The log of the mass of each pixel's grey level."""
        half = 0.5 / (LEVELS - 1)
        inverse = (-self.log_scale).exp()
        distance = x - outputs.sigmoid()
        upper, lower = (distance + half) * inverse, (distance - half) * inverse
        inside = F.logsigmoid(upper) + F.logsigmoid(-lower) + torch.log(-torch.expm1(-2 * half * inverse))
        mass = torch.where(x < half, F.logsigmoid(upper), torch.where(x > 1 - half, F.logsigmoid(-lower), inside))
        return mass.flatten(1).sum(1)

    def mean(self, outputs: Tensor) -> Tensor:
        """The centre of the logistic."""
        return outputs.sigmoid()


class Gaussian(Likelihood):
    """N(outputs, s^2) with one learned s: for inputs that are not pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def log_prob(self, outputs: Tensor, x: Tensor) -> Tensor:
        """The log density."""
        standard = (x - outputs) * (-self.log_scale).exp()
        return -(0.5 * standard.square() + self.log_scale + 0.5 * math.log(2 * math.pi)).flatten(1).sum(1)

    def mean(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        return outputs


def make_likelihood(name: LikelihoodName, input_shape: tuple[int, ...]) -> Likelihood:
    """The likelihood called `name` for inputs of this shape; an unknown name raises `UnknownNameError`."""
    match name:
        case "bce":
            return Bernoulli()
        case "logistic":
            return DiscretisedLogistic(input_shape)
        case "gaussian":
            return Gaussian()
    raise UnknownNameError("likelihood", name, get_args(LikelihoodName))
