"""Turning the linear and convolutional layers of any network into MoVE layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from hvcl.core.errors import InputError
from hvcl.layers.base import MoVELayer
from hvcl.layers.conv import (
    MoVEConv1d,
    MoVEConv2d,
    MoVEConv3d,
    MoVEConvTranspose1d,
    MoVEConvTranspose2d,
    MoVEConvTranspose3d,
)
from hvcl.layers.linear import MoVELinear
from hvcl.layers.options import MoVEOptions

Choice = str | Iterable[str] | Callable[[str, nn.Module], bool]
"""Layers: dotted names (each stands for everything inside it too), or a function of a layer's dotted name and the layer."""

_COUNTERPARTS: dict[type[nn.Module], type[MoVELayer]] = {
    nn.Linear: MoVELinear,
    NonDynamicallyQuantizableLinear: MoVELinear,  # the output projection of nn.MultiheadAttention
    nn.Conv1d: MoVEConv1d,
    nn.Conv2d: MoVEConv2d,
    nn.Conv3d: MoVEConv3d,
    nn.ConvTranspose1d: MoVEConvTranspose1d,
    nn.ConvTranspose2d: MoVEConvTranspose2d,
    nn.ConvTranspose3d: MoVEConvTranspose3d,
}

_GEOMETRY = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


def convert(
    network: nn.Module,
    experts: int = 4,
    *,
    skip: Choice = (),
    only: Choice | None = None,
    **options: Unpack[MoVEOptions],
) -> nn.Module:
    """A copy of a network in which linear and (transposed) convolutional layers are MoVE layers; `network` stays as it is.

    A layer's weights become the posterior means of all experts, its bias the bias of all experts. The copy then predicts what
    `network` predicts: `routing` is "straight-through" here unless it is given, so that the answer of the chosen expert has
    weight 1 (with ``top_k > 1`` weights sum up to 1 anyway). With ``routing="argmax"`` and ``top_k=1`` every layer's answer is
    multiplied by p(m|x) of its expert, about 1 / `experts` at first, and predictions are others. Experts that start the same
    part with learning: the gates start at random, so each is taught by inputs of its own.

    The priors are the first priors of new layers. To learn on from what a trained network knows, make that the prior:
    ``consolidate(convert(network))`` in two steps.

    A layer that is used in several places stays one layer. A packed ``in_proj_weight`` (nn.MultiheadAttention) is no layer and
    stays as it is, like everything else that is not linear or convolutional. Device, type, mode and `requires_grad` are those of
    the layer.

    Args:
        network: any module; it may be a single layer.
        experts: M of every layer.
        skip: layers to leave as they are.
        only: layers to convert; None: all.
        options: as `MoVEOptions`, for all layers, but for `device` and `dtype`.

    Raises:
        InputError: if there is nothing to convert, if a name is that of no module, or if a layer cannot be converted: it is of a
            subclass with a forward pass of its own, it has hooks or no weights yet, or its weight is tied to another module's.

    Example:
        >>> network = convert(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)), experts=4, skip="2")
        >>> type(network[0]).__name__, type(network[2]).__name__
        ('MoVELinear', 'Linear')
    """
    if options.keys() & {"device", "dtype"}:
        raise InputError("a converted layer has the device and the dtype of the layer that it replaces: leave them out")
    places = _places(network, skip, only)
    settings: Any = {"routing": "straight-through"} | options
    converted = copy.deepcopy(network)
    made: dict[int, MoVELayer] = {}
    for name in places:
        layer = converted.get_submodule(name)
        ours = made.get(id(layer)) or made.setdefault(id(layer), _counterpart(layer, experts, settings))
        if not name:
            return ours
        owner, _, last = name.rpartition(".")
        setattr(converted.get_submodule(owner), last, ours)
        made[id(ours)] = ours  # for a place inside a module that is itself used in several places
    return converted


