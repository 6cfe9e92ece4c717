from __future__ import annotations

import itertools
import math
from typing import ClassVar

import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError
from hvcl.layers import (
    MoVEConv1d,
    MoVEConv2d,
    MoVEConv3d,
    MoVEConvTranspose1d,
    MoVEConvTranspose2d,
    MoVEConvTranspose3d,
)

from .contract import BaseLayerContract

IN, OUT = 4, 6
KERNEL = (3, 2, 2)
PLACES = (6, 5, 5)


class BaseConvContract(BaseLayerContract):
    """What both kinds of convolution add: channels, geometry, unbatched inputs."""

    dimensions: ClassVar[int]

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "dimensions"):
            return
        n = cls.dimensions
        cls.arguments = (IN, OUT, KERNEL[:n])
        cls.item = (IN, *PLACES[:n])
        cls.bad_inputs = ((IN, *[4] * (n - 1)), (2, 3, *[4] * n), (3, *[4] * n), (1, 2, IN, *[4] * n), (), (IN,))
        cls.bad_arguments = (
            ((0, 6, 2), {}, "in_channels"),
            ((4, 0, 2), {}, "out_channels"),
            ((4, 6, 0), {}, "kernel_size"),
            ((4, 6, (2,) * (n + 1)), {}, "kernel_size"),
            *((cls.arguments, bad, name) for bad, name in cls.bad_geometry(n)),
        )
        cls.set_geometry(n)

    @classmethod
    def bad_geometry(cls, n: int) -> list[tuple[dict[str, object], str]]:
        return [
            ({"groups": 3}, "groups"),
            ({"groups": 4}, "groups"),
            ({"groups": 0}, "groups"),
            ({"stride": 0}, "stride"),
            ({"stride": (1,) * (n + 1)}, "stride"),
            ({"dilation": 0}, "dilation"),
            ({"padding": -1}, "padding"),
        ]

    @classmethod
    def set_geometry(cls, n: int) -> None:
        raise NotImplementedError

    def test_one_unbatched_example(self):
        layer = self.build(experts=3, top_k=2).eval()
        x = self.inputs(1)
        answer = layer(x[0])
        torch.testing.assert_close(answer, self.reference(layer).forward(x)[0], rtol=1e-10, atol=1e-10)

    def test_a_channels_last_input(self):
        layer = self.build(experts=3, top_k=2)
        x = self.inputs(6)
        strided = x.movedim(1, -1).contiguous().movedim(-1, 1)
        assert not strided.is_contiguous()
        answers = []
        for batch in (x, strided):
            torch.manual_seed(0)
            answers.append(layer(batch))
        torch.testing.assert_close(*answers, rtol=1e-12, atol=1e-12)

    def test_an_integer_size_is_the_same_in_every_dimension(self):
        layer = self.layer_class(IN, OUT, 2, stride=2)
        assert layer.posterior.mean.shape[-self.dimensions :] == (2,) * self.dimensions
        assert (
            layer.eval()(torch.zeros(1, *self.item)).shape
            == self.counterpart_class(IN, OUT, 2, 2)(torch.zeros(1, *self.item)).shape
        )

    def test_arguments_come_in_torchs_order(self):
        """A line that builds the torch.nn layer builds the MoVE layer, all arguments by position."""
        transposed = "Transpose" in self.layer_class.__name__
        positional = (2, 0, 1, 2, False, 1, "zeros") if transposed else (1, 2, 1, 2, False, "circular")
        layer = self.layer_class(IN, OUT, 3, *positional, experts=1).double()
        counterpart = self.counterpart_class(IN, OUT, 3, *positional).double()
        with torch.no_grad():
            counterpart.weight.copy_(layer.posterior.mean[0])
        x = self.inputs(2)
        torch.testing.assert_close(layer.eval()(x), counterpart(x), rtol=1e-12, atol=1e-12)


class BaseConvolution(BaseConvContract):
    @classmethod
    def set_geometry(cls, n):
        cls.geometry = {"stride": 2, "padding": 1, "groups": 2}
        cls.fan_in = IN / 2 * math.prod(KERNEL[:n])
        cls.variants = (
            {},
            {"stride": (2, 1, 3)[:n]},
            {"padding": (1, 0, 2)[:n], "bias": False},
            {"dilation": 2},
            {"groups": 2, "dilation": (2, 1, 2)[:n], "stride": (1, 2, 1)[:n]},
            {"padding": "valid"},
            {"padding": "same"},
            {"padding": "same", "padding_mode": "circular", "dilation": (2, 1, 2)[:n], "groups": 2},
            {"padding": (2, 1, 0)[:n], "padding_mode": "reflect"},
            {"padding": (0, 1, 2)[:n], "padding_mode": "replicate", "stride": 2},
            {"padding": "valid", "padding_mode": "circular"},
        )

    @classmethod
    def bad_geometry(cls, n):
        return [
            *super().bad_geometry(n),
            ({"padding": "full"}, "padding"),
            ({"padding": "same", "stride": 2}, "padding"),
            ({"padding_mode": "mirror"}, "padding_mode"),
        ]

    def unit_of_weight(self, weight):
        return torch.arange(OUT).view(-1, *[1] * (weight.dim() - 1)).expand_as(weight)


