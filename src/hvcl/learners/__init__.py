"""Learners: every method, ours and each one it is compared with, behind one small interface."""

from hvcl.learners import hvcl as _hvcl
from hvcl.learners import joint as _joint
from hvcl.learners import naive as _naive
from hvcl.learners.base import Learner
from hvcl.learners.exact import Exact, ExactConfig, merge
from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.growing import Growing, GrowingConfig
from hvcl.learners.hvcl import HVCL, HVCLConfig
from hvcl.learners.registry import Method, create, known_methods, method, register

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
    "create",
    "known_methods",
    "merge",
    "method",
    "register",
]

del _hvcl, _joint, _naive  # imported so that they register themselves
