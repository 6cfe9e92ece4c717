"""Optimisers."""

from hvcl.optim.adam import VariationalAdam
from hvcl.optim.small import SmallAdam
from hvcl.optim.state import load_optimizer_state

__all__ = ["SmallAdam", "VariationalAdam", "load_optimizer_state"]
