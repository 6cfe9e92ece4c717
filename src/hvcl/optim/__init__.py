"""Optimisers for variational parameters."""

from hvcl.optim.adam import VariationalAdam

__all__ = ["VariationalAdam"]