class BaseTransposed(BaseConvContract):
    @classmethod
    def set_geometry(cls, n):
        cls.geometry = {"stride": (2, 1, 2)[:n], "padding": 1, "output_padding": (1, 0, 0)[:n], "groups": 2}
        cls.fan_in = IN / 2 * math.prod(KERNEL[:n]) / math.prod((2, 1, 2)[:n])
        cls.variants = (
            {},
            {"stride": (2, 1, 3)[:n], "bias": False},
            {"padding": (1, 0, 1)[:n]},
            {"dilation": (2, 1, 2)[:n], "groups": 2},
            {"stride": 2, "output_padding": (1, 0, 1)[:n], "padding": 1, "groups": 2},
        )

    @classmethod
    def bad_geometry(cls, n):
        return [
            *super().bad_geometry(n),
            ({"padding": "same"}, "padding"),
            ({"output_padding": -1}, "output_padding"),
            ({"padding_mode": "circular"}, "padding_mode"),
        ]

    def unit_of_weight(self, weight):
        """Input channel i of group g feeds the group's own outputs: weight[i, j] belongs to unit g * out / groups + j."""
        inputs, per_group = weight.shape[:2]
        groups = OUT // per_group
        units = torch.tensor([[i // (inputs // groups) * per_group + j for j in range(per_group)] for i in range(inputs)])
        return units.view(inputs, per_group, *[1] * (weight.dim() - 2)).expand_as(weight)

    @pytest.mark.parametrize("leading", [False, True])
    def test_output_size_picks_among_the_sizes_that_a_stride_leaves_open(self, leading):
        n = self.dimensions
        geometry = {"stride": 3, "padding": 1, "groups": 2}
        layer, counterpart = self.build(geometry, experts=1).eval(), self.counterpart(geometry)
        with torch.no_grad():
            counterpart.weight.copy_(layer.posterior.mean[0])
            counterpart.bias.copy_(layer.bias[0])
        x = self.inputs(2)
        least = counterpart(x).shape[2:]
        for extra in itertools.product(range(3), repeat=n):
            size = [low + e for low, e in zip(least, extra, strict=True)]
            expected = counterpart(x, output_size=size)
            answer = layer(x, output_size=[2, OUT, *size] if leading else size)
            assert list(answer.shape[2:]) == size
            torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-12)
        assert layer(x).shape[2:] == least  # and it is forgotten afterwards

    def test_output_size_out_of_reach(self):
        layer = self.build({"stride": 2}, experts=2)
        x = self.inputs(2)
        least = list(layer(x).shape[2:])
        for size in ([s + 2 for s in least], [s - 1 for s in least], least[:-1]):
            with pytest.raises(InputError, match="output_size"):
                layer(x, output_size=size)
        assert list(layer(x, output_size=[s + 1 for s in least]).shape[2:]) == [s + 1 for s in least]

    def test_a_bad_input_with_an_output_size_is_told_what_fits(self):
        layer = self.build({"stride": 2}, experts=2)
        for shape in ((), (IN,), (2, 3)):
            with pytest.raises(InputError, match="expects"):
                layer(torch.zeros(shape, dtype=torch.float64), output_size=[9] * self.dimensions)

    def test_output_padding_must_be_smaller_than_stride_or_dilation(self):
        with pytest.raises(InputError, match="output_padding"):
            self.layer_class(*self.arguments, stride=2, output_padding=2)

    @pytest.mark.parametrize("estimator", ["flipout", "local"])
    @pytest.mark.parametrize("sigma", ["weight", "unit"])
    def test_places_that_no_input_reaches_have_no_noise(self, estimator, sigma):
        layer = self.build({"stride": 4, "output_padding": 1}, experts=1, estimator=estimator, sigma=sigma)
        x = self.inputs(2).requires_grad_()
        answer = layer(x)
        reached = layer._operator(torch.ones_like(x), torch.ones_like(layer.posterior.mean[0]), None) > 0
        assert not reached.all()
        bias = layer.bias[0].view(1, -1, *[1] * self.dimensions).expand_as(answer)
        torch.testing.assert_close(answer[~reached], bias[~reached], rtol=0, atol=1e-8)
        answer.square().sum().backward()
        assert x.grad.isfinite().all()
        assert layer.posterior.rho.grad.isfinite().all()


class TestMoVEConv1d(BaseConvolution):
    dimensions = 1
    layer_class = MoVEConv1d
    counterpart_class = nn.Conv1d


class TestMoVEConv2d(BaseConvolution):
    dimensions = 2
    layer_class = MoVEConv2d
    counterpart_class = nn.Conv2d


class TestMoVEConv3d(BaseConvolution):
    dimensions = 3
    layer_class = MoVEConv3d
    counterpart_class = nn.Conv3d


class TestMoVEConvTranspose1d(BaseTransposed):
    dimensions = 1
    layer_class = MoVEConvTranspose1d
    counterpart_class = nn.ConvTranspose1d


class TestMoVEConvTranspose2d(BaseTransposed):
    dimensions = 2
    layer_class = MoVEConvTranspose2d
    counterpart_class = nn.ConvTranspose2d


class TestMoVEConvTranspose3d(BaseTransposed):
    dimensions = 3
    layer_class = MoVEConvTranspose3d
    counterpart_class = nn.ConvTranspose3d
