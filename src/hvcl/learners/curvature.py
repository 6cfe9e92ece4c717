r"""Gradients of single examples, of plain networks: what the Fisher information and other importances are made of.

A dense layer with input a (a row) and output s = W a + b has the gradient dL/dW = g a^T with g = dL/ds. So sums over examples of
elementwise powers need no gradient of any single example,

    sum_n v_n |dL_n/dW|^p = sum_n v_n |g_n|^p (|a_n|^p)^T ,

a product of two matrices. A convolution is a dense layer on patches, whose gradients add up over the places of an example; there
the example's gradient has to be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError

FisherLabels = Literal["exact", "sampled", "empirical"]
"""Labels of the Fisher information: the expectation over the model's classes, one drawn from the model, or the true one."""


@dataclass
class Seen:
    """What a layer saw and said in one forward pass."""

    name: str
    layer: nn.Linear | nn.Conv2d
    inputs: Tensor
    outputs: Tensor

    def patches(self) -> Tensor:
        """The input of the dense layer that this layer is at every place, ``[B, places, fan-in]``."""
        if isinstance(self.layer, nn.Linear):
            return self.inputs.unsqueeze(1)
        layer = self.layer
        assert not isinstance(layer.padding, str)
        unfolded = F.unfold(self.inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        return unfolded.transpose(1, 2)

    def places(self, gradient: Tensor) -> Tensor:
        """A gradient of the outputs as ``[B, places, units]``."""
        return gradient.unsqueeze(1) if gradient.dim() == 2 else gradient.flatten(2).transpose(1, 2)

    def powers(self, gradient: Tensor, power: int, weights: Tensor | None) -> dict[str, Tensor]:
        """Sum over examples of `weights` times the `power`-th power of the magnitude of each example's gradient, by parameter."""
        of_outputs, patches = self.places(gradient), self.patches()
        of_bias = of_outputs.sum(1).abs().pow(power)
        of_bias = of_bias if weights is None else weights.unsqueeze(1) * of_bias
        if patches.shape[1] == 1:
            of_weight = of_bias.T @ patches.squeeze(1).abs().pow(power)
        else:
            each = torch.einsum("bpo,bpi->boi", of_outputs, patches).abs_().pow_(power)
            of_weight = each.sum(0) if weights is None else torch.einsum("b,boi->oi", weights, each)
        found = {f"{self.name}.weight": of_weight.view_as(self.layer.weight)}
        if self.layer.bias is not None:
            found[f"{self.name}.bias"] = of_bias.sum(0)
        return found


@contextmanager
def watching(network: nn.Module) -> Iterator[list[Seen]]:
    """In evaluation mode, list what every dense and convolutional layer sees and says in a forward pass."""
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    covered = {id(parameter) for layer in layers.values() for parameter in layer.parameters()}
    if any(id(parameter) not in covered for parameter in network.parameters()):
        raise InputError("importances are known for networks of nn.Linear and nn.Conv2d layers only")
    seen: list[Seen] = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def remember(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            assert isinstance(layer, nn.Linear | nn.Conv2d)
            seen.append(Seen(name, layer, inputs[0].detach(), outputs))

        return remember

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    training = network.training
    network.eval()
    try:
        with torch.enable_grad():
            yield seen
    finally:
        network.train(training)
        for handle in handles:
            handle.remove()


def label_gradients(
    logits: Tensor, y: Tensor, labels: FisherLabels, seen: list[Seen]
) -> Iterator[tuple[list[Tensor], Tensor | None]]:
    """Gradients of every layer's outputs of log p(label|x), label after label, and the label's weight for each example (None: 1).

    Labels outside the head of an example's task have probability 0 and with it weight 0.
    """
    outputs = [each.outputs for each in seen]
    log_probabilities = logits.log_softmax(1)
    probabilities = log_probabilities.detach().exp()
    if labels == "exact":
        for label in range(logits.shape[1]):
            weights = probabilities[:, label]
            if bool((weights > 0).any()):
                yield list(torch.autograd.grad(log_probabilities[:, label].sum(), outputs, retain_graph=True)), weights
        return
    chosen = y if labels == "empirical" else torch.multinomial(probabilities, 1).squeeze(1)
    yield list(torch.autograd.grad(log_probabilities.gather(1, chosen.unsqueeze(1)).sum(), outputs)), None


def add_to(total: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Add tensors by name, in place."""
    for name, value in more.items():
        if name in total:
            total[name] += value
        else:
            total[name] = value.clone()
