from __future__ import annotations

import pytest
import torch
from torch import nn

from hvcl.layers import MoVELinear

from .contract import BaseLayerContract


class TestMoVELinear(BaseLayerContract):
    layer_class = MoVELinear
    counterpart_class = nn.Linear
    arguments = (4, 3)
    geometry = {}  # noqa: RUF012
    item = (4,)
    fan_in = 4
    variants = ({}, {"bias": False})
    bad_inputs = ((5,), (2, 3), (4, 1), ())
    bad_arguments = (((0, 3), {}, "in_features"), ((3, 0), {}, "out_features"))

    def to_torch(self, weight):
        return weight.T

    def unit_of_weight(self, weight):
        return torch.arange(weight.shape[1]).expand_as(weight)

    @pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 3), (0, 3), (2, 0)])
    def test_any_leading_dimensions(self, shape):
        layer = self.build(experts=3, top_k=2).eval()
        x = torch.randn(*shape, 4, dtype=torch.float64)
        answer = layer(x)
        assert answer.shape == (*shape, 3)
        rows = self.reference(layer)
        for index in torch.cartesian_prod(*[torch.arange(n) for n in shape]).view(-1, len(shape)) if shape else [()]:
            at = tuple(index)
            torch.testing.assert_close(answer[at], rows.forward(x[at].view(1, 4))[0], rtol=1e-10, atol=1e-10)

    def test_a_transposed_input(self):
        layer = self.build(experts=3).eval()
        x = torch.randn(4, 6, dtype=torch.float64).T
        torch.testing.assert_close(layer(x), layer(x.contiguous()), rtol=1e-12, atol=1e-12)

    def test_a_new_gate_uses_more_than_one_expert(self):
        """Ties or a large bias would send every input to one expert, and the others would never learn."""
        torch.manual_seed(0)
        layer = self.fresh(experts=4)
        layer(self.inputs(64))
        assert len(set(layer.gate_log_probabilities.argmax(1).tolist())) == 4


def test_the_units_of_weights_lie_where_the_layer_says():
    """Compiled code reads sigmas and precisions of output units in this order."""
    posterior = MoVELinear(3, 4, experts=2, sigma="unit").posterior
    with torch.no_grad():
        posterior.rho.copy_(torch.arange(8.0).view(2, 4))
    outer, units, inner = posterior.unit_layout
    of_weights = posterior.expand_units(posterior.rho).expand_as(posterior.mean)
    expected = posterior.rho.view(2, 1, units, 1).expand(2, outer, units, inner)
    assert of_weights.reshape(2, outer, units, inner).equal(expected)
