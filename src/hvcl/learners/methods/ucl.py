r"""Uncertainty-based continual learning: UCL (Ahn, Cha, Lee & Moon, 2019).

Every weight has a Gaussian posterior N(mu, sigma^2) with one sigma for all weights into a node: a node that has become sure is
important. With the values at the last boundary marked by ', sigma_0 the sigma at the start of a layer, B the size of the batch,
and for the weight from node i to node j

    Lambda_ij = max(sigma_0 / sigma'_j, sigma_0 / sigma'_i)        (inputs of the network: 0 in place of the second),

a batch pays, beside its mean cross-entropy,

    1/B [ alpha/2 sum (Lambda (mu - mu'))^2                        alpha = 0.01 in the first task, then 1
          + sigma_0^2 sum (mu'/sigma')^2 |mu - mu'|                from the second task on
          + beta/2 sum_nodes (r - log r + sigma^2 - log sigma^2) ] ,        r = (sigma/sigma')^2 .

The first term holds what goes into and comes out of important nodes, the second keeps their large weights exactly where they are,
the third lets sigma neither explode nor collapse. Biases have no sigma and pay the first two terms with that of their node.
This is what the authors' code does. In Task-IL the heads are plain and not regularised, as there.

Deviates from it: flipout instead of one draw of the weights for all of a batch; means start as Gaussian draws, not uniform ones,
of variance (1 - ratio) 2 / fan-in, for convolutions too; one learning rate, which does not decay; Adam goes on over boundaries.

A task-free stream announces no boundaries: then the terms of the first task are all there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like
from hvcl.layers import MoVEConv2d, MoVELayer, MoVELinear, consolidate
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner, Terms
from hvcl.learners.registry import register
from hvcl.posteriors import MeanFieldGaussian


@dataclass(frozen=True)
class UCLConfig(GradientConfig):
    """Uncertainty-based continual learning."""

    learning_rate: float = 1e-3
    """Step size of Adam."""
    ratio: float = 0.5
    """Share of sigma^2 in the He variance 2 / fan-in at the start; the means have the rest."""
    alpha: float = 0.01
    """Weight of the first term in the first task."""
    beta: float = 0.03
    """Weight of the term on sigma."""
    strength: float = 1.0
    """Weight of the first two terms from the second task on; 1 in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio < 1:
            raise InputError(f"ratio must lie between 0 and 1, got {self.ratio}")
        if min(self.alpha, self.beta, self.strength) < 0:
            raise InputError(f"alpha, beta and strength must be at least 0, got {self.alpha}, {self.beta}, {self.strength}")


