"""Learners: every method, ours and each one it is compared with, behind one small interface."""

from hvcl.learners import methods as _methods  # registers them
from hvcl.learners.base import Learner
from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.merging import merge
from hvcl.learners.methods.exact import Exact, ExactConfig
from hvcl.learners.methods.growing import Growing, GrowingConfig
from hvcl.learners.methods.hvcl import HVCL, HVCLConfig
from hvcl.learners.registry import Method, chosen_method, create, known_methods, method, register
from hvcl.learners.saving import load

__all__ = [
    "HVCL",
    "Exact",
    "ExactConfig",
    "GradientConfig",
    "GradientLearner",
    "Growing",
    "GrowingConfig",
    "HVCLConfig",
    "Learner",
    "Method",
    "chosen_method",
    "create",
    "known_methods",
    "load",
    "merge",
    "method",
    "register",
]

del _methods
