"""Optimisers."""

from hvcl.optim.adam import VariationalAdam
from hvcl.optim.small import SmallAdam

__all__ = ["SmallAdam", "VariationalAdam"]