@register("ucl", UCLConfig)
class UCL(GradientLearner):
    """Uncertainty-based continual learning: nodes that are sure of their weights are held in place."""

    config: UCLConfig

    def __init__(self, problem: Problem, config: UCLConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.first = True
        self._anchor()

    def build(self) -> nn.Module:
        """Single-expert layers with a sigma per node; in Task-IL with plain heads."""
        options = node_options(self.config.ratio)
        network = self.assemble(
            partial(MoVELinear, experts=1, **options),
            partial(MoVEConv2d, kernel_size=3, stride=2, padding=1, experts=1, **options),
        )
        shrink_means(network, self.config.ratio)
        if self.problem.task_outputs is not None:
            head = network.get_submodule("head")
            assert isinstance(head, MoVELinear)
            network.set_submodule("head", nn.Linear(head.in_features, head.out_features))
        return network

    def _anchor(self) -> None:
        """What the network is now is what it will be compared with."""
        consolidate(self.network)
        self.biases = [bias_of(layer).detach().clone() for layer in layers_of(self.network)]

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy and the three terms, the latter divided by the size of the batch."""
        terms = super().loss(x, y, task)
        squares, magnitudes, spread = (term / len(y) for term in self.regularisers())
        config = self.config
        terms |= {"squares": squares, "magnitudes": magnitudes, "spread": spread}
        held = config.alpha / 2 * squares if self.first else config.strength * (squares / 2 + magnitudes)
        terms["loss"] = terms["loss"] + held + config.beta / 2 * spread
        return terms

    def regularisers(self) -> tuple[Tensor, Tensor, Tensor]:
        """The sums in the three terms."""
        return regularisers(layers_of(self.network), self.biases)

    def end_task(self) -> None:
        """The present posterior is what the next task is compared with."""
        self.first = False
        self._anchor()

    def state_dict(self) -> State:
        """Network with the values at the last boundary, optimiser, random state."""
        return super().state_dict() | {"first": self.first, "biases": self.biases}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.first = bool(state["first"])
        present = [bias_of(layer) for layer in layers_of(self.network)]
        self.biases = [tensor_like(saved, bias, "a bias") for saved, bias in zip(state["biases"], present, strict=True)]


class NodeOptions(TypedDict):
    """Of a layer with a sigma per node."""

    sigma: Literal["unit"]
    sigma_transform: Literal["softplus"]
    initial_sigma: float


def node_options(ratio: float) -> NodeOptions:
    """A sigma per node, with the share `ratio` of the He variance at the start."""
    return {"sigma": "unit", "sigma_transform": "softplus", "initial_sigma": math.sqrt(ratio)}


@torch.no_grad()
def shrink_means(network: nn.Module, ratio: float) -> None:
    """Leave the means the share of the He variance that the sigmas do not have."""
    for module in network.modules():
        if isinstance(module, MeanFieldGaussian):
            module.mean.mul_(math.sqrt(1 - ratio))


def regularisers(layers: Iterable[MoVELayer], biases: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The sums in the three terms, of layers from the inputs on; `biases` are theirs at the last boundary."""
    squares, magnitudes, spread = [], [], []
    before: Tensor | None = None
    for layer, old_bias in zip(layers, biases, strict=True):
        posterior = layer.posterior
        old_sigma = posterior.prior_log_sigma[0].exp()
        first_sigma = posterior.initial_sigma
        node = first_sigma / old_sigma
        holds = weight_strengths(layer, node, before)
        shift = posterior.mean - posterior.prior_mean
        bias_shift = bias_of(layer)[0] - old_bias[0]
        squares.append((holds * shift).square().sum() + (node * bias_shift).square().sum())
        certainty = (posterior.prior_mean / posterior.expand_units(old_sigma.unsqueeze(0))).square()
        of_weights = (certainty * shift.abs()).sum()
        of_bias = ((old_bias[0] / old_sigma).square() * bias_shift.abs()).sum()
        magnitudes.append(first_sigma**2 * (of_weights + of_bias))
        log_variance = 2 * posterior.log_sigma[0]
        log_ratio = log_variance - 2 * posterior.prior_log_sigma[0]
        spread.append((log_ratio.exp() - log_ratio + log_variance.exp() - log_variance).sum())
        before = node
    return torch.stack(squares).sum(), torch.stack(magnitudes).sum(), torch.stack(spread).sum()


def layers_of(network: nn.Module) -> Iterator[MoVELayer]:
    """The variational layers, from the inputs on."""
    return (layer for layer in network.modules() if isinstance(layer, MoVELayer))


def weight_strengths(layer: MoVELayer, node: Tensor, before: Tensor | None) -> Tensor:
    """Lambda for the weights of a layer, from the strengths of its own nodes and of those (or the channels) before it."""
    own = layer.posterior.expand_units(node.unsqueeze(0))
    if before is None:
        return own
    if isinstance(layer, MoVELinear):
        places = layer.in_features // len(before)  # a flattened image has several inputs for each channel
        return torch.maximum(own, before.repeat_interleave(places).view(1, -1, 1))
    return torch.maximum(own, before.view(1, 1, -1, 1, 1))


def bias_of(layer: MoVELayer) -> Tensor:
    """The biases of a layer that has some."""
    assert layer.bias is not None
    return layer.bias
