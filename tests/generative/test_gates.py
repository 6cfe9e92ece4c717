"""Gates of a decoder by context."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.generative import ContextGates, MoVEVAE


def test_a_context_turns_its_share_off_and_leaves_a_unit_on():
    torch.manual_seed(0)
    gates = ContextGates(50, (10, 2), 0.7)
    assert gates.open0.sum(1).tolist() == [3.0] * 50
    assert gates.open1.sum(1).tolist() == [1.0] * 50
    assert gates.open0.mean(0).min() > 0.1, "each unit is on in some contexts"
    assert ContextGates(3, (4,), 0.0).open0.min() == 1


def test_probabilities_of_contexts_mix_their_gates():
    torch.manual_seed(0)
    gates = ContextGates(3, (5,), 0.4)
    decoder = nn.Sequential(nn.Linear(2, 5), nn.LeakyReLU(), nn.Linear(5, 4))
    z, w = torch.randn(6, 2), torch.rand(6, 3).softmax(1)
    hidden = F.leaky_relu(decoder[0](z))
    torch.testing.assert_close(gates(decoder, z, w), decoder[2](hidden * (w @ gates.open0)))
    number = torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(gates(decoder, z, number), decoder[2](hidden * gates.open0[number]))


def test_a_gated_vae_wants_to_know_the_condition_and_reconstructs_for_the_most_probable():
    torch.manual_seed(0)
    vae = MoVEVAE((3,), latent=2, hidden=(6,), likelihood="gaussian", conditions=2, gated=0.5)
    with pytest.raises(InputError, match="gated by conditions"):
        vae.decode(torch.zeros(1, 2))
    vae.prior.record(torch.tensor([0, 1]), 2)
    with torch.no_grad():
        vae.prior.mean.copy_(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]))
        vae.mean.weight.zero_()
        vae.mean.bias.copy_(torch.tensor([1.0, 0.0]))
    x = torch.randn(4, 3)
    torch.testing.assert_close(vae.reconstruct(x), vae.decode(vae.mean.bias.expand(4, 2), torch.ones(4, dtype=torch.long)))
    assert vae.sample(5, condition=1).condition.tolist() == [1] * 5


def test_bad_sizes_are_named():
    with pytest.raises(InputError, match=r"\[0, 1\)"):
        ContextGates(2, (3,), 1.0)
    with pytest.raises(InputError, match="no contexts of 2"):
        ContextGates(3, (3,), 0.5, 2)
