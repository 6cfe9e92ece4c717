"""The options that every MoVE layer takes."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

import torch

from hvcl.core.errors import InputError
from hvcl.layers.dispatch import Routing
from hvcl.posteriors.mean_field import FirstPrior, SigmaKind, SigmaTransform

Estimator = Literal["flipout", "local", "mean"]
Usage = Literal["gate", "uniform"]
GateKind = Literal["softmax", "path"]


class MoVEOptions(TypedDict, total=False):
    """The keyword options that every MoVE layer takes beside `experts` and the arguments of its torch.nn counterpart.

    `experts` is M, the number of experts (default 2). With one expert there is no gate: a plain variational layer.
    """

    top_k: int
    """Experts evaluated per example (default 1)."""
    estimator: Estimator
    """How weight noise is drawn: "flipout" (default), "local" reparameterisation, "mean" (no noise)."""
    sigma: SigmaKind
    """One sigma per "weight" (default) or per output "unit"."""
    routing: Routing
    """The most probable experts, weighted by p(m|x) ("argmax", default) or by 1 ("straight-through"), or experts drawn from the
    gate in training, weighted by 1 ("sample")."""
    usage: Usage
    """Weight of an expert's KL: the batch's mean "gate" mass on it (default), or 1 for every expert ("uniform")."""
    initial_sigma: float
    """Posterior sigma at the start, as a fraction of the He standard deviation (default 0.1)."""
    prior_sigma: float | None
    """Standard deviation s of the first prior; None (default): the He standard deviation or, "start"ing, the posterior's own."""
    first_prior: FirstPrior
    """The first prior has its mean at "zero" (default), or where the posterior "start"s: then nothing is to be paid at first."""
    retention: float
    """How many times as firmly as Bayes' rule has it what earlier tasks taught is held: lambda of generalised VCL (default 1)."""
    sigma_transform: SigmaTransform
    """sigma = "exp"(rho) (default) or "softplus"(rho)."""
    kernel_width: float | None
    """Width h of the diversity kernel; None (default): median heuristic, frozen until the next `consolidate`."""
    gate: GateKind
    """Who chooses the expert: a "softmax" gate on the layer's input (default), or whoever calls `hvcl.layers.follow` ("path")."""
    gate_grid: int
    """Convolutions: cells across and down that the gate pools its input over (default 1: it sees no places, and any size)."""
    context: int
    """Numbers that the gate reads beside its layer's input, given by `hvcl.layers.WithContext` (default 0)."""
    device: torch.device | str | None
    dtype: torch.dtype | None


def require_positive(**values: int) -> None:
    """Raise `InputError` unless all of these are whole numbers of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number, at least 1, got {value}")


def require_choice(name: str, value: str, kind: Any) -> None:
    """Raise `InputError` unless `value` is one of a Literal's."""
    choices = get_args(kind)
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
