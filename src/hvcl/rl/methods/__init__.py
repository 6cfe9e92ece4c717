"""Methods of continual reinforcement learning; importing this registers them all."""

from hvcl.rl.methods.ewc import EWC
from hvcl.rl.methods.growing import Growing
from hvcl.rl.methods.hvcl import HVCL
from hvcl.rl.methods.naive import Multitask, Naive, Reset
from hvcl.rl.methods.ppo import EWCPPO, UCLPPO
from hvcl.rl.methods.registry import Method, create, known_methods, method, register
from hvcl.rl.methods.ucl import UCL

__all__ = [
    "EWC",
    "EWCPPO",
    "HVCL",
    "UCL",
    "UCLPPO",
    "Growing",
    "Method",
    "Multitask",
    "Naive",
    "Reset",
    "create",
    "known_methods",
    "method",
    "register",
]
