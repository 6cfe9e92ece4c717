"""Learners: every method, ours and each one it is compared with, behind one small interface."""

from hvcl.learners import agem as _agem
from hvcl.learners import derpp as _derpp
from hvcl.learners import dgr as _dgr
from hvcl.learners import dgr_distill as _dgr_distill
from hvcl.learners import er as _er
from hvcl.learners import ewc as _ewc
from hvcl.learners import gem as _gem
from hvcl.learners import hal as _hal
from hvcl.learners import hvcl as _hvcl
from hvcl.learners import hvcl_paper as _hvcl_paper
from hvcl.learners import hvcl_replay as _hvcl_replay
from hvcl.learners import joint as _joint
from hvcl.learners import lwf as _lwf
from hvcl.learners import mas as _mas
from hvcl.learners import naive as _naive
from hvcl.learners import ncl as _ncl
from hvcl.learners import rtf as _rtf
from hvcl.learners import si as _si
from hvcl.learners import tlr as _tlr
from hvcl.learners import ucb as _ucb
from hvcl.learners import ucl as _ucl
from hvcl.learners import vcl as _vcl
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

# imported so that they register themselves
del _agem, _derpp, _dgr, _dgr_distill, _er, _ewc, _gem, _hal, _hvcl, _hvcl_paper, _hvcl_replay, _joint, _lwf
del _mas, _naive, _ncl, _rtf, _si, _tlr, _ucb, _ucl, _vcl
