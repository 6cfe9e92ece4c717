"""The kinds of layers that a VAE is built from: plain ones, or mixtures of variational experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from hvcl.layers import MoVEConv2d, MoVEConvTranspose2d, MoVELinear, MoVEOptions
from hvcl.networks import ConvFactory, DenseFactory, plain_conv

TransposedFactory = Callable[[int, int, tuple[int, int]], nn.Module]
"""(in_channels, out_channels, output_padding) to a transposed 3x3 convolution with stride 2 and padding 1."""


@dataclass(frozen=True)
class Layers:
    """How each kind of layer of a VAE is made. The defaults are plain layers: then it is an ordinary VAE."""

    dense: DenseFactory = nn.Linear
    conv: ConvFactory = plain_conv
    transposed: TransposedFactory = lambda inputs, outputs, padding: nn.ConvTranspose2d(
        inputs, outputs, 3, stride=2, padding=1, output_padding=padding
    )
    mean: DenseFactory = nn.Linear
    """The layer of the latent means."""
    log_variance: DenseFactory = nn.Linear
    """The layer of the latent log variances."""


def move_layers(experts: int, mean_experts: int, options: MoVEOptions) -> Layers:
    """MoVE layers with `experts` experts; the latent mean has `mean_experts`, its log variance one (the paper's choice).

    With `routing="sample"` the expert of a latent mean is not drawn but routed straight through: the latent prior's component is
    that of the most probable expert, which must be the one that gave the mean.
    """
    mean_options = options.copy()
    if options.get("routing") == "sample":
        mean_options["routing"] = "straight-through"

    def transposed(inputs: int, outputs: int, padding: tuple[int, int]) -> nn.Module:
        geometry = {"stride": 2, "padding": 1, "output_padding": padding}
        return MoVEConvTranspose2d(inputs, outputs, 3, experts=experts, **geometry, **options)  # type: ignore[arg-type]

    return Layers(
        dense=partial(MoVELinear, experts=experts, **options),
        conv=partial(MoVEConv2d, kernel_size=3, stride=2, padding=1, experts=experts, **options),
        transposed=transposed,
        mean=partial(MoVELinear, experts=mean_experts, **mean_options),
        log_variance=partial(MoVELinear, experts=1, **options),
    )
