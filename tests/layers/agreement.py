"""Compiled passes of networks with MoVE layers against plain operations in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from hvcl.layers import MoVELayer, loss_terms
from hvcl.ops import load

TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
"""Float32 against float64, sums of some hundred numbers of size one."""
WEIGHTS = {"expert_kl": 0.01, "gate_kl": 0.7, "conditional_entropy": -0.4, "marginal_entropy": 0.6, "diversity": 0.0}


def moved(network: nn.Module, seed: int = 0) -> nn.Module:
    """The same network somewhere in the middle of its life: gates that decide, no prior and no bias at its start."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for layer in network.modules():
            if not isinstance(layer, MoVELayer):
                continue
            layer.posterior.rho.normal_(-1.0, 0.4)
            layer.posterior.prior_mean.normal_(0.0, 0.3)
            layer.posterior.prior_log_sigma.normal_(-0.5, 0.3)
            if layer.bias is not None:
                layer.bias.normal_()
            if layer.gate is not None:
                for tensor in layer.gate.state_dict().values():  # none of a gate that is told its path
                    tensor.normal_()
    return network


def assert_agrees(
    network: nn.Module, x: Tensor, within: Callable[[nn.Module], AbstractContextManager[None]] = lambda _: nullcontext()
) -> None:
    """Answers, terms, and the gradients of the input and of all parameters, of a network of gated layers without noise."""
    if load() is None:
        pytest.skip("no compiled library: there is no C compiler, or HVCL_NO_KERNELS is set")
    plain = copy.deepcopy(network).double()
    inputs = x.requires_grad_(), x.detach().double().requires_grad_()
    answers, terms = [], []
    for module, rows in zip((network, plain), inputs, strict=True):
        with within(module):
            answers.append(module(rows))
        terms.append({(term.layer, term.name): term.evaluate() for term in loss_terms(module)})
        towards = torch.randn(answers[0].shape, generator=torch.Generator().manual_seed(2)).to(rows.dtype)
        loss = (answers[-1] * towards).mean()
        loss = loss + sum(WEIGHTS[name] * value for (_, name), value in terms[-1].items())
        loss.backward()
    compiled = [layer._trace.known("gate_kl") is not None for layer in network.modules() if isinstance(layer, MoVELayer)]
    assert compiled
    assert all(compiled)  # or plain operations would be compared with themselves
    torch.testing.assert_close(answers[0].double(), answers[1], **TOLERANCE)
    for key, value in terms[0].items():
        torch.testing.assert_close(value.double(), terms[1][key], **TOLERANCE, msg=lambda text, key=key: f"{key}: {text}")
    torch.testing.assert_close(inputs[0].grad.double(), inputs[1].grad, **TOLERANCE)
    for (name, mine), its in zip(network.named_parameters(), plain.parameters(), strict=True):
        assert its.grad is not None, name
        assert mine.grad is not None, name
        torch.testing.assert_close(mine.grad.double(), its.grad, **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")
