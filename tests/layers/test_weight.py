"""MoVE layers in the place of linear maps whose `.weight` and `.bias` are read: torch's attention and transformers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.layers import MoVELinear, loss_terms
from hvcl.optim import VariationalAdam


def encoder(**options) -> nn.TransformerEncoderLayer:
    """A transformer layer whose maps are MoVE layers (all but the packed projection of queries, keys and values)."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.linear1, layer.linear2 = MoVELinear(8, 16, 3, **options), MoVELinear(16, 8, 3, **options)
    layer.self_attn.out_proj = MoVELinear(8, 8, 3, **options)
    return layer


def test_linear_with_the_handle_is_the_layer():
    layer, x = MoVELinear(5, 3, 4).eval(), torch.randn(2, 6, 5)
    assert torch.equal(F.linear(x, layer.weight, layer.bias), layer(x))
    bare = MoVELinear(5, 3, 4, bias=False).eval()
    assert torch.equal(F.linear(x, bare.weight), bare(x))


def test_the_handle_answers_as_a_matrix():
    layer = MoVELinear(5, 3, 4, dtype=torch.float64)
    weight = layer.weight
    assert weight.shape == weight.size() == (3, 5)
    assert (weight.dim(), weight.ndim, weight.numel(), len(weight), weight.size(0)) == (2, 2, 15, 3, 3)
    assert (weight.dtype, weight.device, weight.requires_grad) == (torch.float64, torch.device("cpu"), True)
    assert not layer.requires_grad_(False).weight.requires_grad
    assert "4 experts" in repr(weight)
    assert "weight" not in dict(layer.named_parameters())


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: w.T,
        lambda w: w.data,
        lambda w: torch.randn(2, 5) @ w,
        nn.init.xavier_uniform_,
        lambda w: w.detach().zero_(),
        lambda w: w.tolist(),
        lambda w: torch.save(w, "/dev/null"),
        lambda w: w.numpy(),
        lambda w: w[0],
        lambda w: F.linear(w, torch.ones(2, 5)),
        lambda w: w.data_ptr(),
        lambda w: F.embedding(torch.tensor([0]), w),
        copy.deepcopy,
    ],
)
def test_it_has_no_numbers(use):
    with pytest.raises(InputError, match=r"posterior\.mean"):
        use(MoVELinear(5, 3, 4).weight)


def test_it_goes_with_its_own_bias():
    layer = MoVELinear(5, 3, 4)
    for bias in (None, torch.zeros(3)):
        with pytest.raises(InputError, match="own bias"):
            F.linear(torch.randn(2, 5), layer.weight, bias)


def test_copies_have_no_one_weight():
    assert not hasattr(MoVELinear(5, 3, 2, copies=2), "weight")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention(batch_first, need_weights):
    """With one expert and the numbers of a plain projection, attention is what it was."""
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    ours = copy.deepcopy(plain)
    ours.out_proj = MoVELinear(8, 8, 1).eval()
    with torch.no_grad():
        ours.out_proj.posterior.mean[0].copy_(plain.out_proj.weight.T)
        ours.out_proj.bias[0].copy_(plain.out_proj.bias)
    for shape in ((4, 6, 8), (6, 8)):
        x = torch.randn(shape)
        for module in (plain, ours):
            assert module.training is False
        found, expected = (module(x, x, x, need_weights=need_weights) for module in (ours, plain))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_attention_of_other_sizes_and_masks():
    torch.manual_seed(0)
    ours = nn.MultiheadAttention(8, 2, kdim=5, vdim=7, batch_first=True).eval()
    ours.out_proj = MoVELinear(8, 8, 3).eval()
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[:, 6:] = True
    keys, values = torch.randn(4, 9, 5), torch.randn(4, 9, 7)
    answer, attention = ours(torch.randn(4, 6, 8), keys, values, key_padding_mask=mask)
    assert answer.shape == (4, 6, 8)
    assert attention[:, :, 6:].abs().max() == 0


def test_prediction_without_gradients_is_prediction_with_them():
    """Without gradients torch would take its fused path, which reads the numbers of every weight."""
    layer, x = encoder().eval(), torch.randn(4, 6, 8)
    expected = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)


def test_a_stack_of_layers_with_padding():
    network = nn.TransformerEncoder(encoder(), 2).eval()
    x, padding = torch.randn(4, 6, 8), torch.zeros(4, 6, dtype=torch.bool)
    padding[:, 4:] = True
    with torch.no_grad():
        answer = network(x, src_key_padding_mask=padding)
        x[:, 4:] = 7.0
        torch.testing.assert_close(network(x, src_key_padding_mask=padding)[:, :4], answer[:, :4], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["ours", "torch's"])
def test_a_transformer_layer_learns(optimizer):
    layer = encoder(top_k=3)
    x, y = torch.randn(16, 6, 8), torch.randn(16, 6, 8)
    adam = VariationalAdam(layer, lr=0.01) if optimizer == "ours" else torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for step in range(40):
        loss = (layer(x) - y).square().mean()
        total = loss + 1e-4 * sum(term.evaluate() for term in loss_terms(layer) if term.name == "expert_kl")
        adam.zero_grad()
        total.backward()
        if step == 0:
            for name, parameter in layer.named_parameters():
                assert parameter.grad.norm() > 0, name
                if name.endswith("posterior.mean"):
                    assert (parameter.grad.flatten(1).norm(dim=1) > 0).all(), name
        adam.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_compiled_transformer_layer():
    torch._dynamo.reset()
    layer, x = encoder().eval(), torch.randn(4, 6, 8)
    expected = layer(x)
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), expected, rtol=1e-4, atol=1e-5)
