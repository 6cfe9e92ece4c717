"""Dense layers as compiled code takes them: prepared once, and found again with as little work as possible."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from hvcl.ops import MOST_EXPERTS, usable
from hvcl.ops.dense import Answer, Mixture, Stack, run
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.collector import Collector
from hvcl.posteriors.parameter import collect_with

if TYPE_CHECKING:
    from hvcl.layers.linear import MoVELinear


class Compiled:
    """The compiled passes of a module's layers. Copies and pickles of a module begin anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[list[Any], Stack | None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return Compiled()

    def __reduce__(self) -> tuple[type[Compiled], tuple[()]]:
        return Compiled, ()

    def run(
        self,
        layers: Sequence[MoVELinear],
        x: Tensor,
        statistics: bool = True,
        side_by_side: bool = False,
        features: Tensor | None = None,
    ) -> Answer | None:
        """A batch ``[C, B, in]`` or ``[B, in]`` through the layers; None where compiled code cannot serve.

        `features` ``[C, B, n]`` are what the gate of a single layer reads, if that is not its input. Without `statistics` the
        gates' priors are not asked. `side_by_side`: answers are ``[B, C * out]``.
        """
        if usable(x, features) is None or not x.numel():
            return None
        stack = self._stack(layers, statistics, side_by_side)
        if stack is None:
            return None
        posteriors = [_posterior(layer) for layer in layers]
        derived = posteriors[0].transform != "exp" and not stack.layers[0].unit
        sigmas = [p.log_sigma for p in posteriors] if derived else None
        kls = [p.known_kl() for p in posteriors] if stack.collects else None
        return run(stack, x, features, kls, sigmas)

    def _stack(self, layers: Sequence[MoVELinear], statistics: bool, side_by_side: bool) -> Stack | None:
        """The layers as they are now, in the mode that they are in."""
        tensors: list[Any] = []
        for layer in layers:
            _add_tensors(layer, tensors)
        first = layers[0]
        grad = torch.is_grad_enabled()
        learned = tuple([tensor is not None and tensor.requires_grad for tensor in tensors]) if grad else ()
        collected = grad and all(_posterior(layer).collects for layer in layers)
        mode = (first.training, first.sample_in_eval, grad, collected, learned, statistics, first.top_k, first.routing)
        found = self._known.get(mode)
        if found is not None and len(found[0]) == len(tensors) and all(map(is_, tensors, found[0])):
            return found[1]
        stack = self._prepare(layers, tensors, statistics, side_by_side)
        self._known[mode] = (tensors, stack)
        return stack

    @staticmethod
    def _prepare(layers: Sequence[MoVELinear], tensors: list[Any], statistics: bool, side_by_side: bool) -> Stack | None:
        library = usable(*tensors)
        if library is None or not library.has_gemm or layers[0].experts > MOST_EXPERTS:
            return None
        sinks: list[Collector | None] = [None] * len(layers)
        if all(layer.posterior.collects for layer in layers):  # all of them or none: a frozen layer leaves the others to autograd
            sinks = [layer.posterior.collector for layer in layers]
            for layer in layers:
                collect_with(layer.posterior, layer.parameters())
        mixtures = [_mixture(layer, statistics) for layer in layers]
        return Stack(library, mixtures, sinks, torch.is_grad_enabled(), side_by_side)


def _posterior(layer: MoVELinear) -> MeanFieldGaussian:
    """Looked up where it is: torch's own lookup is slow."""
    return cast(MeanFieldGaussian, layer._modules["posterior"])


def _add_tensors(layer: MoVELinear, tensors: list[Any]) -> None:
    """Everything that compiled code has the address of."""
    modules = layer._modules
    posterior, gate = cast(MeanFieldGaussian, modules["posterior"]), modules.get("gate")
    tensors += posterior._parameters.values()
    tensors += posterior._buffers.values()
    tensors.append(layer._parameters.get("bias"))
    if gate is not None:
        tensors += gate._parameters.values()
        tensors += gate._buffers.values()


def _mixture(layer: MoVELinear, statistics: bool) -> Mixture:
    gate, posterior = layer.gate, layer.posterior
    prior = gate if statistics else None
    return Mixture(
        posterior.mean,
        posterior.rho,
        layer.bias,
        None if gate is None else gate.weight,
        None if gate is None else gate.bias,
        None if prior is None else prior.prior_weight,
        None if prior is None else prior.prior_bias,
        posterior.prior_log_sigma,
        copies=layer.copies,
        top_k=layer.top_k,
        sampled=layer.routes_randomly,
        through=layer.routing != "argmax",
        noise=layer.noise,
        unit=posterior.sigma_kind == "unit",
        softplus=posterior.sigma_kind == "unit" and posterior.transform == "softplus",
        uniform=layer.usage == "uniform",
    )
