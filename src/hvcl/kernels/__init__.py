"""Compiled passes over memory, where there is a C compiler; their users have plain torch operations for everywhere else.

The source is one small C file without dependencies. It is compiled at first use (about a second) into the cache folder, under a
name that depends on the source, the flags and the processor, and loaded with ctypes. torch.compile makes as fast an update but
compiles for tens of seconds in a new process, which short runs never earn back.
"""

from hvcl.kernels.library import (
    AdamStep,
    Chain,
    Conv,
    Dense,
    ExpertUpdate,
    Kernels,
    Network,
    Price,
    Products,
    load_kernels,
    scratch,
)

__all__ = [
    "AdamStep",
    "Chain",
    "Conv",
    "Dense",
    "ExpertUpdate",
    "Kernels",
    "Network",
    "Price",
    "Products",
    "load_kernels",
    "scratch",
]
