"""MoVE layers: drop-in counterparts of torch.nn's layers with a mixture of variational experts inside."""

from hvcl.layers.base import MoVELayer
from hvcl.layers.context import PooledInput, WithContext, follow
from hvcl.layers.conv import (
    MoVEConv1d,
    MoVEConv2d,
    MoVEConv3d,
    MoVEConvTranspose1d,
    MoVEConvTranspose2d,
    MoVEConvTranspose3d,
)
from hvcl.layers.convert import convert
from hvcl.layers.linear import MoVELinear
from hvcl.layers.module import (
    LossTerm,
    VariationalModule,
    consolidate,
    loss_terms,
    sampling,
    variational_modules,
)
from hvcl.layers.options import MoVEOptions
from hvcl.layers.stack import MoVEStack
from hvcl.layers.weight import ExpertWeights

__all__ = [
    "ExpertWeights",
    "LossTerm",
    "MoVEConv1d",
    "MoVEConv2d",
    "MoVEConv3d",
    "MoVEConvTranspose1d",
    "MoVEConvTranspose2d",
    "MoVEConvTranspose3d",
    "MoVELayer",
    "MoVELinear",
    "MoVEOptions",
    "MoVEStack",
    "PooledInput",
    "VariationalModule",
    "WithContext",
    "consolidate",
    "convert",
    "follow",
    "loss_terms",
    "sampling",
    "variational_modules",
]