def _places(network: nn.Module, skip: Choice, only: Choice | None) -> list[str]:
    """The dotted names of all places of layers to convert, checked."""
    if not isinstance(network, nn.Module):
        raise InputError(f"convert takes a network (torch.nn.Module), got {type(network).__name__}")
    names: dict[int, list[str]] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    modules = {id(module): module for module in network.modules()}
    skipped, chosen = _matcher(skip, names), None if only is None else _matcher(only, names)
    found = []
    for key, module in modules.items():
        if not isinstance(module, nn.Linear | _ConvNd) or any(skipped(name, module) for name in names[key]):
            continue
        if chosen is None or any(chosen(name, module) for name in names[key]):
            found.append(key)
    if not found:
        raise InputError("there is no linear or convolutional layer to convert")
    owners = _owners(network)
    for key in found:
        _check(names[key][0], modules[key], owners)
    return [name for key in found for name in names[key]]


def _matcher(choice: Choice, names: dict[int, list[str]]) -> Callable[[str, nn.Module], bool]:
    """A choice as a function of name and module."""
    if callable(choice):
        return choice
    wanted = [choice] if isinstance(choice, str) else list(choice)
    known = {name for every in names.values() for name in every}
    for name in wanted:
        if name not in known:
            raise InputError(f"the network has no module called {name!r}; it has {', '.join(sorted(known - {''})) or 'none'}")
    return lambda name, _: any(name == one or name.startswith(f"{one}.") or not one for one in wanted)


def _owners(network: nn.Module) -> dict[int, list[str]]:
    """By parameter the names of the modules that have it."""
    owners: dict[int, list[str]] = {}
    for name, module in network.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(name)
    return owners


def _check(name: str, layer: nn.Module, owners: dict[int, list[str]]) -> None:
    """Raise `InputError` for a layer that a MoVE layer could not replace faithfully."""
    place = f"layer {name!r} ({type(layer).__name__})" if name else f"the layer ({type(layer).__name__})"
    reason = None
    if type(layer) not in _COUNTERPARTS:
        reason = "it is of a class of its own, of which there is no MoVE layer"
    elif layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        reason = "it has hooks, which would be lost"
    else:
        parameters = [parameter for parameter in layer._parameters.values() if parameter is not None]
        tied = sorted({other for parameter in parameters for other in owners[id(parameter)]} - {name})
        if set(layer._parameters) != {"weight", "bias"}:
            reason = "it has other parameters than weight and bias"
        elif not parameters[0].is_floating_point():
            reason = f"its weights are {parameters[0].dtype}"
        elif tied:
            reason = f"its parameters are also those of {', '.join(map(repr, tied))}"
    if reason is not None:
        raise InputError(f"{place} cannot be converted, {reason}: name it in skip")


def _counterpart(layer: nn.Module, experts: int, options: Any) -> MoVELayer:
    """The MoVE layer of a layer, with its weights for means."""
    kind: Any = _COUNTERPARTS[type(layer)]
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]
    assert weight is not None
    factory = {"device": weight.device, "dtype": weight.dtype, "bias": bias is not None}
    if kind is MoVELinear:
        ours: MoVELayer = MoVELinear(layer.in_features, layer.out_features, experts, **factory, **options)  # type: ignore[arg-type]
    else:
        geometry = {name: getattr(layer, name) for name in _GEOMETRY}
        if getattr(layer, "transposed", False):
            geometry["output_padding"] = layer.output_padding
        ours = kind(**geometry, experts=experts, **factory, **options)
    _copy(ours, weight.T if kind is MoVELinear else weight, bias)
    return ours.train(layer.training)


@torch.no_grad()
def _copy(ours: MoVELayer, weight: Tensor, bias: Tensor | None) -> None:
    """All experts get these weights and this bias."""
    ours.posterior.mean.copy_(weight.expand_as(ours.posterior.mean))
    ours.posterior.reset_prior()
    ours.posterior.requires_grad_(weight.requires_grad)
    if ours.gate is not None:
        ours.gate.requires_grad_(weight.requires_grad)
    if bias is not None and ours.bias is not None:
        ours.bias.copy_(bias.expand_as(ours.bias))
        ours.bias.requires_grad_(bias.requires_grad)
