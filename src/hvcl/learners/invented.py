"""Invented classes, of pictures or rows: what a learner may learn to learn from before a stream, without any data.

A class of pictures is a character of three strokes (quadratic Bezier curves), as in Omniglot; its examples are drawn by hands of
their own, which turn, scale, shift and tremble. Grey pictures are white on black; in colour, the ink is the class's, the paper
the example's, with light from one side. Values lie in [0, 1].

A class of rows is a Gaussian with a mean of its own, and directions of its own in which its examples differ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STROKES, POINTS = 3, 12
"""Of a character, and points of each stroke that are drawn."""

PEN = 0.045
"""Width of the pen, as a fraction of the picture's."""

DIRECTIONS = 16
"""In which the examples of a class of rows differ, at most."""


def invent(shape: tuple[int, ...], classes: int, examples: int) -> Tensor:
    """Examples of invented classes ``[classes, examples, *shape]``, from torch's present random state."""
    if len(shape) == 3:
        return pictures(classes, examples, shape)
    return rows(classes, examples, math.prod(shape)).view(classes, examples, *shape)


def pictures(classes: int, examples: int, shape: tuple[int, ...]) -> Tensor:
    """Characters ``[classes, examples, channels, height, width]``."""
    channels, height, width = shape
    ink = draw(by_hand(0.15 + 0.7 * torch.rand(classes, 1, STROKES, 3, 2), examples), height, width).unsqueeze(2)
    if channels == 1:
        return ink
    colour = torch.rand(classes, 1, channels, 1, 1)
    paper = torch.rand(classes, examples, channels, 1, 1)
    slopes = 0.4 * (torch.rand(2, classes, examples, 1, 1, 1) - 0.5)
    light = slopes[0] * torch.linspace(-1, 1, height).view(-1, 1) + slopes[1] * torch.linspace(-1, 1, width)
    return (ink * colour + (1 - ink) * paper + light).clamp(0, 1)


def by_hand(strokes: Tensor, examples: int) -> Tensor:
    """Control points ``[classes, 1, strokes, 3, 2]`` as each example has them ``[classes, examples, strokes, 3, 2]``."""
    size = (len(strokes), examples, 1, 1)
    angle, scale = 0.5 * torch.rand(size) - 0.25, (0.3 * torch.rand(size) - 0.15).exp()
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).unflatten(-1, (2, 2))
    turned = (scale.unsqueeze(-1) * (turn @ (strokes - 0.5).unsqueeze(-1)).squeeze(-1)) + 0.5
    shift = 0.16 * torch.rand(*size, 2) - 0.08
    found: Tensor = turned + shift + 0.03 * torch.randn(len(strokes), examples, *strokes.shape[2:])
    return found


def draw(strokes: Tensor, height: int, width: int) -> Tensor:
    """Ink in [0, 1] ``[..., height, width]`` of strokes, by control points (x, y) in the unit square ``[..., strokes, 3, 2]``."""
    t = torch.linspace(0, 1, POINTS)
    basis = torch.stack([(1 - t).square(), 2 * t * (1 - t), t.square()], 1)
    points = (basis @ strokes).flatten(-3, -2)

    def near(coordinate: Tensor, size: int) -> Tensor:
        places = (torch.arange(size) + 0.5) / size
        return (-(places - coordinate.unsqueeze(-1)).square() / (2 * PEN**2)).exp()

    across, down = near(points[..., 0], width), near(points[..., 1], height)
    return 1 - (-(down.transpose(-1, -2) @ across)).exp()


def rows(classes: int, examples: int, size: int) -> Tensor:
    """Gaussians ``[classes, examples, size]``: overall about as wide as standardised data."""
    means = torch.randn(classes, 1, size)
    count = min(size, DIRECTIONS)
    directions = torch.randn(classes, count, size) / count**0.5
    found: Tensor = means + 0.5 * torch.randn(classes, examples, count) @ directions
    return found
