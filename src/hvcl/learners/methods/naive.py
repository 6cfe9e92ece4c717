"""Naive sequential training: the lower bound.

The network is trained on whatever comes, and nothing is done against forgetting.
"""

from __future__ import annotations

from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.registry import register


@register("naive", GradientConfig)
class Naive(GradientLearner):
    """Trains on whatever comes, nothing against forgetting (the lower bound)."""
